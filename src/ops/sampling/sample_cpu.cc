// The sampler without a full sort: vector passes over the row (sample_passes.h) leave few candidates, and only those
// are ordered, by partitioning on probability mass. Equal to sample_ref.cc up to the rounding of float exponentials.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <functional>
#include <limits>
#include <span>

#include "ops/cpu/thread_pool.h"
#include "ops/sampling/sample.h"
#include "ops/sampling/sample_passes.h"

namespace vayu::ops {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// One worker's share of the scratch.
struct Workspace {
  int64_t vocab_size;
  uint64_t* keys;   // (vocab_size) candidates
  float* logits;    // (vocab_size) after penalties, bias and bans
  float* weights;   // (vocab_size) exp((logit - max) / temperature)
  int32_t* counts;  // (vocab_size) only the entries of tokens seen are valid
  float* maxima;    // (max_maxima)

  static int64_t bytes(int64_t vocab_size) {
    return (vocab_size * static_cast<int64_t>(sizeof(uint64_t) + 3 * sizeof(float)) +
            max_maxima(vocab_size) * static_cast<int64_t>(sizeof(float)) + 63) /
           64 * 64;
  }
  Workspace(void* scratch, int64_t vocab_size) : vocab_size(vocab_size) {
    keys = static_cast<uint64_t*>(scratch);
    logits = reinterpret_cast<float*>(keys + vocab_size);
    weights = logits + vocab_size;
    counts = reinterpret_cast<int32_t*>(weights + vocab_size);
    maxima = reinterpret_cast<float*>(counts + vocab_size);
  }
  bool holds(TokenId id) const { return id >= 0 && id < vocab_size; }
};

// Candidates that include the k largest of `logits`: most often hardly more than k.
int64_t collect_largest(const Workspace& ws, const float* logits, const LogitScan& scan, int64_t k) {
  float bound = -FLT_MAX;  // -inf is never a candidate
  if (k < scan.num_maxima) {
    std::nth_element(ws.maxima, ws.maxima + k - 1, ws.maxima + scan.num_maxima, std::greater<>());
    bound = std::max(bound, ws.maxima[k - 1]);
  }
  const int64_t count = collect_keys(logits, ws.vocab_size, bound, logits, ws.keys);
  if (count <= k) return count;
  std::nth_element(ws.keys, ws.keys + k, ws.keys + count, std::greater<>());
  return k;
}

void report_logprobs(const Workspace& ws, const float* logits, int num_top, SampleResult& result) {
  const LogitScan scan = scan_logits(logits, ws.vocab_size, ws.maxima);  // anew: `maxima` may be of the edited row
  const double log_sum = scan.max + std::log(sum_weights(logits, ws.vocab_size, scan.max, 1.0f, nullptr));
  result.logprob = static_cast<float>(logits[result.token] - log_sum);
  if (num_top <= 0) return;
  result.num_top = static_cast<int32_t>(collect_largest(ws, logits, scan, std::min(num_top, kMaxTopLogprobs)));
  std::sort(ws.keys, ws.keys + result.num_top, std::greater<>());
  for (int i = 0; i < result.num_top; ++i) {
    const TokenId id = candidate_id(ws.keys[i]);
    result.top[i] = {id, static_cast<float>(logits[id] - log_sum)};
  }
}

bool has_penalties(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.frequency_penalty != 0 || params.presence_penalty != 0;
}

// Three walks over the tokens in place of a clear of the whole count array.
void apply_penalties(const Workspace& ws, const SampleTask& task) {
  constexpr int32_t kDone = -1;
  const SamplingParams& params = *task.params;
  for (TokenId id : task.tokens) {
    if (ws.holds(id)) ws.counts[id] = 0;
  }
  for (size_t i = task.prompt_len; i < task.tokens.size(); ++i) {
    if (ws.holds(task.tokens[i])) ++ws.counts[task.tokens[i]];
  }
  for (TokenId id : task.tokens) {
    if (!ws.holds(id) || ws.counts[id] == kDone) continue;
    float& l = ws.logits[id];
    l = l > 0 ? l / params.repetition_penalty : l * params.repetition_penalty;
    if (ws.counts[id] > 0) l -= ws.counts[id] * params.frequency_penalty + params.presence_penalty;
    l = std::min(l, FLT_MAX);
    ws.counts[id] = kDone;
  }
}

void apply_bias_and_bans(const Workspace& ws, const SampleTask& task) {
  for (auto [id, bias] : task.params->logit_bias) {
    if (ws.holds(id) && bias < 100) ws.logits[id] = bias <= -100 ? -kInf : ws.logits[id] + bias;
  }
  for (TokenId id : task.banned) {
    if (ws.holds(id)) ws.logits[id] = -kInf;
  }
  // A bias of +100 or more, if its token is not banned, leaves only tokens so marked.
  int64_t num_winners = 0;
  for (auto [id, bias] : task.params->logit_bias) {
    if (ws.holds(id) && bias >= 100 && ws.logits[id] != -kInf) ws.keys[num_winners++] = id;
  }
  if (num_winners == 0) return;
  for (int64_t i = 0; i < num_winners; ++i) ws.weights[i] = ws.logits[ws.keys[i]];
  std::fill_n(ws.logits, ws.vocab_size, -kInf);
  for (int64_t i = 0; i < num_winners; ++i) ws.logits[ws.keys[i]] = ws.weights[i];
}

struct Prefix {
  int64_t count = 0;
  double mass = 0;
};

// The fewest most likely of `keys` whose mass satisfies reached(mass), or all. They end up first, the least likely of
// them last. Expected linear time: like quickselect, but by mass.
template <class Reached>
Prefix prefix_by_mass(std::span<uint64_t> keys, const float* weights, Reached reached) {
  constexpr size_t kSortSize = 64;
  constexpr int kMaxRounds = 64;  // then sort what is left: bounds the worst case
  size_t begin = 0;
  size_t end = keys.size();
  double mass = 0;
  for (int round = 0; end - begin > kSortSize && round < kMaxRounds; ++round) {
    const uint64_t a = keys[begin], b = keys[(begin + end) / 2], c = keys[end - 1];
    const uint64_t pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));  // the median of three: not the least
    const auto middle =
        std::partition(keys.begin() + begin, keys.begin() + end, [&](uint64_t k) { return k >= pivot; });
    const size_t split = middle - keys.begin();
    double upper = 0;
    for (size_t i = begin; i < split; ++i) upper += weights[candidate_id(keys[i])];
    if (reached(mass + upper)) {
      end = split;
    } else {
      mass += upper;
      begin = split;
    }
  }
  std::sort(keys.begin() + begin, keys.begin() + end, std::greater<>());
  for (size_t i = begin; i < end; ++i) {
    mass += weights[candidate_id(keys[i])];
    if (reached(mass)) return {static_cast<int64_t>(i + 1), mass};
  }
  return {static_cast<int64_t>(end), mass};
}

