// Which rows of which checkpoint tensor go where: decided from names and shapes alone, before any data is read.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "loader/checkpoint.h"
#include "model/recipe.h"

namespace vayu::model {

constexpr int32_t kNoLayer = -1;

// Rows [first_row, first_row + rows) of a tensor seen as a matrix.
struct TensorRows {
  const loader::CheckpointTensor* tensor = nullptr;
  int64_t first_row = 0;
  int64_t rows = 0;
  bool transposed = false;  // goes in with rows and columns exchanged

  int64_t out_rows() const { return transposed ? tensor->cols() : rows; }
  int64_t out_cols() const { return transposed ? rows : tensor->cols(); }
};

// Which of the matrices that Slot::kLatentKv is split into. kToKv: in place of kToV, with all of K a second time.
enum class LatentPart : uint8_t { kNone, kToK, kToV, kToKv };

// One matrix or vector of the model, and what is stacked into it.
struct Fill {
  Slot slot;
  int32_t layer = kNoLayer;
  LatentPart latent = LatentPart::kNone;
  std::vector<TensorRows> parts;
};

// The width of gate in matrices that hold gate over up (once, or expert by expert), else 0.
int32_t gate_up_ffn(const Fill& fill, const ModelConfig& config);

// Every slot that the checkpoint fills. Errors name the file and the tensor: kCorrupt for a missing or misshaped one,
// for one tensor under two spellings and for slots filled twice, kUnsupported for tensors that no slot takes.
Result<std::vector<Fill>> plan_weights(const loader::Checkpoint& checkpoint, const Recipe& recipe);

// Whether each pattern (loader/name_pattern.h) matches the name of a tensor that goes into a matrix. The error names
// the first that does not.
Status check_patterns(std::span<const std::string> patterns, const loader::Checkpoint& checkpoint,
                      const Recipe& recipe);

}  // namespace vayu::model
