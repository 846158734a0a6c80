// Writes a checkpoint out again under other names or in other formats: what `vayu convert` does.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "loader/checkpoint_writer.h"
#include "model/recipe.h"
#include "model/weight_plan.h"
#include "model/weights.h"

namespace vayu::model {

// One tensor of the new checkpoint, and the rows it is made of, in order.
struct ExportTensor {
  loader::CheckpointTensor tensor;
  std::vector<TensorRows> rows;
};

// format: of matrices, none: as stored (FP8 becomes BF16). ignore: name patterns of the checkpoint's tensors that stay
// as stored. Norms, routers and their biases are written as floats.
// The same names as in the checkpoint. Errors: those of plan_weights.
Result<std::vector<ExportTensor>> plan_export(const loader::Checkpoint& checkpoint, const Recipe& recipe,
                                              std::optional<DataFormat> format,
                                              std::span<const std::string> ignore = {});
// The names of another table of the same architecture (recipe.gguf->slots): the first form of each of its rows.
Result<std::vector<ExportTensor>> plan_export_as(const loader::Checkpoint& checkpoint, const Recipe& recipe,
                                                 std::span<const SlotRow> slots, std::optional<DataFormat> format,
                                                 std::span<const std::string> ignore = {});

// Moves all rows through the calling thread; the writer has the tensors declared in the plan's order. Memory: a few
// MiB.
Status write_export(const loader::Checkpoint& checkpoint, const std::vector<ExportTensor>& plan,
                    loader::CheckpointWriter& writer, const LoadProgress& progress);

}  // namespace vayu::model
