// JSON of answers, in OpenAI's shapes with vLLM's additions (stop_reason, token_ids, prompt_token_ids).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/request.h"
#include "server/json_guard.h"
#include "tokenizer/tokenizer.h"

namespace vayu::server {

struct ResponseHead {
  bool chat = false;
  std::string id;
  int64_t created_s = 0;
  std::string model;
};

// One answer, or what is new of it in a stream.
struct ChoicePart {
  int32_t index = 0;
  std::string text;
  std::string reasoning;                // chat
  Json tool_calls;                      // chat: a list, or null
  bool thinking = false;                // the answer goes on with thinking: an event without text is not one of content
  std::span<const OutputToken> tokens;  // for log-probabilities and ids
  std::span<const OutputToken> prompt_tokens;  // echoed, with log-probabilities; completions only
  int64_t text_offset = 0;                     // characters of this answer sent before; completions log-probabilities
  std::string_view finish_reason;              // empty: not ended
  Json stop_reason;                            // null, the stop string, or the stop token's id
  bool first = false;                          // first part of a stream: the chat delta names the role
};

struct ChoiceFormat {
  bool logprobs = false;
  bool token_ids = false;
  bool reasoning = false;  // the model thinks: whole messages always tell of it
  const Tokenizer* tokenizer = nullptr;
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t reasoning_tokens = -1;  // of the completion; -1: not a model that thinks
};

// Top level of a response or stream chunk without its choices.
Json response_top(const ResponseHead& head, bool chunk);
Json choice_json(const ResponseHead& head, const ChoiceFormat& format, const ChoicePart& part, bool chunk);
Json usage_json(const Usage& usage);
Json tool_call_json(const std::string& id, const std::string& name, const std::string& arguments);

// Text of one token as log-probabilities name it: itself, or bytes:\xE0\xA4 where it is not whole characters.
std::string token_name(const Tokenizer& tokenizer, TokenId id);
// Characters (code points) of valid UTF-8.
int64_t count_characters(std::string_view text);

}  // namespace vayu::server
