// The definition of device_sample: sample() of the reference backend, row by row, on the packed table.
#include <cstring>
#include <vector>

#include "ops/sampling/device_sample_table.h"
#include "ops/sampling/sample.h"

namespace vayu::ops {
namespace {

DeviceSampleResult run_row(const DeviceSampleArgs& args, const DeviceSampleTask& row, const float* logits) {
  SamplingParams params;
  params.temperature = row.flags & kSampleDraw ? row.temperature : 0;
  params.top_p = row.top_p;
  params.top_k = row.top_k;
  params.min_p = row.min_p;
  params.repetition_penalty = row.repetition_penalty;
  params.presence_penalty = row.presence_penalty;
  params.frequency_penalty = row.frequency_penalty;
  params.logprobs = row.flags & kSampleLogprob ? row.num_top : -1;
  for (int32_t i = 0; i < row.num_biases; ++i) {
    float bias;
    std::memcpy(&bias, args.lists + row.bias_begin + row.num_biases + i, sizeof(bias));
    params.logit_bias.push_back({args.lists[row.bias_begin + i], bias});
  }
  const int32_t* begin = args.lists + row.tokens_begin;
  std::vector<TokenId> tokens(begin, begin + row.num_tokens);
  if (row.prev_index >= 0) tokens.push_back(args.prev_tokens[row.prev_index]);

  SampleTask task;
  task.params = &params;
  task.tokens = tokens;
  task.prompt_len = row.prompt_len;
  task.seed = row.seed;
  task.output_index = row.output_index;
  task.forced = row.fixed_token;
  task.poison = row.flags & kSamplePoison;
  task.banned = {args.lists + row.banned_begin, static_cast<size_t>(row.num_banned)};
  SampleResult result;
  sample({Backend::kReference, nullptr}, {logits, args.vocab_size, &task, &result, 1, nullptr});
  DeviceSampleResult out{result.token, result.logprob, result.num_top, result.finite, {}};
  for (int32_t i = 0; i < result.num_top; ++i) out.top[i] = {result.top[i].token, result.top[i].logprob};
  return out;
}

}  // namespace

void device_sample_ref(const DeviceSampleArgs& args) {
  for (int32_t i = 0; i < args.num_samples; ++i) {
    args.results[i] = run_row(args, args.tasks[i], args.logits + i * args.logits_stride);
    args.next_tokens[i] = args.results[i].token < 0 ? 0 : args.results[i].token;
  }
}

}  // namespace vayu::ops
