// The definition of sample, step by step as sample.h lists it: sorts the whole vocabulary, computes in double.
// Order of likelihood is (modified logit descending, id ascending) throughout. A logit_bias of +100 or more leaves only
// the ids so marked as candidates, at their own logits.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/sampling/sample.h"

namespace vayu::ops {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

bool is_usable(std::span<const float> logits) {
  bool any_finite = false;
  for (float l : logits) {
    if (std::isnan(l) || l == kInf) return false;
    any_finite |= l != -kInf;
  }
  return any_finite;
}

// Ids by descending value, lower id first on a tie.
std::vector<TokenId> sorted_ids(std::span<const float> values) {
  std::vector<TokenId> ids(values.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](TokenId a, TokenId b) { return values[a] > values[b]; });
  return ids;
}

void report_logprobs(std::span<const float> logits, int num_top, SampleResult& result) {
  const float max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float l : logits) sum += std::exp(double{l} - max);
  const double log_sum = max + std::log(sum);
  result.logprob = static_cast<float>(logits[result.token] - log_sum);
  const std::vector<TokenId> ids = sorted_ids(logits);
  for (int i = 0; i < std::min<int>({num_top, kMaxTopLogprobs, static_cast<int>(ids.size())}); ++i) {
    if (logits[ids[i]] == -kInf) break;  // impossible tokens are not listed
    result.top[result.num_top++] = {ids[i], static_cast<float>(logits[ids[i]] - log_sum)};
  }
}

void apply_penalties(const SampleTask& task, std::vector<float>& logits) {
  const SamplingParams& params = *task.params;
  std::vector<int> output_count(logits.size());
  std::vector<bool> seen(logits.size());
  for (size_t i = 0; i < task.tokens.size(); ++i) {
    const TokenId id = task.tokens[i];
    if (id < 0 || id >= static_cast<int64_t>(logits.size())) continue;
    seen[id] = true;
    if (i >= static_cast<size_t>(task.prompt_len)) ++output_count[id];
  }
  for (size_t id = 0; id < logits.size(); ++id) {
    float& l = logits[id];
    if (seen[id]) l = l > 0 ? l / params.repetition_penalty : l * params.repetition_penalty;
    if (output_count[id] > 0) l -= output_count[id] * params.frequency_penalty + params.presence_penalty;
    l = std::min(l, std::numeric_limits<float>::max());
  }
}

void apply_bias_and_bans(const SampleTask& task, std::vector<float>& logits) {
  std::vector<float> winners(logits.size(), -kInf);
  for (auto [id, bias] : task.params->logit_bias) {
    if (id < 0 || id >= static_cast<int64_t>(logits.size())) continue;
    if (bias >= 100) winners[id] = logits[id];
    logits[id] = bias <= -100 ? -kInf : bias >= 100 ? logits[id] : logits[id] + bias;
  }
  for (TokenId id : task.banned) {
    if (id >= 0 && id < static_cast<int64_t>(logits.size())) logits[id] = winners[id] = -kInf;
  }
  if (std::any_of(winners.begin(), winners.end(), [](float l) { return l != -kInf; })) logits = winners;
}

TokenId draw(const SampleTask& task, std::span<const float> logits, std::span<const TokenId> ids) {
  const SamplingParams& params = *task.params;
  if (params.temperature == 0 || params.top_k == 1 || params.top_p <= 0) return ids[0];
  size_t count = params.top_k > 0 ? std::min<size_t>(params.top_k, ids.size()) : ids.size();
  std::vector<double> p(count);  // softmax, times the sum of it
  for (size_t i = 0; i < count; ++i) p[i] = std::exp((double{logits[ids[i]]} - logits[ids[0]]) / params.temperature);
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  while (p[count - 1] < params.min_p || p[count - 1] == 0) --count;
  double kept = 0;
  for (size_t i = 0; i < count; ++i) {
    kept += p[i];
    if (params.top_p < 1 && kept >= params.top_p * sum) count = i + 1;
  }
  const double target = counter_uniform(task.seed, task.output_index) * kept;
  double cumulative = 0;
  for (size_t i = 0; i < count; ++i) {
    cumulative += p[i];
    if (cumulative > target) return ids[i];
  }
  return ids[count - 1];
}

SampleResult run_task(const SampleTask& task, std::span<const float> logits) {
  SampleResult result;
  result.finite = !task.poison && is_usable(logits);
  if (!result.finite) return result;
  if (task.target >= 0) {
    result.token = task.target;
    report_logprobs(logits, task.params->prompt_logprobs, result);
    return result;
  }
  if (task.forced >= 0) {
    result.token = task.forced;
  } else {
    std::vector<float> modified(logits.begin(), logits.end());
    apply_penalties(task, modified);
    apply_bias_and_bans(task, modified);
    const std::vector<TokenId> ids = sorted_ids(modified);
    result.finite = modified[ids[0]] != -kInf;
    if (!result.finite) return result;
    result.token = draw(task, modified, ids);
  }
  if (task.params->logprobs >= 0) report_logprobs(logits, task.params->logprobs, result);
  return result;
}

}  // namespace

void sample_ref(const SampleArgs& args) {
  for (int64_t i = 0; i < args.num_samples; ++i) {
    args.results[i] =
        run_task(args.tasks[i], {args.logits + i * args.vocab_size, static_cast<size_t>(args.vocab_size)});
  }
}

}  // namespace vayu::ops
