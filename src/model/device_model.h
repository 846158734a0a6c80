// A decoder in device memory: weights, KV pages and every buffer of a step, planned at load; and the launches of one
// step. Walks the same recipe as Model, with fused operations on BF16 and FP8 rows.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "core/batch.h"
#include "loader/checkpoint.h"
#include "model/device_memory_plan.h"
#include "model/recipe.h"
#include "model/step_observer.h"
#include "ops/cuda/types.h"

namespace vayu {
class ThreadPool;
}

namespace vayu::model {

struct DeviceModelOptions {
  // Linears run in the precision they are stored in: E4M3 as it stands, anything else in BF16; activations are
  // quantised to match. Embedding, norms and router keep theirs. See device_formats.h.
  bool f8_weights = true;  // what is not stored in FP8 is quantised to FP8 with one scale a row
  bool widen_f8 = false;   // nothing is taken as FP8: it is BF16, or with f8_weights quantised again
  std::vector<std::string> quantization_ignore;  // name patterns of tensors that f8_weights leaves alone
  ops::DeviceKvFormat kv_format = ops::DeviceKvFormat::kBF16;
  int32_t num_pages = 0;                 // KV pages of 16 tokens; 0: what memory_fraction leaves
  double memory_fraction = 0.9;          // of the device's memory, for weights, workspace and pages together
  int32_t max_step_tokens = 4096;        // most tokens of one batch
  int32_t max_rows = 64;                 // most rows of one batch
  int32_t max_logits = 64;               // most logit rows of one batch
  int32_t max_context = 0;               // longest sequence in tokens; 0: what the model allows
  int32_t max_experts_stream = 128;      // tokens up to which experts are streamed rather than multiplied by tiles
  bool graphs = true;                    // capture_graphs() will be called: memory is kept back for them
  int64_t workspace_taken = 0;           // device memory the caller holds for steps: it counts as workspace
  const int32_t* prev_tokens = nullptr;  // device memory where Batch::prev_samples are looked up; null: nowhere
  ThreadPool* pool = nullptr;            // loads weights; may be null
  LoadProgress progress;                 // may be empty
  StepObserver* observer = nullptr;      // of steps that run kernel by kernel; must outlive the model
};

constexpr int32_t kDevicePageSize = 16;

class DeviceModel {
 public:
  // The checkpoint is not needed afterwards. Errors: those of load_weights; those of check_device_limits for what has
  // no kernel; kResourceExhausted with what is needed and what there is.
  static Result<std::unique_ptr<DeviceModel>> load(Recipe recipe, const loader::Checkpoint& checkpoint,
                                                   DeviceModelOptions options);
  virtual ~DeviceModel() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const DeviceModelOptions& options() const = 0;  // num_pages and max_context resolved
  virtual const DeviceMemoryPlan& memory() const = 0;     // as it stood after load() or capture_graphs()

  // Enqueues a step up to its logits. One caller at a time; the batch is copied before this returns, and obeys the
  // limits of the options. Batches of one-token rows run from a captured graph where one is large enough. Allocates
  // nothing. first_prev: where in prev_tokens the samples of the step before begin.
  virtual Status launch(const Batch& batch, ops::CudaStream stream, int32_t first_prev = 0) = 0;
  // For timing: `count` layers from `first` on again, for the batch of the last launch().
  virtual Status launch_layers(int32_t first, int32_t count, ops::CudaStream stream) = 0;
  // For timing: experts that got rows in the layer that ran last. Waits for the stream.
  virtual Result<int32_t> experts_touched(ops::CudaStream stream) const = 0;
  virtual const float* logits() const = 0;  // device memory, (max_logits, vocab_size): of the last launch

  // Captures the graphs of decode steps, and completes memory(). Until then launch() runs them kernel by kernel.
  virtual Status capture_graphs(ops::CudaStream stream) = 0;
};

}  // namespace vayu::model
