#include "model/export.h"

#include <algorithm>
#include <unordered_set>

#include "base/check.h"
#include "loader/name_pattern.h"

namespace vayu::model {
namespace {

using loader::Checkpoint;
using loader::CheckpointTensor;

constexpr int64_t kChunkFloats = 1 << 20;

struct Wanted {
  std::optional<DataFormat> format;
  std::span<const std::string> ignore;
};

DataFormat export_format(const Checkpoint& checkpoint, const CheckpointTensor& source, bool vector, int64_t cols,
                         const Wanted& wanted) {
  if (vector) return DataFormat::kF32;
  const bool fp8 = source.format == DataFormat::kF8E4M3 || source.format == DataFormat::kF8E5M2;
  const DataFormat stored = fp8 || checkpoint.has_scales(source) ? DataFormat::kBF16 : source.format;
  const DataFormat format = wanted.format && !loader::matches_any(wanted.ignore, source.name) ? *wanted.format : stored;
  return cols % format_info(format).block_size == 0 ? format : DataFormat::kBF16;
}

void set_bytes(CheckpointTensor& tensor) { tensor.bytes = tensor.rows() * row_bytes(tensor.format, tensor.cols()); }

// Takes rows off the front of a fill's parts, whatever tensors they lie in.
class RowStream {
 public:
  explicit RowStream(const std::vector<TensorRows>& parts) : parts_(parts) {}
  void take(int64_t rows, std::vector<TensorRows>& out) {
    while (rows > 0) {
      VAYU_CHECK(at_ < parts_.size(), "a fill with too few rows");
      const TensorRows& part = parts_[at_];
      const int64_t some = std::min(rows, part.rows - used_);
      out.push_back({part.tensor, part.first_row + used_, some});
      rows -= some;
      used_ += some;
      if (used_ < part.rows) continue;
      ++at_;
      used_ = 0;
    }
  }

 private:
  const std::vector<TensorRows>& parts_;
  size_t at_ = 0;
  int64_t used_ = 0;  // rows of the part at hand
};

const Fill* find_fill(const std::vector<Fill>& fills, Slot slot, int32_t layer) {
  for (const Fill& fill : fills) {
    if (fill.slot == slot && fill.layer == layer) return &fill;
  }
  return nullptr;
}

// The tensors of one row of the table in one layer, filled from the same slot of the checkpoint.
void add_tensors(const Checkpoint& checkpoint, const Recipe& recipe, const SlotRow& row, int32_t layer,
                 const Fill& fill, const Wanted& wanted, std::vector<ExportTensor>& plan) {
  const Form& form = row.forms.front();
  const bool expert_slot = row.slot == Slot::kExpertGateUp || row.slot == Slot::kExpertDown;
  const int32_t experts = expert_slot ? recipe.config.moe.router.num_experts : 1;
  const size_t first = plan.size();
  for (const TensorPattern& pattern : form) {
    ExportTensor out;
    out.tensor.name = tensor_name(pattern.names.substr(0, pattern.names.find('|')), layer, 0);
    for (const Dim dim : pattern.shape) out.tensor.shape.push_back(size_of(dim, recipe.config));
    out.tensor.format =
        export_format(checkpoint, *fill.parts.front().tensor, is_vector(row.slot), out.tensor.cols(), wanted);
    set_bytes(out.tensor);
    plan.push_back(std::move(out));
  }
  RowStream stream(fill.parts);
  for (int32_t expert = 0; expert < experts; ++expert) {
    for (size_t i = first; i < plan.size(); ++i) stream.take(plan[i].tensor.rows() / experts, plan[i].rows);
  }
}

}  // namespace

Result<std::vector<ExportTensor>> plan_export(const Checkpoint& checkpoint, const Recipe& recipe,
                                              std::optional<DataFormat> format, std::span<const std::string> ignore) {
  VAYU_ASSIGN_OR_RETURN(const std::vector<Fill> fills, plan_weights(checkpoint, recipe));
  std::unordered_set<const CheckpointTensor*> vectors;
  for (const Fill& fill : fills) {
    if (is_vector(fill.slot)) vectors.insert(fill.parts.front().tensor);
  }
  std::vector<ExportTensor> plan;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    ExportTensor out{tensor, {{&tensor, 0, tensor.rows()}}};
    out.tensor.format = export_format(checkpoint, tensor, vectors.contains(&tensor), tensor.cols(), {format, ignore});
    set_bytes(out.tensor);
    plan.push_back(std::move(out));
  }
  return plan;
}

Result<std::vector<ExportTensor>> plan_export_as(const Checkpoint& checkpoint, const Recipe& recipe,
                                                 std::span<const SlotRow> slots, std::optional<DataFormat> format,
                                                 std::span<const std::string> ignore) {
  VAYU_ASSIGN_OR_RETURN(const std::vector<Fill> fills, plan_weights(checkpoint, recipe));
  std::vector<ExportTensor> plan;
  for (const SlotRow& row : slots) {
    for (const int32_t layer : layers_of(row, recipe)) {
      const Fill* fill = find_fill(fills, row.slot, layer);
      if (fill) {
        add_tensors(checkpoint, recipe, row, layer, *fill, {format, ignore}, plan);
      } else if (!row.optional) {
        return make_error(ErrorKind::kUnsupported, "{}: nothing there for tensor '{}'", checkpoint.path(),
                          tensor_name(row.forms.front().front().names, layer, 0));
      }
    }
  }
  return plan;
}

Status write_export(const Checkpoint& checkpoint, const std::vector<ExportTensor>& plan,
                    loader::CheckpointWriter& writer, const LoadProgress& progress) {
  int64_t total = 0;
  for (const ExportTensor& out : plan) total += out.tensor.bytes;
  int64_t done = 0;
  std::vector<std::byte> stored;
  std::vector<float> floats;
  std::vector<std::byte> converted;
  for (size_t index = 0; index < plan.size(); ++index) {
    const CheckpointTensor& target = plan[index].tensor;
    const int64_t cols = target.cols();
    const int64_t stride = row_bytes(target.format, cols);
    const int64_t step = std::max<int64_t>(1, kChunkFloats / cols);
    int64_t row = 0;
    for (const TensorRows& source : plan[index].rows) {
      for (int64_t at = 0; at < source.rows; at += step) {
        const int64_t n = std::min(step, source.rows - at);
        stored.resize(n * row_bytes(source.tensor->format, cols));
        floats.resize(n * cols);
        converted.resize(n * stride);
        VAYU_RETURN_IF_ERROR(
            checkpoint.read_floats(*source.tensor, source.first_row + at, n, stored.data(), floats.data()));
        for (int64_t r = 0; r < n; ++r) {
          quantize_row(target.format, floats.data() + r * cols, converted.data() + r * stride, cols);
        }
        VAYU_RETURN_IF_ERROR(writer.write_rows(index, row, n, converted.data()));
        row += n;
        done += n * stride;
        if (progress) progress(done, total);
      }
    }
  }
  VAYU_RETURN_IF_ERROR(checkpoint.check_unchanged());
  return writer.finish();
}

}  // namespace vayu::model
