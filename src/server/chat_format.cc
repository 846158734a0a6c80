#include "server/chat_format.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace vayu::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kSpace = " \t\r\n";
constexpr const char* kProbeText = "vayu-probe-text";
constexpr const char* kProbeName = "vayu_probe_name";
constexpr const char* kProbeKey = "vayu_probe_key";
constexpr size_t kMaxMarkBytes = 48;

struct TagPair {
  std::string_view open, close;
};
constexpr std::array<TagPair, 6> kReasoningTags = {{{"<think>", "</think>"},
                                                    {"[THINK]", "[/THINK]"},
                                                    {"<thinking>", "</thinking>"},
                                                    {"<thought>", "</thought>"},
                                                    {"<reasoning>", "</reasoning>"},
                                                    {"<seed:think>", "</seed:think>"}}};

struct NamedReasoning {
  std::string_view name;
  TagPair tags;
  bool starts_thinking;
};
// As vLLM and SGLang name them; '-' and '_' are one.
constexpr std::array<NamedReasoning, 6> kNamedReasoning = {{{"qwen3", kReasoningTags[0], false},
                                                            {"qwen3-thinking", kReasoningTags[0], true},
                                                            {"deepseek-r1", kReasoningTags[0], true},
                                                            {"glm45", kReasoningTags[0], false},
                                                            {"sarvam", kReasoningTags[0], false},
                                                            {"mistral", kReasoningTags[1], false}}};

struct NamedToolCalls {
  std::string_view name, open, close, arguments_key;
};
constexpr std::array<NamedToolCalls, 5> kNamedToolCalls = {{{"hermes", "<tool_call>", "</tool_call>", "arguments"},
                                                            {"qwen", "<tool_call>", "</tool_call>", "arguments"},
                                                            {"qwen25", "<tool_call>", "</tool_call>", "arguments"},
                                                            {"mistral", "[TOOL_CALLS]", "", "arguments"},
                                                            {"llama3-json", "", "", "parameters"}}};

