#include "model/device_formats.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "loader/fp8_scales.h"
#include "loader/name_pattern.h"

namespace vayu::model {
namespace {

using loader::Checkpoint;
using loader::CheckpointTensor;
using ops::WeightScale;

enum class Stored : uint8_t { kPlain, kRows, kBlocks, kOtherF8 };

Stored stored_as(const Checkpoint& checkpoint, const CheckpointTensor& tensor) {
  if (tensor.format == DataFormat::kF8E5M2) return Stored::kOtherF8;
  if (tensor.format != DataFormat::kF8E4M3) return Stored::kPlain;
  const loader::Fp8Scales* scales = checkpoint.scales(tensor);
  if (scales == nullptr) return Stored::kOtherF8;
  if (scales->per_row() == 1) return Stored::kRows;
  const bool blocks = scales->block_rows() == ops::kScaleGroup && scales->block_cols() == ops::kScaleGroup;
  return blocks && tensor.cols() % ops::kScaleGroup == 0 ? Stored::kBlocks : Stored::kOtherF8;
}

int64_t rows_of(const Fill& fill) {
  int64_t rows = 0;
  for (const TensorRows& part : fill.parts) rows += part.out_rows();
  return rows;
}

// Whether all rows of every device block lie in one block of one part.
bool blocks_fit(const Checkpoint& checkpoint, const Fill& fill, const ModelConfig& config) {
  const ops::MatrixPlaces places{rows_of(fill), gate_up_ffn(fill, config)};
  constexpr int64_t kNobody = -1;
  std::vector<int64_t> owner(places.device_rows() / ops::kScaleBlockRows + 1, kNobody);
  int64_t first = 0, next_block = 0;  // ids of blocks, over all parts
  for (const TensorRows& part : fill.parts) {
    const loader::Fp8Scales& scales = *checkpoint.scales(*part.tensor);
    for (int64_t row = 0; row < part.rows;) {
      const int64_t place = places.of(first + row), inner = (part.first_row + row) % scales.matrix_rows();
      if (row == 0 || inner % scales.block_rows() == 0) ++next_block;
      int64_t& block = owner[place / ops::kScaleBlockRows];
      if (block != kNobody && block != next_block) return false;
      block = next_block;
      row += std::min({part.rows - row, places.run(first + row), scales.matrix_rows() - inner,
                       scales.block_rows() - inner % scales.block_rows(),
                       ops::kScaleBlockRows - place % ops::kScaleBlockRows});
    }
    first += part.rows;
  }
  return true;
}

bool may_be_f8(Slot slot) { return slot != Slot::kEmbedding && slot != Slot::kLatentKv; }

WeightScale choose_scale(const Checkpoint& checkpoint, const Fill& fill, const ModelConfig& config,
                         const DeviceModelOptions& options) {
  if (!may_be_f8(fill.slot)) return WeightScale::kNone;
  bool all_blocks = true;
  for (const TensorRows& part : fill.parts) {
    const Stored stored = options.widen_f8 ? Stored::kPlain : stored_as(checkpoint, *part.tensor);
    const bool quantised = options.f8_weights && !loader::matches_any(options.quantization_ignore, part.tensor->name);
    if (stored == Stored::kPlain && !quantised) return WeightScale::kNone;
    all_blocks = all_blocks && stored == Stored::kBlocks;
  }
  return all_blocks && blocks_fit(checkpoint, fill, config) ? WeightScale::kBlock : WeightScale::kRow;
}

}  // namespace

ops::CudaMatrixShape device_shape(Slot slot, int64_t cols, int32_t gate_up_ffn, WeightScale scale) {
  return {scale, cols, gate_up_ffn, slot == Slot::kDown || slot == Slot::kExpertDown};
}

Result<DeviceFormats> DeviceFormats::plan(const Checkpoint& checkpoint, const Recipe& recipe,
                                          const DeviceModelOptions& options) {
  VAYU_ASSIGN_OR_RETURN(const std::vector<Fill> fills, plan_weights(checkpoint, recipe));
  DeviceFormats formats;
  formats.widen_f8_ = options.widen_f8;
  if (recipe.config.has_moe()) formats.inputs_.x.bf16 = true;
  if (recipe.config.tied_head) formats.inputs_.head.bf16 = true;
  for (const Fill& fill : fills) {
    if (is_vector(fill.slot)) {
      const CheckpointTensor& tensor = *fill.parts.front().tensor;
      formats.weight_bytes_ += tensor.rows() * tensor.cols() * int64_t{sizeof(float)};
      continue;
    }
    formats.add(checkpoint, fill, choose_scale(checkpoint, fill, recipe.config, options), recipe.config);
  }
  return formats;
}

void DeviceFormats::add(const Checkpoint& checkpoint, const Fill& fill, WeightScale scale, const ModelConfig& config) {
  if (scale != WeightScale::kNone) scales_[{fill.slot, fill.layer}] = scale;
  const int64_t cols = fill.parts.front().out_cols();
  weight_bytes_ +=
      ops::device_matrix_bytes(device_shape(fill.slot, cols, gate_up_ffn(fill, config), scale), rows_of(fill));
  if (fill.slot != Slot::kEmbedding) count(checkpoint, fill, scale);
  switch (fill.slot) {
    case Slot::kQkv:
    case Slot::kGateUp:
    case Slot::kExpertGateUp:
      return inputs_.x.add(scale);
    case Slot::kAttentionOutput:
      return inputs_.attention.add(scale);
    case Slot::kDown:
      return inputs_.mlp.add(scale);
    case Slot::kExpertDown:
      return inputs_.expert_mlp.add(scale);
    case Slot::kHead:
      return inputs_.head.add(scale);
    default:
      return;
  }
}

void DeviceFormats::count(const Checkpoint& checkpoint, const Fill& fill, WeightScale scale) {
  // Of the tensor that kToK is of.
  if (fill.latent == LatentPart::kToV || fill.latent == LatentPart::kToKv) return;
  std::unordered_set<const CheckpointTensor*> seen;  // a stack of experts is many parts
  for (const TensorRows& part : fill.parts) {
    if (!seen.insert(part.tensor).second) continue;
    const bool f8 = stored_as(checkpoint, *part.tensor) != Stored::kPlain;
    if (scale == WeightScale::kNone) {
      ++(f8 ? counts_.widened : counts_.bf16);
    } else if (part_format(checkpoint, fill, part) == DataFormat::kF8E4M3) {
      ++counts_.kept;
    } else {
      ++(f8 ? counts_.requantised : counts_.quantised);
    }
  }
}

WeightScale DeviceFormats::scale(Slot slot, int32_t layer) const {
  const auto found = scales_.find({slot, layer});
  return found == scales_.end() ? WeightScale::kNone : found->second;
}

DataFormat DeviceFormats::part_format(const Checkpoint& checkpoint, const Fill& fill, const TensorRows& part) const {
  const WeightScale held = scale(fill.slot, fill.layer);
  if (held == WeightScale::kNone || widen_f8_) return DataFormat::kBF16;
  const Stored stored = stored_as(checkpoint, *part.tensor);
  const bool kept = held == WeightScale::kBlock ? stored == Stored::kBlocks : stored == Stored::kRows;
  return kept ? DataFormat::kF8E4M3 : DataFormat::kBF16;
}

std::string DeviceFormats::summary() const {
  std::vector<std::string> parts;
  const auto say = [&](int64_t count, const char* what) {
    if (count > 0) parts.push_back(fmt::format("{}{} {}", count, parts.empty() ? " linears" : "", what));
  };
  say(counts_.kept, "in FP8 as stored");
  say(counts_.quantised, "quantised to FP8");
  say(counts_.requantised, "in FP8 quantised again by row");
  say(counts_.widened, "widened from FP8 to BF16");
  say(counts_.bf16, "in BF16");
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace vayu::model
