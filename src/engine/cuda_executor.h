// The executor over a model in device memory: forward and sampling on one stream, results back through pinned memory.
#pragma once

#include <memory>
#include <string>

#include "core/executor.h"
#include "loader/checkpoint.h"
#include "model/logit_model.h"
#include "model/recipe.h"
#include "model/weights.h"
#include "ops/cuda/types.h"

namespace vayu {

class ThreadPool;

enum class CudaKvFormat : uint8_t { kBF16, kF8E4M3 };

struct CudaExecutorOptions {
  bool f8_weights = true;
  CudaKvFormat kv_format = CudaKvFormat::kBF16;
  int32_t num_pages = 0;         // 0: what memory_fraction leaves
  double memory_fraction = 0.9;  // of the device's memory, for everything together
  int32_t max_step_tokens = 4096;
  int32_t max_rows = 64;
  int32_t max_logits = 64;
  int32_t max_context = 0;  // tokens; 0: what the model allows
  bool graphs = true;       // decode steps run from captured graphs
  bool overlap = true;      // a step may be launched before the one ahead of it has landed
  int num_threads = 0;      // for loading; 0: the cores this process may use
  model::LoadProgress progress;
};

class CudaExecutor : public Executor {
 public:
  static bool built();  // whether this binary has a CUDA backend
  // The device this process would use. Errors: kUnsupported for a binary without CUDA; see ops::open_device.
  static Result<std::string> device_name();
  // Errors: those of DeviceModel::load.
  static Result<std::unique_ptr<CudaExecutor>> load(model::Recipe recipe, const loader::Checkpoint& checkpoint,
                                                    const CudaExecutorOptions& options);
  virtual std::string memory_plan() const = 0;  // one line, for people
  virtual ops::CudaStream stream() const = 0;   // the one all work goes through
};

// The same model for measuring: logits of whole batches in host memory. Errors as above.
Result<std::unique_ptr<model::LogitModel>> load_cuda_logits(model::Recipe recipe, const loader::Checkpoint& checkpoint,
                                                            const CudaExecutorOptions& options);

}  // namespace vayu
