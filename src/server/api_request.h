// Request bodies of the generating and tokenising routes, as plain structs. Everything is checked here against
// limits.h and the model's vocabulary; the engine trusts the values.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "core/request.h"
#include "server/json_guard.h"

namespace vayu::server {

// What bodies are checked against.
struct RequestRules {
  int32_t vocab_size = 0;
  int32_t max_context = 0;
  bool debug_hooks = false;  // accept `vayu_debug`
};

using PromptInput = std::variant<std::string, std::vector<TokenId>>;

// Fields of completions and chat alike.
struct GenerateOptions {
  std::string model;                  // empty: the client named none
  SamplingParams sampling;            // max_tokens is filled in once the prompt's length is known
  std::optional<int32_t> max_tokens;  // as asked; 0 only with echo
  int32_t n = 1;
  std::vector<std::string> stop;  // none empty
  bool include_stop_str = false;
  bool skip_special = true;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool return_token_ids = false;
  std::optional<bool> add_special;  // add_special_tokens
  bool include_reasoning = true;    // chat, as the three below
  bool stream_reasoning = true;     // false: a stream gives its thinking in one piece
  bool parallel_tool_calls = true;
  std::string cache_salt;
  std::vector<TokenId> forced_output;  // vayu_debug
  int32_t fail_at_token = -1;
  int32_t stall_ms = 0;
};

struct CompletionBody {
  GenerateOptions options;
  std::vector<PromptInput> prompts;  // at least one
  bool echo = false;
};

// What a chat template sees, normalised (chat_messages.h).
struct ChatInput {
  Json messages;                 // list, not empty
  Json tools;                    // list, or null
  Json kwargs = Json::object();  // chat_template_kwargs, with enable_thinking and reasoning_effort
  bool add_generation_prompt = true;
  bool continue_final = false;
};

struct ChatBody {
  GenerateOptions options;
  ChatInput input;
  bool separate_reasoning = true;  // false: thinking stays in content, tags and all
};

struct TokenizeBody {
  std::string model;
  std::optional<std::string> prompt;  // exactly one of prompt and chat
  std::optional<ChatInput> chat;
  std::optional<bool> add_special;
  bool return_token_strs = false;
};

struct DetokenizeBody {
  std::string model;
  std::vector<TokenId> tokens;
};

// Errors: kInvalidArgument with the field.
Result<CompletionBody> parse_completion(const Json& body, const RequestRules& rules);
Result<ChatBody> parse_chat(const Json& body, const RequestRules& rules);
Result<TokenizeBody> parse_tokenize(const Json& body, const RequestRules& rules);
Result<DetokenizeBody> parse_detokenize(const Json& body, const RequestRules& rules);

// max_tokens to run with: as asked (or `fallback`, or all that fits), cut to the room the context leaves. Error: the
// prompt is empty or leaves no room, with both numbers.
Result<int32_t> fit_max_tokens(int64_t prompt_tokens, std::optional<int32_t> asked, std::optional<int32_t> fallback,
                               int32_t max_context, const std::string& field);

}  // namespace vayu::server