std::string canonical(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

template <class Table>
auto find_named(const Table& table, const std::string& name) -> decltype(table.data()) {
  for (const auto& row : table) {
    if (row.name == canonical(name)) return &row;
  }
  return nullptr;
}

template <class Table>
Status check_name(const char* flag, const Table& table, const std::string& name) {
  if (name == "auto" || name == "none" || find_named(table, name) != nullptr) return {};
  std::string known = "auto, none";
  for (const auto& row : table) known.append(", ").append(row.name);
  return field_error(flag, "{} {}: expected one of {}", flag, name, known);
}

bool mentions(const std::vector<std::string>& texts, std::string_view part) {
  return std::any_of(texts.begin(), texts.end(),
                     [&](const std::string& text) { return text.find(part) != std::string::npos; });
}

bool holds(const std::vector<std::string>& sorted, std::string_view word) {
  return std::binary_search(sorted.begin(), sorted.end(), word, std::less<>());
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

// The mark that ends (or begins) `text`: <name>, <|name|>, [NAME]. Empty when there is none.
std::string_view mark_at_end(std::string_view text) {
  const char end = text.empty() ? '\0' : text.back();
  if (end != '>' && end != ']') return {};
  const size_t begin = text.rfind(end == '>' ? '<' : '[');
  if (begin == std::string_view::npos || text.size() - begin > kMaxMarkBytes) return {};
  const std::string_view mark = text.substr(begin);
  return mark.find_first_of(" \t\r\n\"") == std::string_view::npos && mark.size() > 2 ? mark : std::string_view();
}

std::string_view mark_at_begin(std::string_view text) {
  const char begin = text.empty() ? '\0' : text.front();
  if (begin != '<' && begin != '[') return {};
  const size_t end = text.find(begin == '<' ? '>' : ']');
  return end == std::string_view::npos ? std::string_view() : mark_at_end(text.substr(0, end + 1));
}

// Renders small conversations. A template may refuse one (raise_exception): that probe then says nothing.
class Prober {
 public:
  Prober(const ChatTemplate& chat_template, const std::string& bos, const std::string& eos)
      : template_(chat_template), bos_(bos), eos_(eos) {}

  std::optional<std::string> render(const Json& answer, bool generate, const Json& extra = Json::object()) const {
    Json context = {{"messages", Json::array({{{"role", "user"}, {"content", "Hi"}}})},
                    {"tools", nullptr},
                    {"documents", nullptr},
                    {"add_generation_prompt", generate}};
    if (!answer.is_null()) context["messages"].push_back(answer);
    if (!bos_.empty()) context["bos_token"] = bos_;
    if (!eos_.empty()) context["eos_token"] = eos_;
    context.update(extra);
    auto prompt = template_.render(context);
    if (!prompt.ok()) return std::nullopt;
    return std::move(prompt->text);
  }

  // What the template writes for an answer, from where its generation prompt ends.
  std::optional<std::string> render_answer(const Json& answer, const Json& extra = Json::object()) const {
    const auto whole = render(answer, false, extra);
    const auto start = render(nullptr, true, extra);
    if (!whole || !start) return std::nullopt;
    // A generation prompt may open the thinking already: the part in common counts.
    const auto split = std::mismatch(whole->begin(), whole->end(), start->begin(), start->end());
    const auto common = static_cast<size_t>(split.first - whole->begin());
    const auto no_answer = render(nullptr, false, extra);
    if (no_answer && common < no_answer->size()) return std::nullopt;
    return whole->substr(common);
  }

 private:
  const ChatTemplate& template_;
  const std::string& bos_;
  const std::string& eos_;
};

Json probe_call(bool arguments_as_text, bool short_id) {
  const Json arguments = {{kProbeKey, 1}};
  const Json function = {{"name", kProbeName}, {"arguments", arguments_as_text ? Json(arguments.dump()) : arguments}};
  const Json call = {
      {"id", short_id ? "vayuprobe" : "call_0123456789vayuprobe0123"}, {"type", "function"}, {"function", function}};
  return {{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({call})}};
}

// The JSON object around position `at` of `text` that is a call of the probe: [begin, end), and where its arguments
// are.
struct FoundCall {
  size_t begin, end;
  std::string arguments_key;
};

std::optional<FoundCall> find_call(const std::string& text) {
  const size_t name = text.find(kProbeName);
  if (name == std::string::npos) return std::nullopt;
  for (size_t begin = text.rfind('{', name); begin != std::string::npos; begin = text.rfind('{', begin - 1)) {
    for (size_t end = text.find('}', name); end != std::string::npos; end = text.find('}', end + 1)) {
      const Json call = Json::parse(text.substr(begin, end + 1 - begin), nullptr, /*allow_exceptions=*/false);
      if (!call.is_object() || call.value("name", Json()) != kProbeName) continue;
      for (const auto& [key, value] : call.items()) {
        if (value.is_object() && value.contains(kProbeKey)) return FoundCall{begin, end + 1, key};
      }
    }
    if (begin == 0) break;
  }
  return std::nullopt;
}

std::optional<ToolCallFormat> format_around(std::string answer, const std::string& turn_end,
                                            const std::optional<ReasoningFormat>& reasoning) {
  if (reasoning && trimmed(answer).starts_with(reasoning->open)) {
    const size_t close = answer.find(reasoning->close);
    if (close != std::string::npos) answer.erase(0, close + reasoning->close.size());
  }
  const auto call = find_call(answer);
  if (!call) return std::nullopt;
  ToolCallFormat format;
  format.arguments_key = call->arguments_key;
  std::string_view before = trimmed(std::string_view(answer).substr(0, call->begin));
  std::string_view after = std::string_view(answer).substr(call->end);
  if (after.ends_with(turn_end)) after.remove_suffix(turn_end.size());
  after = trimmed(after);
  if (before.ends_with('[') && after.starts_with(']')) {  // a list of calls
    before = trimmed(before.substr(0, before.size() - 1));
    after = trimmed(after.substr(1));
  }
  format.open = mark_at_end(before);
  format.close = mark_at_begin(after);
  if (format.open.empty() && !before.empty()) return std::nullopt;  // words in front: no mark to look for
  if (format.open.empty()) format.close.clear();
  return format;
}

// Templates that only tell the model how to call: the same JSON written out after the mark.
bool instructs_hermes(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    for (size_t at = text.find("<tool_call>"); at != std::string::npos; at = text.find("<tool_call>", at + 1)) {
      std::string_view rest = trimmed(std::string_view(text).substr(at + std::string_view("<tool_call>").size()));
      if (rest.starts_with("\\n")) rest = trimmed(rest.substr(2));
      if (!rest.starts_with('{')) continue;
      rest = trimmed(rest.substr(1));
      if (rest.starts_with("\"name\"") || rest.starts_with("'name'") || rest.starts_with("\"arguments\"") ||
          rest.starts_with("'arguments'")) {
        return true;
      }
    }
  }
  return false;
}

void detect_tool_calls(const Prober& prober, const TemplateWords& words, ChatFormat& format) {
  const auto plain = prober.render_answer({{"role", "assistant"}, {"content", kProbeText}});
  std::string turn_end;
  if (plain && plain->find(kProbeText) != std::string::npos) {
    turn_end = plain->substr(plain->rfind(kProbeText) + std::string_view(kProbeText).size());
  }
  for (const bool short_id : {false, true}) {
    for (const bool as_text : {false, true}) {
      const auto answer = prober.render_answer(probe_call(as_text, short_id));
      if (!answer) continue;
      format.arguments_as_text = as_text;
      format.tool_calls = format_around(*answer, turn_end, format.reasoning);
      if (!format.tool_calls && instructs_hermes(words.texts)) {
        format.tool_calls = ToolCallFormat{"<tool_call>", "</tool_call>"};
      }
      if (format.tool_calls) format.tool_calls->short_ids = short_id;
      return;
    }
  }
}

void detect_reasoning(const TemplateWords& words, ChatFormat& format) {
  for (const TagPair& tags : kReasoningTags) {
    if (!mentions(words.texts, tags.close)) continue;
    format.reasoning = ReasoningFormat{std::string(tags.open), std::string(tags.close)};
    return;
  }
}

// The template's empty thinking block, where enable_thinking=false alone writes none.
std::string find_empty_thinking(const Prober& prober, const ReasoningFormat& tags) {
  const auto off = prober.render(nullptr, true, {{"enable_thinking", false}});
  if (!off || trimmed(*off).ends_with(tags.close)) return {};
  const auto answer =
      prober.render_answer({{"role", "assistant"}, {"content", kProbeText}}, {{"enable_thinking", false}});
  if (!answer || !answer->starts_with(tags.open)) return {};
  const size_t close = answer->find(tags.close, tags.open.size());
  if (close == std::string::npos) return {};
  const std::string_view inside = std::string_view(*answer).substr(tags.open.size(), close - tags.open.size());
  return trimmed(inside).empty() ? answer->substr(0, close + tags.close.size()) : std::string();
}

}  // namespace

