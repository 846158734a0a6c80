// What a model's chat template shows of the way its answers are written: thinking between tags, tool calls between
// marks. Found by reading the template and by rendering small probes with it, so a syntax that the template neither
// reads nor writes is not looked for in answers.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace vayu::server {

struct ReasoningFormat {
  std::string open;              // <think>
  std::string close;             // </think>
  bool starts_thinking = false;  // answers begin inside the tags although the prompt does not open them
};

// A call is JSON between two marks: {"name": text, <arguments_key>: object}, or a list of those.
struct ToolCallFormat {
  std::string open;   // <tool_call>; empty: the whole answer is the call, and only declared names count
  std::string close;  // </tool_call>; may be empty: the JSON ends by itself
  std::string arguments_key = "arguments";
  bool short_ids = false;  // the template takes ids of nine characters only
};

struct ChatFormat {
  std::optional<ReasoningFormat> reasoning;
  std::optional<ToolCallFormat> tool_calls;
  // What the template writes in front of an answer that was not thought about (<think></think>), where its generation
  // prompt with enable_thinking=false has nothing of the kind: put there to keep the model from thinking. Else empty.
  std::string empty_thinking;
  // Message fields the template reads earlier reasoning from, and whether it wants tool-call arguments as JSON text.
  std::vector<std::string> reasoning_fields;
  bool arguments_as_text = false;
};

// Values of --reasoning-parser and --tool-call-parser: "auto" (from the template), "none", or a format by name.
struct ParserChoice {
  std::string reasoning = "auto";
  std::string tool_calls = "auto";
};

// kInvalidArgument naming the flag, with the names it takes.
Status check_parser_choice(const ParserChoice& choice);

// The template may be null; texts of special tokens are what it is given as bos_token and eos_token.
ChatFormat detect_chat_format(const ChatTemplate* chat_template, const std::string& bos_token,
                              const std::string& eos_token, const ParserChoice& choice);

// Special tokens of the vocabulary whose text the format looks for: they must stay visible in answers. Sorted.
std::vector<TokenId> mark_tokens(const Tokenizer& tokenizer, const ChatFormat& format);

}  // namespace vayu::server
