// The host's side of device_sample.h: SampleTasks into the table the kernels read, results back.
#pragma once

#include <span>

#include "core/batch.h"
#include "ops/cuda/device.h"
#include "ops/sampling/device_sample.h"

namespace vayu::ops {

struct DeviceSampleCapacity {
  int32_t max_samples = 0;
  int32_t max_edited_rows = 0;  // rows of a step with penalties, bias or bans; each costs a row of logits
  int32_t vocab_size = 0;
  int64_t max_list_words = 0;  // see list_words
};

// Words of the lists that `tasks` need. A row of at most `context` tokens and `biases` entries of bias needs at most
// context + 3 * biases + its bans.
int64_t list_words(std::span<const SampleTask> tasks);

// Fills tasks[i] from samples[i] and `lists` from what they point to; returns the words used. `prev_index` is left off.
int64_t pack_sample_tasks(std::span<const SampleTask> samples, DeviceSampleTask* tasks, int32_t* lists);
bool needs_draw(const DeviceSampleTask& task);
SampleResult to_sample_result(const DeviceSampleResult& result);

// Engine thread only. Owns the tables, lists, scratch and results of the device sampler. The pinned halves are used in
// turn: at most two steps may be under way, and read_results is for the older of them.
class DeviceSampleTable {
 public:
  static int64_t device_bytes(const DeviceSampleCapacity& capacity);
  static int64_t pinned_bytes(const DeviceSampleCapacity& capacity);
  static Result<DeviceSampleTable> create(const DeviceSampleCapacity& capacity);

  // Packs the step's tasks and enqueues their way to the device, ahead of the launches on `stream`. prev_rows: empty,
  // or for each sample the index into prev_tokens of an output token the host has not seen, -1 for none.
  // padded_samples: rows a graph was captured for; those past the samples take the argmax and are not read back.
  Status upload(std::span<const SampleTask> samples, std::span<const int32_t> prev_rows, int32_t padded_samples,
                CudaStream stream);
  bool draw_needed() const { return draw_needed_; }  // by the step last uploaded

  // For num_samples rows at `logits`; the caller sets prev_tokens, if any. Constant for a num_samples, so that a graph
  // may be captured with it: results land in device memory.
  DeviceSampleArgs args(const float* logits, int64_t logits_stride, int32_t num_samples, int32_t* next_tokens) const;
  // Behind the launches: results of the step last uploaded, on their way to pinned memory.
  Status download(CudaStream stream);
  // Once the stream has passed download: results of the oldest step not yet read, in the order of its samples.
  void read_results(std::vector<SampleResult>& results);

 private:
  struct Layout;
  static constexpr int kSteps = 2;

  DeviceSampleCapacity capacity_;
  DeviceMemory device_;
  DeviceMemory pinned_;
  int32_t num_samples_[kSteps] = {};
  int64_t uploads_ = 0;
  int64_t reads_ = 0;
  bool draw_needed_ = false;
};

}  // namespace vayu::ops
