#include "server/response_json.h"

#include <algorithm>
#include <cmath>

namespace vayu::server {
namespace {

// JSON has no minus infinity; clients know this value for a banned token.
constexpr double kLogprobFloor = -9999.0;

Json logprob_json(float logprob) {
  if (std::isnan(logprob)) return nullptr;
  return std::max(static_cast<double>(logprob), kLogprobFloor);
}

bool is_valid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t length = lead < 0x80                   ? 1
                          : lead >= 0xc2 && lead < 0xe0 ? 2
                          : lead >= 0xe0 && lead < 0xf0 ? 3
                          : lead >= 0xf0 && lead < 0xf5 ? 4
                                                        : 0;
    if (length == 0 || i + length > text.size()) return false;
    const auto second = length > 1 ? static_cast<unsigned char>(text[i + 1]) : 0x80;
    // Overlong forms, surrogates and values past U+10FFFF show in the second byte.
    if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) || (lead == 0xf0 && second < 0x90) ||
        (lead == 0xf4 && second > 0x8f)) {
      return false;
    }
    for (size_t k = 1; k < length; ++k) {
      if ((static_cast<unsigned char>(text[i + k]) & 0xc0) != 0x80) return false;
    }
    i += length;
  }
  return true;
}

Json chat_token(const Tokenizer& tokenizer, TokenId id, float logprob) {
  Json entry;
  entry["token"] = token_name(tokenizer, id);
  entry["logprob"] = logprob_json(logprob);
  Json& bytes = entry["bytes"] = Json::array();
  for (const char c : tokenizer.token_bytes(id)) bytes.push_back(static_cast<unsigned char>(c));
  return entry;
}

Json chat_logprobs(const Tokenizer& tokenizer, std::span<const OutputToken> tokens) {
  Json content = Json::array();
  for (const OutputToken& token : tokens) {
    Json entry = chat_token(tokenizer, token.token, token.logprob);
    Json& top = entry["top_logprobs"] = Json::array();
    for (const TokenLogprob& other : token.top) top.push_back(chat_token(tokenizer, other.token, other.logprob));
    content.push_back(std::move(entry));
  }
  Json result;
  result["content"] = std::move(content);
  return result;
}

Json completion_logprobs(const Tokenizer& tokenizer, const ChoicePart& part) {
  Json tokens = Json::array();
  Json logprobs = Json::array();
  Json tops = Json::array();
  Json offsets = Json::array();
  int64_t offset = part.text_offset;
  for (const auto list : {part.prompt_tokens, part.tokens}) {
    for (const OutputToken& token : list) {
      std::string name = token_name(tokenizer, token.token);
      offsets.push_back(offset);
      offset += count_characters(name);
      logprobs.push_back(logprob_json(token.logprob));
      Json top;
      if (!std::isnan(token.logprob)) {
        top[name] = logprob_json(token.logprob);
        for (const TokenLogprob& other : token.top)
          top[token_name(tokenizer, other.token)] = logprob_json(other.logprob);
      }
      tops.push_back(std::move(top));
      tokens.push_back(std::move(name));
    }
  }
  Json result;
  result["tokens"] = std::move(tokens);
  result["token_logprobs"] = std::move(logprobs);
  result["top_logprobs"] = std::move(tops);
  result["text_offset"] = std::move(offsets);
  return result;
}

void add_reasoning(Json& message, const Json& reasoning) {
  message["reasoning_content"] = reasoning;
  message["reasoning"] = reasoning;  // vLLM's newer name
}

Json message_json(const ChoiceFormat& format, const ChoicePart& part) {
  Json message = {{"role", "assistant"}};
  message["content"] = part.text.empty() && !part.tool_calls.is_null() ? Json(nullptr) : Json(part.text);
  if (format.reasoning) add_reasoning(message, part.reasoning.empty() ? Json(nullptr) : Json(part.reasoning));
  if (!part.tool_calls.is_null()) message["tool_calls"] = part.tool_calls;
  return message;
}

Json delta_json(const ChoicePart& part) {
  Json delta = Json::object();
  if (part.first) delta["role"] = "assistant";
  if (!part.reasoning.empty()) add_reasoning(delta, part.reasoning);
  if (!part.text.empty()) delta["content"] = part.text;
  if (!part.tool_calls.is_null()) delta["tool_calls"] = part.tool_calls;
  const bool silent = part.reasoning.empty() && part.text.empty() && part.tool_calls.is_null();
  // The extra chunk that only ends a stream has an empty delta.
  if (silent && part.finish_reason.empty() && part.thinking) {
    delta["reasoning_content"] = "";
  } else if (silent && (part.first || part.finish_reason.empty())) {
    delta["content"] = "";
  }
  return delta;
}

}  // namespace

std::string token_name(const Tokenizer& tokenizer, TokenId id) {
  const std::string_view bytes = tokenizer.token_bytes(id);
  if (is_valid_utf8(bytes)) return std::string(bytes);
  std::string name = "bytes:";
  for (const char c : bytes) name += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return name;
}

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

Json response_top(const ResponseHead& head, bool chunk) {
  Json top;
  top["id"] = head.id;
  top["object"] = !head.chat ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion";
  top["created"] = head.created_s;
  top["model"] = head.model;
  top["choices"] = Json::array();
  return top;
}

Json choice_json(const ResponseHead& head, const ChoiceFormat& format, const ChoicePart& part, bool chunk) {
  Json choice;
  choice["index"] = part.index;
  if (!head.chat) {
    choice["text"] = part.text;
  } else {
    choice[chunk ? "delta" : "message"] = chunk ? delta_json(part) : message_json(format, part);
  }
  Json& logprobs = choice["logprobs"] = nullptr;
  if (format.logprobs && !(chunk && part.tokens.empty() && part.prompt_tokens.empty())) {
    logprobs = head.chat ? chat_logprobs(*format.tokenizer, part.tokens) : completion_logprobs(*format.tokenizer, part);
  }
  choice["finish_reason"] = part.finish_reason.empty() ? Json(nullptr) : Json(part.finish_reason);
  if (!chunk || !part.finish_reason.empty()) choice["stop_reason"] = part.stop_reason;
  if (format.token_ids) {
    Json& ids = choice["token_ids"] = Json::array();
    for (const OutputToken& token : part.tokens) ids.push_back(token.token);
  }
  return choice;
}

Json usage_json(const Usage& usage) {
  Json json;
  json["prompt_tokens"] = usage.prompt_tokens;
  json["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  json["completion_tokens"] = usage.completion_tokens;
  json["prompt_tokens_details"]["cached_tokens"] = usage.cached_tokens;
  if (usage.reasoning_tokens >= 0) {
    json["completion_tokens_details"]["reasoning_tokens"] = usage.reasoning_tokens;
  }
  return json;
}

Json tool_call_json(const std::string& id, const std::string& name, const std::string& arguments) {
  Json call = {{"id", id}, {"type", "function"}};
  call["function"] = {{"name", name}, {"arguments", arguments}};
  return call;
}

}  // namespace vayu::server
