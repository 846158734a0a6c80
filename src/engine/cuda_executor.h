// The executor over a model in device memory: forward and sampling on one stream, results back through pinned memory.
#pragma once

#include <memory>
#include <string>

#include "core/executor.h"
#include "loader/checkpoint.h"
#include "model/device_model.h"
#include "model/logit_model.h"
#include "model/recipe.h"
#include "ops/cuda/types.h"

namespace vayu {

struct CudaExecutorOptions {
  model::DeviceModelOptions model;  // pool, prev_tokens, graphs and workspace_taken are filled in
  bool graphs = true;               // decode steps run from captured graphs
  bool overlap = true;              // a step may be launched before the one ahead of it has landed
  int num_threads = 0;              // for loading; 0: the cores this process may use
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
