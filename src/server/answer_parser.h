// Cuts the text of one answer into thinking, content and tool calls. Text may arrive in any pieces: the result is the
// same, so streams and non-streams cannot differ.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/chat_format.h"

namespace vayu::server {

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON text of an object, as the model wrote it
};

struct AnswerPiece {
  enum Kind { kReasoning, kContent, kToolCall } kind = kContent;
  std::string text;  // of kReasoning and kContent
  ToolCall call;     // of kToolCall; always a whole call
};
using AnswerPieces = std::vector<AnswerPiece>;

// How an answer is read. Default: all of it is content.
struct AnswerParserOptions {
  std::optional<ReasoningFormat> reasoning;  // starts_thinking: the answer begins inside the tags
  bool after_thinking = false;               // the prompt ends with a closed thinking block
  std::optional<ToolCallFormat> tool_calls;
  std::vector<std::string> tool_names;  // declared by the request, sorted
};

// Thinking is what stands between the tags, without white space at its ends; white space after the closing tag is
// dropped. A tag opens a block wherever it stands in content, unless a quote or backtick stands right before it.
// A closing tag with nothing before it is dropped, any other that closes nothing is content.
class ReasoningSplitter {
 public:
  ReasoningSplitter(ReasoningFormat format, bool after_thinking);
  void push(std::string_view text, AnswerPieces* out);
  // `cut`: the answer ended at its token limit, so that what may be the beginning of a tag is one.
  void finish(bool cut, AnswerPieces* out);
  bool thinking() const { return state_ == State::kThinking; }
  bool undecided() const { return !thinking() && !held_.empty(); }

 private:
  enum class State { kStart, kThinking, kAfter, kContent };  // kStart, kAfter: white space only so far
  bool step(AnswerPieces* out);                              // consumes something of held_; false: more text is needed
  bool step_thinking(AnswerPieces* out);
  bool step_blank(AnswerPieces* out);
  bool step_content(AnswerPieces* out);
  void emit(AnswerPiece::Kind kind, std::string_view text, AnswerPieces* out);

  const ReasoningFormat format_;
  State state_;
  bool thought_begun_ = false;  // the open block has text
  bool had_thought_ = false;    // an earlier block had text: the next is set apart from it
  char previous_ = '\n';        // last byte of content sent
  std::string space_;           // white space of the open block, kept back until text follows
  std::string held_;
};

// Looks for calls in content. Text that is not a whole, valid call stays content, byte for byte; white space before a
// call is dropped, and after it too where no content came first.
class ToolCallParser {
 public:
  ToolCallParser(ToolCallFormat format, std::vector<std::string> tool_names);
  void push(std::string_view text, AnswerPieces* out);
  void finish(AnswerPieces* out);

 private:
  enum class State { kText, kJson, kClose };
  enum class Scan { kMore, kWhole, kBad };
  bool step(AnswerPieces* out);
  bool step_text(AnswerPieces* out);
  bool step_json(AnswerPieces* out);
  bool step_close(AnswerPieces* out);
  Scan scan();
  bool parse_calls(std::string_view json);
  void give_up(AnswerPieces* out);
  void emit_calls(AnswerPieces* out);
  void content(std::string_view text, AnswerPieces* out);

  const ToolCallFormat format_;
  const std::vector<std::string> tool_names_;
  State state_ = State::kText;
  std::string held_;       // text not yet sent; in kJson and kClose it begins with the opening mark
  size_t scanned_ = 0;     // of held_, by scan()
  size_t json_begin_ = 0;  // in held_
  std::string brackets_;   // open ones
  bool in_string_ = false, escaped_ = false;
  bool plain_ = false;  // without an opening mark: no call can begin any more
  bool sent_content_ = false;
  bool called_ = false;
  std::string space_;            // white space kept back until text or a call follows
  std::vector<ToolCall> calls_;  // whole, waiting for the closing mark
};

class AnswerParser {
 public:
  explicit AnswerParser(const AnswerParserOptions& options);
  AnswerPieces push(std::string_view text) { return run(text, false, false); }
  AnswerPieces finish(std::string_view text, bool cut) { return run(text, true, cut); }

  bool thinking() const { return reasoning_ && reasoning_->thinking(); }
  // Call once for each token, after its text was pushed: counts those of the thinking, tags included.
  void count_token();
  int32_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  AnswerPieces run(std::string_view text, bool last, bool cut);

  std::optional<ReasoningSplitter> reasoning_;
  std::optional<ToolCallParser> tool_calls_;
  bool was_thinking_ = false;
  int32_t undecided_tokens_ = 0;  // of text that may become an opening tag
  int32_t reasoning_tokens_ = 0;
};

}  // namespace vayu::server
