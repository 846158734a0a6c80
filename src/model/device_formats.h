// How the CUDA backend holds the linears of a checkpoint: decided from names, shapes, dtypes and scales, before any
// data is read.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "base/result.h"
#include "loader/checkpoint.h"
#include "model/device_model.h"
#include "model/weight_plan.h"
#include "ops/cuda/types.h"
#include "ops/gemm/cuda_matrix.h"

namespace vayu::model {

// The formats in which rows of activations are needed; a linear reads the format of its weight.
struct RowForms {
  bool f8 = false;
  bool bf16 = false;
  void add(ops::WeightScale scale) { (scale == ops::WeightScale::kNone ? bf16 : f8) = true; }
};

// Of the inputs of linears over all layers.
struct InputForms {
  RowForms x;           // normed rows: qkv, gate-up, experts' gate-up, and the router (BF16)
  RowForms attention;   // output projection
  RowForms mlp;         // down projection of a dense MLP or shared expert
  RowForms expert_mlp;  // down projection of experts
  RowForms head;
};

// Tensors of linears, by what became of them.
struct FormatCounts {
  int64_t kept = 0;         // FP8 as stored
  int64_t quantised = 0;    // FP8 by row, of what was stored in another precision
  int64_t requantised = 0;  // FP8 by row, of FP8 that cannot be kept
  int64_t widened = 0;      // BF16, of FP8
  int64_t bf16 = 0;         // BF16, of anything else
};

// What a matrix, which may join several tensors, is held in:
//   tensors not in FP8                   BF16; with f8_weights quantised with a scale a row, unless their name is on
//                                        quantization_ignore
//   E4M3 with a scale a tensor or a row  the codes as stored under a scale a row
//   E4M3 with blocks of 128 x 128        the codes and scales as stored, when columns are whole blocks, all tensors of
//                                        the matrix have such blocks, and each begins where 64 rows of the device's
//                                        matrix do, which then never span two blocks
//   any other FP8 (E5M2, other or ragged blocks, blocks joined with rows): widened and quantised again by row
// A matrix that joins FP8 with tensors that stay BF16 is BF16 as a whole: nothing is lost. The embedding, the linears
// within a head of latent attention, norms and routers are not FP8. The routed experts of a layer and its shared expert
// may differ, at the cost of a launch of its own for the shared one.
class DeviceFormats {
 public:
  // Errors: those of plan_weights.
  static Result<DeviceFormats> plan(const loader::Checkpoint& checkpoint, const Recipe& recipe,
                                    const DeviceModelOptions& options);

  ops::WeightScale scale(Slot slot, int32_t layer) const;
  // What a part of a matrix is handed over in: kF8E4M3 (codes and scales) or kBF16.
  DataFormat part_format(const loader::Checkpoint& checkpoint, const Fill& fill, const TensorRows& part) const;

  const InputForms& inputs() const { return inputs_; }
  const FormatCounts& counts() const { return counts_; }
  bool mostly_f8() const {
    return counts_.kept + counts_.quantised + counts_.requantised > counts_.widened + counts_.bf16;
  }
  std::string summary() const;                            // of the counts, for people
  int64_t weight_bytes() const { return weight_bytes_; }  // device memory for all weights

 private:
  void add(const loader::Checkpoint& checkpoint, const Fill& fill, ops::WeightScale scale, const ModelConfig& config);
  void count(const loader::Checkpoint& checkpoint, const Fill& fill, ops::WeightScale scale);

  bool widen_f8_ = false;
  std::map<std::pair<Slot, int32_t>, ops::WeightScale> scales_;  // of FP8 matrices
  InputForms inputs_;
  FormatCounts counts_;
  int64_t weight_bytes_ = 0;
};

// The shape a matrix slot takes in device memory.
ops::CudaMatrixShape device_shape(Slot slot, int64_t cols, int32_t gate_up_ffn, ops::WeightScale scale);

}  // namespace vayu::model
