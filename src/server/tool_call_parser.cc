// ToolCallParser of answer_parser.h.
#include <algorithm>

#include "server/answer_parser.h"
#include "server/json_guard.h"
#include "server/limits.h"
#include "server/text_scan.h"

namespace vayu::server {
namespace {

// End of the JSON value at `at` of text that is known to be valid JSON.
size_t skip_value(std::string_view text, size_t at) {
  int depth = 0;
  bool in_string = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string) {
      if (c == '\\') ++at;
      in_string = c != '"';
      if (in_string || depth > 0) continue;
      return at + 1;
    }
    if (c == '"') in_string = true;
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') {
      if (depth == 0) return at;  // of what is around a number or a word
      if (--depth == 0) return at + 1;
    }
    if (c == ',' && depth == 0) return at;
  }
  return at;
}

// Text of the value under `key` in the object `text`, which is known to be valid JSON; empty when absent.
std::string_view member_text(std::string_view text, std::string_view key) {
  std::string_view found;
  size_t at = text.find('{') + 1;
  for (;;) {
    at = text.find_first_not_of(" \t\r\n,", at);
    if (at == std::string_view::npos || text[at] != '"') return found;
    const size_t key_end = skip_value(text, at);
    const std::string_view name = text.substr(at + 1, key_end - at - 2);
    at = text.find(':', key_end) + 1;
    at += leading_space(text.substr(at));
    size_t end = skip_value(text, at);
    if (name == key) {
      found = text.substr(at, end - at);
      while (!found.empty() && kBlank.find(found.back()) != std::string_view::npos) found.remove_suffix(1);
    }
    at = end;
  }
}

std::optional<ToolCall> read_call(const Json& value, std::string_view text, const std::string& arguments_key) {
  if (!value.is_object()) return std::nullopt;
  const auto name = value.find("name");
  if (name == value.end() || !name->is_string() || name->get_ref<const std::string&>().empty()) return std::nullopt;
  ToolCall call{name->get<std::string>(), "{}"};
  const auto arguments = value.find(arguments_key);
  if (arguments == value.end() || arguments->is_null()) return call;
  if (arguments->is_object()) {
    call.arguments = member_text(text, arguments_key);
    if (call.arguments.empty()) call.arguments = dump(*arguments);  // a key written with escapes
    return call;
  }
  if (!arguments->is_string()) return std::nullopt;  // a text that holds the object
  call.arguments = arguments->get<std::string>();
  const auto inner = parse_json(call.arguments);
  return inner.ok() && inner->is_object() ? std::optional(std::move(call)) : std::nullopt;
}

}  // namespace

ToolCallParser::ToolCallParser(ToolCallFormat format, std::vector<std::string> tool_names)
    : format_(std::move(format)), tool_names_(std::move(tool_names)) {}

// Sends the white space kept back, then `text`.
void ToolCallParser::content(std::string_view text, AnswerPieces* out) {
  const bool leading = called_ && !sent_content_;
  const std::string whole = (leading ? std::string() : space_).append(text);
  space_.clear();
  if (whole.empty()) return;
  sent_content_ = true;
  if (!out->empty() && out->back().kind == AnswerPiece::kContent) {
    out->back().text += whole;
  } else {
    out->push_back({AnswerPiece::kContent, whole, {}});
  }
}

void ToolCallParser::push(std::string_view text, AnswerPieces* out) {
  held_ += text;
  while (step(out)) {
  }
}

bool ToolCallParser::step(AnswerPieces* out) {
  if (held_.empty()) return false;
  if (state_ == State::kText) return step_text(out);
  return state_ == State::kJson ? step_json(out) : step_close(out);
}

bool ToolCallParser::step_text(AnswerPieces* out) {
  const size_t blank = leading_space(held_);
  space_ += held_.substr(0, blank);
  held_.erase(0, blank);
  if (format_.open.empty() && called_ && !sent_content_ && held_.starts_with(';')) {  // between two calls
    space_ += ';';
    held_.erase(0, 1);
    return true;
  }
  if (held_.empty()) return false;
  size_t open = std::string::npos;
  if (!format_.open.empty()) {
    open = held_.find(format_.open);
  } else if (!plain_ && held_.front() == '{') {
    open = 0;
  }
  size_t end = open != std::string::npos ? open : held_.size() - partial_suffix(held_, format_.open);
  // White space in front of what may be a call waits with it.
  const size_t text_end = end == 0 ? std::string::npos : held_.find_last_not_of(kBlank, end - 1);
  if (text_end != std::string::npos) {
    plain_ = true;
    content(std::string_view(held_).substr(0, text_end + 1), out);
    space_ = held_.substr(text_end + 1, end - text_end - 1);
  } else {
    space_ += held_.substr(0, end);
  }
  held_.erase(0, end);
  if (open == std::string::npos) return false;
  state_ = State::kJson;
  scanned_ = json_begin_ = format_.open.size();
  brackets_.clear();
  in_string_ = escaped_ = false;
  return true;
}