struct Candidates {
  int64_t count = 0;
  double total = 0;  // sum of the softmax's terms: of the candidates, and of what was left out for being too unlikely
};

// Without top_k: every token is a candidate. Tokens are left out that can belong neither to the top_p set nor to the
// draw at `uniform`: if all n weights below t are dropped, at most n t of the total is.
Candidates collect_all(const Workspace& ws, const SamplingParams& params, const float* logits, const LogitScan& scan,
                       float inverse_temperature, double uniform) {
  Candidates found;
  found.total = sum_weights(logits, ws.vocab_size, scan.max, inverse_temperature, ws.weights);
  const double needed = params.top_p < 1 ? double{params.top_p} : params.min_p > 0 ? 1.0 : uniform;
  const double spare = 0.5 * (1 - needed) * found.total / static_cast<double>(ws.vocab_size);
  const float floor = std::max({params.min_p, static_cast<float>(spare), FLT_MIN});
  found.count = collect_keys(ws.weights, ws.vocab_size, floor, logits, ws.keys);
  return found;
}

Candidates collect_top_k(const Workspace& ws, const SamplingParams& params, const float* logits,
                         const LogitScan& scan) {
  const int64_t count = collect_largest(ws, logits, scan, params.top_k);
  Candidates found;
  for (int64_t i = 0; i < count; ++i) {
    const TokenId id = candidate_id(ws.keys[i]);
    ws.weights[id] = static_cast<float>(std::exp((double{logits[id]} - scan.max) / params.temperature));
    found.total += ws.weights[id];
    if (ws.weights[id] >= params.min_p && ws.weights[id] > 0) ws.keys[found.count++] = ws.keys[i];
  }
  return found;
}

