// A request as the engine sees it: token ids in, token ids out. Text (templates, stop strings) is the server's
// business.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/types.h"

namespace vayu {

// All values are checked at the border (server/); the engine trusts them.
struct SamplingParams {
  float temperature = 1.0f;                           // 0 is argmax
  float top_p = 1.0f;                                 // 0 is argmax
  int32_t top_k = 0;                                  // 0 is off
  float min_p = 0.0f;                                 // 0 is off
  float repetition_penalty = 1.0f;                    // over prompt and output tokens
  float presence_penalty = 0.0f;                      // over output tokens only
  float frequency_penalty = 0.0f;                     // over output tokens only
  std::vector<std::pair<TokenId, float>> logit_bias;  // sorted by token; +-100 forces or bans
  uint64_t seed = 0;                                  // chosen at random by the border when the client gives none
  int32_t max_tokens = 16;                            // >= 1
  int32_t min_tokens = 0;                             // end ids are banned until that many tokens are out
  bool ignore_eos = false;
  std::vector<TokenId> stop_token_ids;  // sorted
  int32_t logprobs = -1;                // -1: none; k >= 0: the token's log-probability and the k most likely (k <= 20)
  int32_t prompt_logprobs = -1;         // the same for every prompt token (echo)
};

struct Request {
  RequestId id = 0;
  std::vector<TokenId> prompt;  // at least one token
  SamplingParams sampling;
  int32_t n = 1;                       // answers, sampled with seed, seed + 1, ...
  int64_t arrival_us = 0;              // Clock time
  int64_t deadline_us = 0;             // 0: none; past it a request that has not started is failed
  int32_t priority = 0;                // lower runs first
  std::string cache_namespace;         // only requests of one namespace share KV pages (tenant label set by the server)
  std::vector<TokenId> forced_output;  // debug hook: these ids are "sampled" in turn, then the real sampler goes on
  int32_t fail_at_token = -1;          // debug hook: poison the logits of this output token with NaN
  int32_t stall_ms = 0;                // debug hook: the engine thread sleeps that long when it takes the request
};

enum class FinishReason { kStop, kLength, kCancelled, kError };
std::string_view to_string(FinishReason reason);

struct TokenLogprob {
  TokenId token = kNoToken;
  float logprob = 0;
};

constexpr int kMaxTopLogprobs = 20;

struct OutputToken {
  TokenId token = kNoToken;
  float logprob = 0;              // when SamplingParams::logprobs >= 0
  std::vector<TokenLogprob> top;  // most likely first
};

}  // namespace vayu
