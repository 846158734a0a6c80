// Prompts of a benchmark: random token ids, text of an exact token count, or lines of a file. Prompt i of one seed is
// always the same.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/bench/random.h"
#include "base/result.h"

namespace vayu::bench {

struct Prompt {
  nlohmann::json content;   // token ids, a string, or (chat) a message list
  int64_t num_tokens = -1;  // as the server's usage should count them; -1: not known
};

class PromptSource {
 public:
  virtual ~PromptSource() = default;
  virtual Prompt prompt(int64_t index) const = 0;
};

// Ids drawn from [first_id, end_id), made on demand.
struct RandomIdOptions {
  int32_t length = 512;
  int32_t shared_prefix_length = 0;  // at most length: ids at the front that all prompts share
  int32_t first_id = 1000;           // keeps clear of the special and byte tokens at the start of most vocabularies
  int32_t end_id = 30000;            // inside every vocabulary of 32,000 and more
  uint64_t seed = 0;
};
std::unique_ptr<PromptSource> make_random_ids(const RandomIdOptions& options);

// How many tokens the server makes of a text (with whatever its template adds).
using TokenCounter = std::function<Result<int64_t>(const std::string& text)>;

// Common English words until `counter` says exactly `length`; `prefix` comes first. kInvalidArgument when it cannot be
// reached, for instance because the template alone is longer.
Result<std::string> make_exact_text(const std::string& prefix, int64_t length, Random& random,
                                    const TokenCounter& counter);

// Text prompts made in advance; as one user message each when `chat`.
Result<std::unique_ptr<PromptSource>> make_exact_texts(int64_t count, int64_t length, int64_t shared_prefix_length,
                                                       bool chat, uint64_t seed, const TokenCounter& counter);

// One prompt a line: plain text, or JSON objects with "prompt" (string or ids) or "messages" (in a file whose first
// line starts with '{'). Fewer lines than requests: they repeat. Empty lines are skipped.
Result<std::unique_ptr<PromptSource>> parse_prompt_lines(const std::string& text, bool chat);
Result<std::unique_ptr<PromptSource>> read_prompt_file(const std::string& path, bool chat);

}  // namespace vayu::bench
