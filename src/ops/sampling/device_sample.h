// The sampler of sample.h on the device: same order of steps, same random numbers, same tokens. A draw whose uniform
// number lies within float rounding of a boundary between two tokens may go to the neighbour; log-probabilities agree
// to 1e-5. Two launches:
//   scan  one pass over every row: log-sum-exp, maximum, whether the row is usable; finishes rows that take the argmax
//         (or a given token) and want no list of alternatives
//   draw  the rest, a cluster of blocks a row: penalties, bias, bans, top-k, top-p, min-p, the draw, most likely tokens
// The launches depend on num_samples alone, so both can be captured in a graph; `draw` may be left out when no task of
// the step needs it (needs_draw of device_sample_table.h).
#pragma once

#include <cstdint>

#include "ops/cuda/types.h"

namespace vayu::ops {

constexpr int32_t kDeviceTopLogprobs = 20;
constexpr int32_t kRowMaxima = 512;
constexpr int64_t kMaxDeviceVocab = int64_t{1} << 19;  // sums of weights of 44 fraction bits stay below 2^63

enum DeviceSampleFlag : uint32_t {
  kSampleDraw = 1,       // random draw; otherwise the argmax
  kSamplePenalties = 2,  // repetition, presence or frequency
  kSampleEdits = 4,      // penalties, bias or bans: edit_row is set
  kSamplePoison = 8,     // debug hook: the row counts as NaN
  kSampleLogprob = 16,   // report the token's log-probability
};

// One row's work, without pointers. Lists are ranges of DeviceSampleArgs::lists.
struct DeviceSampleTask {
  uint64_t seed = 0;
  int32_t output_index = 0;
  uint32_t flags = 0;  // DeviceSampleFlag
  float temperature = 1;
  float top_p = 1;
  float min_p = 0;
  int32_t top_k = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  int32_t fixed_token = -1;  // >= 0: scored or forced, nothing is sampled
  int32_t num_top = 0;       // most likely tokens to list, at most kDeviceTopLogprobs
  int32_t edit_row = -1;     // the row of DeviceSampleArgs::edited, no two tasks the same
  int32_t tokens_begin = 0;  // num_tokens ids, the first prompt_len of the prompt, the rest of the output
  int32_t num_tokens = 0;
  int32_t prompt_len = 0;
  int32_t prev_index = -1;  // >= 0: prev_tokens[prev_index] is one more output token, not yet known to the host
  int32_t bias_begin = 0;   // num_biases ids without repetition, as many float values, as many words of scratch
  int32_t num_biases = 0;
  int32_t banned_begin = 0;
  int32_t num_banned = 0;
};

struct DeviceTokenLogprob {
  int32_t token = -1;
  float logprob = 0;
};

// The fields of SampleResult. Entries of `top` past num_top are not written.
struct alignas(16) DeviceSampleResult {
  int32_t token = -1;
  float logprob = 0;
  int32_t num_top = 0;
  int32_t finite = 1;
  DeviceTokenLogprob top[kDeviceTopLogprobs];
};

// What the scan leaves for the draw.
struct alignas(16) DeviceRowScan {
  double log_sum;  // log of the sum of exp(logit)
  float max;
  float min;  // the lowest that is not -inf
  int32_t argmax;
  int32_t finite;
  float maxima[kRowMaxima];  // of disjoint sets that cover the row: the k-th largest is no larger than the k-th logit
};

struct DeviceSampleArgs {
  const float* logits = nullptr;  // (num_samples, vocab_size), rows logits_stride apart; not modified
  int64_t logits_stride = 0;      // fast when a multiple of 4 and `logits` is 16-byte aligned
  int32_t vocab_size = 0;
  int32_t num_samples = 0;
  const DeviceSampleTask* tasks = nullptr;  // (num_samples)
  int32_t* lists = nullptr;                 // ids, bias values as bits, scratch of the bias
  const int32_t* prev_tokens = nullptr;     // read for tasks with a prev_index; not next_tokens
  DeviceRowScan* scans = nullptr;           // (num_samples) scratch
  float* edited = nullptr;                  // (edited rows, padded_vocab) scratch
  DeviceSampleResult* results = nullptr;    // (num_samples), device or pinned memory
  int32_t* next_tokens = nullptr;           // (num_samples) the tokens again, or 0 for rows without one
  bool draw = true;                         // launch the draw
};

inline int64_t padded_vocab(int64_t vocab_size) { return (vocab_size + 3) / 4 * 4; }

void device_sample_ref(const DeviceSampleArgs& args);  // through sample() of Backend::kReference; scratch unused
void device_sample_cuda(CudaStream stream, const DeviceSampleArgs& args);

}  // namespace vayu::ops
