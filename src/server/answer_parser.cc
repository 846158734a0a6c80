#include "server/answer_parser.h"

#include <algorithm>

#include "server/text_scan.h"

namespace vayu::server {

ReasoningSplitter::ReasoningSplitter(ReasoningFormat format, bool after_thinking)
    : format_(std::move(format)),
      state_(format_.starts_thinking ? State::kThinking
             : after_thinking        ? State::kAfter
                                     : State::kStart) {}

void ReasoningSplitter::emit(AnswerPiece::Kind kind, std::string_view text, AnswerPieces* out) {
  if (text.empty()) return;
  if (kind == AnswerPiece::kContent) previous_ = text.back();
  if (!out->empty() && out->back().kind == kind) {
    out->back().text += text;
  } else {
    out->push_back({kind, std::string(text), {}});
  }
}

void ReasoningSplitter::push(std::string_view text, AnswerPieces* out) {
  held_ += text;
  while (step(out)) {
  }
}

bool ReasoningSplitter::step(AnswerPieces* out) {
  if (held_.empty()) return false;
  if (state_ == State::kThinking) return step_thinking(out);
  return state_ == State::kContent ? step_content(out) : step_blank(out);
}

bool ReasoningSplitter::step_thinking(AnswerPieces* out) {
  if (!thought_begun_) {
    held_.erase(0, leading_space(held_));
    if (held_.starts_with(format_.open)) {  // a model may open again what the prompt has opened
      held_.erase(0, format_.open.size());
      return true;
    }
    if (held_.empty() || is_proper_prefix(held_, format_.open)) return false;
  }
  const size_t close = held_.find(format_.close);
  const size_t end = close != std::string::npos ? close : held_.size() - partial_suffix(held_, format_.close);
  const size_t text_end = held_.find_last_not_of(kBlank, end == 0 ? 0 : end - 1);
  if (end > 0 && text_end != std::string::npos) {
    if (!thought_begun_ && had_thought_) emit(AnswerPiece::kReasoning, "\n\n", out);
    thought_begun_ = true;
    emit(AnswerPiece::kReasoning, space_ + held_.substr(0, text_end + 1), out);
    space_ = held_.substr(text_end + 1, end - text_end - 1);
  } else if (thought_begun_) {
    space_ += held_.substr(0, end);
  }
  held_.erase(0, end);
  if (close == std::string::npos) return false;
  held_.erase(0, format_.close.size());
  had_thought_ |= thought_begun_;
  thought_begun_ = false;
  space_.clear();
  state_ = previous_ == '\n' ? State::kAfter : State::kContent;
  return true;
}

// Nothing but white space so far. Before any thinking it is kept, for it is content when no tag follows.
bool ReasoningSplitter::step_blank(AnswerPieces* out) {
  if (state_ == State::kAfter) held_.erase(0, leading_space(held_));
  const std::string_view rest = std::string_view(held_).substr(leading_space(held_));
  for (const std::string* tag : {&format_.open, &format_.close}) {
    if (!rest.starts_with(*tag)) continue;
    held_.erase(0, held_.size() - rest.size() + tag->size());
    state_ = tag == &format_.open ? State::kThinking : State::kAfter;
    return true;
  }
  if (rest.empty() || is_proper_prefix(rest, format_.open) || is_proper_prefix(rest, format_.close)) return false;
  state_ = State::kContent;
  return step_content(out);
}

bool ReasoningSplitter::step_content(AnswerPieces* out) {
  for (size_t from = 0;;) {
    const size_t open = held_.find(format_.open, from);
    if (open == std::string::npos) break;
    const char before = open > 0 ? held_[open - 1] : previous_;
    if (before == '`' || before == '"' || before == '\'') {  // talks about the tag
      from = open + format_.open.size();
      continue;
    }
    emit(AnswerPiece::kContent, std::string_view(held_).substr(0, open), out);
    held_.erase(0, open + format_.open.size());
    state_ = State::kThinking;
    return true;
  }
  const size_t end = held_.size() - partial_suffix(held_, format_.open);
  emit(AnswerPiece::kContent, std::string_view(held_).substr(0, end), out);
  held_.erase(0, end);
  return false;
}

void ReasoningSplitter::finish(bool cut, AnswerPieces* out) {
  const bool part_of_tag = cut && state_ != State::kContent && leading_space(held_) < held_.size();
  if (!part_of_tag && !held_.empty()) {
    emit(thinking() ? AnswerPiece::kReasoning : AnswerPiece::kContent, space_ + held_, out);
  }
  held_.clear();
}

AnswerParser::AnswerParser(const AnswerParserOptions& options) {
  if (options.reasoning) reasoning_.emplace(*options.reasoning, options.after_thinking);
  if (options.tool_calls) tool_calls_.emplace(*options.tool_calls, options.tool_names);
  was_thinking_ = thinking();
}

AnswerPieces AnswerParser::run(std::string_view text, bool last, bool cut) {
  AnswerPieces split;
  if (reasoning_) {
    reasoning_->push(text, &split);
    if (last) reasoning_->finish(cut, &split);
  } else if (!text.empty()) {
    split.push_back({AnswerPiece::kContent, std::string(text), {}});
  }
  if (!tool_calls_) return split;
  AnswerPieces pieces;
  for (AnswerPiece& piece : split) {
    if (piece.kind == AnswerPiece::kContent) {
      tool_calls_->push(piece.text, &pieces);
    } else {
      pieces.push_back(std::move(piece));
    }
  }
  if (last) tool_calls_->finish(&pieces);
  return pieces;
}

void AnswerParser::count_token() {
  if (!reasoning_) return;
  const bool now = thinking();
  if (was_thinking_ || now) {
    reasoning_tokens_ += 1 + undecided_tokens_;
    undecided_tokens_ = 0;
  } else {
    undecided_tokens_ = reasoning_->undecided() ? undecided_tokens_ + 1 : 0;
  }
  was_thinking_ = now;
}

}  // namespace vayu::server