Status check_parser_choice(const ParserChoice& choice) {
  VAYU_RETURN_IF_ERROR(check_name("--reasoning-parser", kNamedReasoning, choice.reasoning));
  return check_name("--tool-call-parser", kNamedToolCalls, choice.tool_calls);
}

ChatFormat detect_chat_format(const ChatTemplate* chat_template, const std::string& bos_token,
                              const std::string& eos_token, const ParserChoice& choice) {
  ChatFormat format;
  if (chat_template == nullptr) return format;
  const TemplateWords& words = chat_template->words();
  const Prober prober(*chat_template, bos_token, eos_token);
  detect_reasoning(words, format);
  if (holds(words.keys, "tool_calls") || mentions(words.texts, "<tool_call>")) detect_tool_calls(prober, words, format);
  for (const char* field : {"reasoning_content", "reasoning", "thinking"}) {
    if (holds(words.keys, field)) format.reasoning_fields.emplace_back(field);
  }
  if (const auto* named = find_named(kNamedReasoning, choice.reasoning)) {
    format.reasoning =
        ReasoningFormat{std::string(named->tags.open), std::string(named->tags.close), named->starts_thinking};
  }
  // The block is put in whether or not answers are parsed: it is the template's, and the request asks for it.
  if (format.reasoning) format.empty_thinking = find_empty_thinking(prober, *format.reasoning);
  if (choice.reasoning == "none") format.reasoning.reset();
  if (const auto* named = find_named(kNamedToolCalls, choice.tool_calls)) {
    const bool short_ids = format.tool_calls && format.tool_calls->short_ids;
    format.tool_calls = ToolCallFormat{std::string(named->open), std::string(named->close),
                                       std::string(named->arguments_key), short_ids};
  }
  if (choice.tool_calls == "none") format.tool_calls.reset();
  return format;
}

std::vector<TokenId> mark_tokens(const Tokenizer& tokenizer, const ChatFormat& format) {
  std::vector<TokenId> ids;
  const auto add = [&](const std::string& mark) {
    if (mark.empty()) return;
    const auto id = tokenizer.find(mark);
    if (id && tokenizer.is_special(*id)) ids.push_back(*id);
  };
  if (format.reasoning) {
    add(format.reasoning->open);
    add(format.reasoning->close);
  }
  if (format.tool_calls) {
    add(format.tool_calls->open);
    add(format.tool_calls->close);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace vayu::server