// Goes on to the end of the JSON value; stops at the first byte that cannot be JSON.
ToolCallParser::Scan ToolCallParser::scan() {
  for (; scanned_ < held_.size(); ++scanned_) {
    const char c = held_[scanned_];
    if (in_string_) {
      if (static_cast<unsigned char>(c) < 0x20) return Scan::kBad;
      if (escaped_) {
        escaped_ = false;
      } else {
        escaped_ = c == '\\';
        in_string_ = c != '"';
      }
      continue;
    }
    const bool blank = kBlank.find(c) != std::string_view::npos;
    if (brackets_.empty() && blank) {
      json_begin_ = scanned_ + 1;
    } else if (c == '{' || c == '[') {
      if (brackets_.size() >= static_cast<size_t>(kMaxJsonDepth)) return Scan::kBad;
      brackets_ += c == '{' ? '}' : ']';
    } else if (brackets_.empty()) {
      return Scan::kBad;
    } else if (c == '}' || c == ']') {
      if (brackets_.back() != c) return Scan::kBad;
      brackets_.pop_back();
      if (brackets_.empty()) {
        ++scanned_;
        return Scan::kWhole;
      }
    } else if (c == '"') {
      in_string_ = true;
    } else if (!blank && std::string_view(",:+-.").find(c) == std::string_view::npos && !(c >= '0' && c <= '9') &&
               !(c >= 'a' && c <= 'z') && c != 'E') {
      return Scan::kBad;
    }
  }
  return Scan::kMore;
}

// What was taken for a call is content, up to where it went wrong; what follows may be a call again.
void ToolCallParser::give_up(AnswerPieces* out) {
  const size_t end = std::max(scanned_, std::min(held_.size(), std::max<size_t>(format_.open.size(), 1)));
  content(std::string_view(held_).substr(0, end), out);
  held_.erase(0, end);
  calls_.clear();
  plain_ = true;
  state_ = State::kText;
}

bool ToolCallParser::step_json(AnswerPieces* out) {
  const Scan result = scan();
  if (result == Scan::kMore) return false;
  if (result == Scan::kWhole && parse_calls(std::string_view(held_).substr(json_begin_, scanned_ - json_begin_))) {
    state_ = State::kClose;
    return true;
  }
  give_up(out);
  return !held_.empty();
}

bool ToolCallParser::parse_calls(std::string_view json) {
  const auto value = parse_json(json);
  if (!value.ok() || value->empty()) return false;
  calls_.clear();
  const bool list = value->is_array();
  size_t at = 1;
  for (size_t i = 0; i < (list ? value->size() : 1); ++i) {
    std::string_view text = json;
    if (list) {
      at = json.find_first_not_of(" \t\r\n,", at);
      const size_t end = skip_value(json, at);
      text = json.substr(at, end - at);
      at = end;
    }
    auto call = read_call(list ? (*value)[i] : *value, text, format_.arguments_key);
    // Without a mark only the name tells a call from an answer in JSON.
    if (!call || (format_.open.empty() && !std::binary_search(tool_names_.begin(), tool_names_.end(), call->name))) {
      return false;
    }
    calls_.push_back(std::move(*call));
  }
  return true;
}

bool ToolCallParser::step_close(AnswerPieces* out) {
  if (!format_.close.empty()) {
    const size_t at = scanned_ + leading_space(std::string_view(held_).substr(scanned_));
    const std::string_view rest = std::string_view(held_).substr(at);
    if (rest.empty() || is_proper_prefix(rest, format_.close)) return false;
    if (!rest.starts_with(format_.close)) {
      give_up(out);
      return !held_.empty();
    }
    scanned_ = at + format_.close.size();
  }
  held_.erase(0, scanned_);
  emit_calls(out);
  return !held_.empty();
}

void ToolCallParser::emit_calls(AnswerPieces* out) {
  for (ToolCall& call : calls_) out->push_back({AnswerPiece::kToolCall, {}, std::move(call)});
  called_ = true;
  calls_.clear();
  space_.clear();
  state_ = State::kText;
}

void ToolCallParser::finish(AnswerPieces* out) {
  // The last call may lack its closing mark: the model ended, or a stop string took it away.
  if (state_ == State::kClose) {
    const std::string_view rest = std::string_view(held_).substr(scanned_);
    const std::string_view mark = rest.substr(leading_space(rest));
    if (mark.empty() || is_proper_prefix(mark, format_.close)) {
      emit_calls(out);
      held_.clear();
    }
  }
  content(held_, out);
  held_.clear();
  state_ = State::kText;
}

}  // namespace vayu::server
