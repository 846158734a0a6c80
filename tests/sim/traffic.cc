#include "traffic.h"

#include <algorithm>

namespace vayu {

Episode Traffic::make_episode() {
  Episode e;
  const int32_t page_size = pick({1, 16, 64});
  const int32_t pool_tokens = uniform(2, 8) * pick({64, 128});
  e.limits = {.vocab_size = pick({40, 1000}),
              .page_size = page_size,
              .num_pages = std::max(2, pool_tokens / page_size),
              .max_step_tokens = pick({1, 7, 32, 128, 512}),
              .max_rows = uniform(1, 24),
              .max_context = uniform(30, 400)};
  e.config = make_config(e.limits.vocab_size);
  e.model = {.seed = static_cast<uint64_t>(uniform(1, 1 << 30)), .end_ids = e.config.end_ids};
  e.model.end_one_in = pick({0u, 10u, 60u});
  e.model.non_finite_one_in = pick({0u, 0u, 300u, 2000u});
  e.arrivals_until_step = uniform(100, 900);
  e.arrivals_per_step = pick({0.02, 0.1, 0.4, 1.5});
  e.cancels_per_step = pick({0.0, 0.02, 0.2});
  e.priorities = chance(0.3);
  e.deadlines = chance(0.3);
  prefixes_.clear();
  for (int32_t i = 0; i < 6; ++i) {
    // Half of them branch off an earlier one, anywhere.
    std::vector<TokenId> prefix;
    if (i > 0 && chance(0.5)) {
      prefix = prefixes_[uniform(0, i - 1)];
      prefix.resize(uniform(0, static_cast<int32_t>(prefix.size())));
    }
    const int32_t target = uniform(1, pool_tokens);
    while (static_cast<int32_t>(prefix.size()) < target) prefix.push_back(uniform(0, e.limits.vocab_size - 1));
    prefixes_.push_back(std::move(prefix));
  }
  return e;
}

SchedulerConfig Traffic::make_config(int32_t vocab_size) {
  SchedulerConfig config;
  config.policy = pick(
      {SchedulerPolicy::kMixed, SchedulerPolicy::kMixed, SchedulerPolicy::kFixedChunk, SchedulerPolicy::kPrefillFirst});
  config.end_ids = {uniform(0, vocab_size / 2 - 1), uniform(vocab_size / 2, vocab_size - 1)};
  config.max_num_batched_tokens = uniform(1, 200);
  config.chunked_prefill_size = pick({1, 16, 17, 512});
  config.max_num_seqs = uniform(1, 20);
  config.max_queued = pick({3, 60});
  config.max_long_prefills = uniform(1, 5);
  config.max_logits_per_step = uniform(1, 40);
  config.admit_headroom_tokens = pick({0, 0, 8, 32});
  config.max_overtake_us = pick({0, 5'000, 50'000});
  config.max_share_wait_us = pick({0, 20'000, 2'000'000});
  config.prefix_cache = !chance(0.1);
  config.overlap = chance(0.5);
  config.tree.hash_bits = pick({0, 3, 64, 64});
  return config;
}

int32_t Traffic::arrivals(const Episode& episode) {
  return std::poisson_distribution<int32_t>(episode.arrivals_per_step)(random_);
}

std::vector<TokenId> Traffic::make_prompt(const Episode& episode, int32_t max_len) {
  std::vector<TokenId> prompt = prefixes_[uniform(0, static_cast<int32_t>(prefixes_.size()) - 1)];
  const int32_t page_size = episode.limits.page_size;
  int32_t keep = uniform(0, static_cast<int32_t>(prompt.size()));
  if (chance(0.3)) keep = keep / page_size * page_size + uniform(-1, 1);  // at, one short of and one over a page edge
  prompt.resize(std::clamp<int32_t>(keep, 0, static_cast<int32_t>(prompt.size())));
  for (int32_t more = chance(0.6) ? uniform(1, 12) : 0; more > 0; --more) {
    prompt.push_back(uniform(0, episode.limits.vocab_size - 1));
  }
  if (prompt.empty()) prompt.push_back(0);
  if (static_cast<int32_t>(prompt.size()) > max_len && !chance(0.05)) prompt.resize(max_len);
  return prompt;
}

void Traffic::make_sampling(SamplingParams& params, const Episode& episode) {
  params.temperature = chance(0.5) ? 0.0f : 0.7f;
  params.seed = static_cast<uint64_t>(uniform(0, 1000));
  params.max_tokens = chance(0.1) ? uniform(1, 500) : uniform(1, 40);
  params.min_tokens = chance(0.2) ? uniform(1, 20) : 0;
  params.ignore_eos = chance(0.2);
  if (chance(0.2)) params.repetition_penalty = 1.2f;
  if (chance(0.2)) params.logprobs = uniform(0, 5);
  if (chance(0.15)) params.prompt_logprobs = uniform(0, 3);
  if (chance(0.2)) params.stop_token_ids = {uniform(0, episode.limits.vocab_size - 1)};
}

Request Traffic::make_request(const Episode& episode, RequestId id, int64_t now_us) {
  Request request;
  request.id = id;
  const int32_t fits = std::min(episode.limits.max_context, episode.limits.num_pages * episode.limits.page_size) - 1;
  request.prompt = make_prompt(episode, std::max(1, fits));
  make_sampling(request.sampling, episode);
  request.n = chance(0.15) ? uniform(2, 5) : 1;
  request.arrival_us = now_us;
  if (episode.priorities) request.priority = uniform(0, 2);
  if (episode.deadlines && chance(0.3)) request.deadline_us = now_us + uniform(1, 200'000);
  if (chance(0.2)) request.cache_namespace = "tenant";
  for (int32_t more = chance(0.1) ? uniform(1, 8) : 0; more > 0; --more) {
    request.forced_output.push_back(uniform(0, episode.limits.vocab_size - 1));
  }
  if (chance(0.05)) request.fail_at_token = uniform(0, 10);
  return request;
}

}  // namespace vayu
