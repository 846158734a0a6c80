#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "ops/sampling/device_sample_table.h"

namespace vayu::ops {
namespace {

static_assert(kDeviceTopLogprobs == kMaxTopLogprobs);

bool has_penalties(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.frequency_penalty != 0 || params.presence_penalty != 0;
}

bool is_sampled(const SampleTask& sample) { return sample.target < 0 && sample.forced < 0; }

int64_t words_of(const SampleTask& sample) {
  if (!is_sampled(sample)) return 0;
  const int64_t tokens = has_penalties(*sample.params) ? static_cast<int64_t>(sample.tokens.size()) : 0;
  return tokens + 3 * static_cast<int64_t>(sample.params->logit_bias.size()) +
         static_cast<int64_t>(sample.banned.size());
}

int32_t append(std::span<const TokenId> ids, int32_t* lists, int64_t& used) {
  const auto begin = static_cast<int32_t>(used);
  std::copy(ids.begin(), ids.end(), lists + used);
  used += static_cast<int64_t>(ids.size());
  return begin;
}

void pack_edits(const SampleTask& sample, DeviceSampleTask& task, int32_t* lists, int64_t& used) {
  const SamplingParams& params = *sample.params;
  if (has_penalties(params)) {
    task.flags |= kSamplePenalties;
    task.num_tokens = static_cast<int32_t>(sample.tokens.size());
    task.prompt_len = sample.prompt_len;
    task.tokens_begin = append(sample.tokens, lists, used);
  }
  task.num_banned = static_cast<int32_t>(sample.banned.size());
  task.banned_begin = append(sample.banned, lists, used);
  task.num_biases = static_cast<int32_t>(params.logit_bias.size());
  task.bias_begin = static_cast<int32_t>(used);
  int32_t* ids = lists + used;
  for (const auto& [id, bias] : params.logit_bias) {
    *ids = id;
    std::memcpy(ids + task.num_biases, &bias, sizeof(bias));
    ++ids;
  }
  used += 3 * int64_t{task.num_biases};
}

DeviceSampleTask pack_task(const SampleTask& sample, int32_t* lists, int64_t& used, int32_t& edited_rows) {
  const SamplingParams& params = *sample.params;
  const bool scored = sample.target >= 0;
  DeviceSampleTask task;
  if (sample.poison) task.flags |= kSamplePoison;
  if (scored || params.logprobs >= 0) task.flags |= kSampleLogprob;
  task.num_top = std::clamp(scored ? params.prompt_logprobs : params.logprobs, 0, kMaxTopLogprobs);
  task.fixed_token = scored ? sample.target : std::max(sample.forced, kNoToken);
  if (!is_sampled(sample)) return task;
  task.seed = sample.seed;
  task.output_index = sample.output_index;
  task.temperature = params.temperature;
  task.top_p = params.top_p;
  task.min_p = params.min_p;
  task.top_k = params.top_k;
  task.repetition_penalty = params.repetition_penalty;
  task.presence_penalty = params.presence_penalty;
  task.frequency_penalty = params.frequency_penalty;
  if (params.temperature != 0 && params.top_k != 1 && params.top_p > 0) task.flags |= kSampleDraw;
  if (has_penalties(params) || !params.logit_bias.empty() || !sample.banned.empty()) {
    task.flags |= kSampleEdits;
    task.edit_row = edited_rows++;
    pack_edits(sample, task, lists, used);
  }
  return task;
}

}  // namespace

int64_t list_words(std::span<const SampleTask> tasks) {
  int64_t words = 0;
  for (const SampleTask& task : tasks) words += words_of(task);
  return words;
}

int64_t pack_sample_tasks(std::span<const SampleTask> samples, DeviceSampleTask* tasks, int32_t* lists) {
  int64_t used = 0;
  int32_t edited_rows = 0;
  for (const SampleTask& sample : samples) *tasks++ = pack_task(sample, lists, used, edited_rows);
  return used;
}

bool needs_draw(const DeviceSampleTask& task) {
  return task.num_top > 0 || (task.fixed_token < 0 && (task.flags & (kSampleDraw | kSampleEdits)) != 0);
}

SampleResult to_sample_result(const DeviceSampleResult& device) {
  VAYU_CHECK(device.num_top >= 0 && device.num_top <= kMaxTopLogprobs, "{} alternatives", device.num_top);
  SampleResult result;
  result.token = device.token;
  result.logprob = device.logprob;
  result.num_top = device.num_top;
  result.finite = device.finite != 0;
  for (int i = 0; i < device.num_top; ++i) result.top[i] = {device.top[i].token, device.top[i].logprob};
  return result;
}

}  // namespace vayu::ops
