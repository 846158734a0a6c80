// The operators of a step by name, and who may watch them: timing tools, and NVIDIA's profilers by NVTX ranges.
#pragma once

#include <cstdint>

#include "ops/cuda/types.h"
#include "telemetry/nvtx_range.h"

namespace vayu::model {

enum class StepOperator : uint8_t {
  kEmbedding,
  kInputNorm,  // of the first layer; those of the others end the layer before
  kQkv,
  kQkNormRope,  // and the writing of K and V
  kAttention,
  kOutputProjection,  // with the quantisation of its input where attention does not do that
  kMlpNorm,           // the attention's output added, norm, quantisation
  kDenseMlp,
  kRouter,
  kRoutedExperts,  // with the shared expert where one launch does both
  kSharedExpert,
  kCombine,  // weighted sum of experts, the residual, the next layer's norm
  kHead,     // output norm and logits
};
constexpr int kNumStepOperators = static_cast<int>(StepOperator::kHead) + 1;

constexpr const char* step_operator_name(StepOperator op) {
  constexpr const char* kNames[] = {"embedding",     "input_norm", "qkv",       "qk_norm_rope", "attention",
                                    "o_proj",        "mlp_norm",   "dense_mlp", "router",       "routed_experts",
                                    "shared_expert", "combine",    "head"};
  return kNames[static_cast<int>(op)];
}

// Called around the launches of every operator of steps that run kernel by kernel; may enqueue work of its own.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void begin(StepOperator op, int32_t layer, ops::CudaStream stream) = 0;
  virtual void end(StepOperator op, int32_t layer, ops::CudaStream stream) = 0;
};

class StepScope {
 public:
  StepScope(StepObserver* observer, StepOperator op, int32_t layer, ops::CudaStream stream)
      : range_(step_operator_name(op)), observer_(observer), op_(op), layer_(layer), stream_(stream) {
    if (observer_) observer_->begin(op_, layer_, stream_);
  }
  ~StepScope() {
    if (observer_) observer_->end(op_, layer_, stream_);
  }

 private:
  NvtxRange range_;
  StepObserver* observer_;
  StepOperator op_;
  int32_t layer_;
  ops::CudaStream stream_;
};

}  // namespace vayu::model