TokenId draw(const Workspace& ws, const SampleTask& task, const float* logits, const LogitScan& scan) {
  const SamplingParams& params = *task.params;
  if (params.temperature == 0 || params.top_k == 1 || params.top_p <= 0) {
    return static_cast<TokenId>(find_first(logits, ws.vocab_size, scan.max));
  }
  const double uniform = counter_uniform(task.seed, task.output_index);
  const bool top_k = params.top_k > 0 && params.top_k < ws.vocab_size;
  const float inverse_temperature = std::min(1.0f / params.temperature, FLT_MAX);
  const Candidates found = top_k ? collect_top_k(ws, params, logits, scan)
                                 : collect_all(ws, params, logits, scan, inverse_temperature, uniform);
  std::span<uint64_t> keys(ws.keys, found.count);
  double kept = found.total;
  if (params.top_p < 1 || params.min_p > 0) {
    const double needed = params.top_p < 1 ? params.top_p * found.total : kInf;
    const Prefix nucleus = prefix_by_mass(keys, ws.weights, [&](double mass) { return mass >= needed; });
    keys = keys.first(nucleus.count);
    kept = nucleus.mass;
  }
  const double target = uniform * kept;
  const Prefix drawn = prefix_by_mass(keys, ws.weights, [&](double mass) { return mass > target; });
  return candidate_id(keys[drawn.count - 1]);
}

// Penalties, bias and bans, then the draw. kNoToken: nothing is left to draw from.
TokenId choose(const Workspace& ws, const SampleTask& task, const float* logits, LogitScan scan) {
  const SamplingParams& params = *task.params;
  if (has_penalties(params) || !params.logit_bias.empty() || !task.banned.empty()) {
    std::copy_n(logits, ws.vocab_size, ws.logits);
    if (has_penalties(params)) apply_penalties(ws, task);
    apply_bias_and_bans(ws, task);
    logits = ws.logits;
    scan = scan_logits(logits, ws.vocab_size, ws.maxima);
    if (!scan.usable) return kNoToken;
  }
  return draw(ws, task, logits, scan);
}

SampleResult run_task(const Workspace& ws, const SampleTask& task, const float* logits) {
  SampleResult result;
  const LogitScan scan = scan_logits(logits, ws.vocab_size, ws.maxima);
  result.finite = !task.poison && scan.usable;
  if (!result.finite) return result;
  const bool score = task.target >= 0;
  result.token = score ? task.target : task.forced;
  if (result.token < 0) result.token = choose(ws, task, logits, scan);
  result.finite = result.token != kNoToken;
  const int num_top = score ? task.params->prompt_logprobs : task.params->logprobs;
  if (result.finite && (score || num_top >= 0)) report_logprobs(ws, logits, num_top, result);
  return result;
}

}  // namespace

int64_t sample_cpu_scratch_bytes(const OpContext& ctx, int64_t vocab_size) {
  return ctx.pool->num_threads() * Workspace::bytes(vocab_size);
}

void sample_cpu(const OpContext& ctx, const SampleArgs& args) {
  auto run = [&](int64_t begin, int64_t end, int worker) {
    const Workspace ws(static_cast<char*>(args.scratch) + worker * Workspace::bytes(args.vocab_size), args.vocab_size);
    for (int64_t i = begin; i < end; ++i)
      args.results[i] = run_task(ws, args.tasks[i], args.logits + i * args.vocab_size);
  };
  if (args.num_samples == 1) return run(0, 1, 0);
  ctx.pool->parallel_for(args.num_samples, 1, run);
}

}  // namespace vayu::ops
