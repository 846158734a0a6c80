#include "model/weights.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <string>

#include "loader/fp8_scales.h"
#include "loader/name_pattern.h"
#include "model/memory.h"
#include "model/recipe.h"
#include "model/weight_plan.h"
#include "ops/cpu/thread_pool.h"

namespace vayu::model {
namespace {

using loader::Checkpoint;
using loader::CheckpointTensor;

constexpr int64_t kChunkFloats = 1 << 20;  // elements a thread holds at a time, as stored, as floats and converted

std::unique_ptr<ops::Matrix>& matrix_of(ModelWeights& weights, const Fill& fill) {
  if (fill.slot == Slot::kEmbedding) return weights.embedding;
  if (fill.slot == Slot::kHead) return weights.head;
  LayerWeights& layer = weights.layers[fill.layer];
  switch (fill.slot) {
    case Slot::kQkv:
      return layer.qkv;
    case Slot::kLatentKv:
      if (fill.latent == LatentPart::kToKv) return layer.latent_to_kv;
      return fill.latent == LatentPart::kToK ? layer.latent_to_k : layer.latent_to_v;
    case Slot::kAttentionOutput:
      return layer.attention_output;
    case Slot::kGateUp:
      return layer.gate_up;
    case Slot::kDown:
      return layer.down;
    case Slot::kExpertGateUp:
      return layer.expert_gate_up;
    case Slot::kExpertDown:
      return layer.expert_down;
    default:
      break;
  }
  VAYU_CHECK(false, "slot {} is no matrix", static_cast<int>(fill.slot));
}

std::vector<float>& vector_of(ModelWeights& weights, const Fill& fill) {
  if (fill.slot == Slot::kOutputNorm) return weights.output_norm;
  if (fill.slot == Slot::kRopeFactors) return weights.rope_factors;
  LayerWeights& layer = weights.layers[fill.layer];
  switch (fill.slot) {
    case Slot::kAttentionNorm:
      return layer.attention_norm;
    case Slot::kQNorm:
      return layer.q_norm;
    case Slot::kKNorm:
      return layer.k_norm;
    case Slot::kLatentNorm:
      return layer.latent_norm;
    case Slot::kMlpNorm:
      return layer.mlp_norm;
    case Slot::kRouter:
      return layer.router;
    case Slot::kRouterBias:
      return layer.router_bias;
    default:
      break;
  }
  VAYU_CHECK(false, "slot {} is no vector", static_cast<int>(fill.slot));
}

// A part keeps the form it is stored in unless that is FP8, whose scales the CPU's matrices do not hold.
DataFormat stored_format(const Checkpoint& checkpoint, const CheckpointTensor& tensor) {
  const bool fp8 = tensor.format == DataFormat::kF8E4M3 || tensor.format == DataFormat::kF8E5M2;
  return fp8 || checkpoint.has_scales(tensor) ? DataFormat::kBF16 : tensor.format;
}

DataFormat target_format(const Checkpoint& checkpoint, Slot slot, const TensorRows& part,
                         const WeightOptions& options) {
  std::optional<DataFormat> wanted = options.format;
  if (loader::matches_any(options.ignore, part.tensor->name)) wanted.reset();
  DataFormat format = wanted.value_or(stored_format(checkpoint, *part.tensor));
  const bool outer = slot == Slot::kEmbedding || slot == Slot::kHead;
  const FormatInfo& info = format_info(format);
  if (wanted && outer && info.block_size > 1) format = DataFormat::kQ8_0;
  if (part.out_cols() % format_info(format).block_size != 0) format = DataFormat::kBF16;
  return format;
}

// Rows of one part that one thread moves at a time.
struct Chunk {
  const TensorRows* part;
  ops::Matrix* matrix;
  size_t part_index;
  DataFormat format;
  int64_t first_row;  // of the output
  int64_t rows;
};

// What one thread holds while it moves a chunk.
struct Staging {
  std::vector<std::byte> stored;
  std::vector<float> floats;
  std::vector<float> turned;
  std::vector<std::byte> converted;

  template <class T>
  static T* room(std::vector<T>& v, int64_t n) {
    if (static_cast<int64_t>(v.size()) < n) v.resize(n);
    return v.data();
  }
};

class WeightLoader {
 public:
  WeightLoader(const Checkpoint& checkpoint, const Recipe& recipe, const WeightOptions& options)
      : checkpoint_(checkpoint), recipe_(recipe), options_(options) {}

  Result<ModelWeights> load() {
    VAYU_ASSIGN_OR_RETURN(fills_, plan_weights(checkpoint_, recipe_));
    for (const Fill& fill : fills_) {  // the keys' part of kv_b_proj may be read twice
      for (const TensorRows& part : fill.parts) {
        total_ += part.rows * row_bytes(part.tensor->format, part.tensor->cols());
      }
    }
    weights_.layers.resize(recipe_.config.num_layers);
    for (const Fill& fill : fills_) {
      VAYU_RETURN_IF_ERROR(is_vector(fill.slot) ? fill_vector(fill) : reserve(fill));
    }
    VAYU_RETURN_IF_ERROR(move_chunks());
    VAYU_RETURN_IF_ERROR(checkpoint_.check_unchanged());
    return std::move(weights_);
  }

 private:
  Status fill_vector(const Fill& fill) {
    const CheckpointTensor& tensor = *fill.parts.front().tensor;
    VAYU_CHECK(fill.parts.size() == 1, "vectors are not stacked");
    std::vector<float>& out = vector_of(weights_, fill);
    out.resize(tensor.rows() * tensor.cols());
    std::byte* staging = Staging::room(vector_staging_, tensor.bytes);
    VAYU_RETURN_IF_ERROR(checkpoint_.read_floats(tensor, 0, tensor.rows(), staging, out.data()));
    for (const float v : out) {
      if (std::isfinite(v)) continue;
      return make_error(ErrorKind::kCorrupt, "{}: tensor '{}' holds a value that is not finite", checkpoint_.path(),
                        tensor.name);
    }
    report(tensor.bytes);
    return {};
  }

  // The matrix at its final size, and its parts cut in chunks.
  Status reserve(const Fill& fill) {
    std::vector<ops::PartShape> shapes;
    for (const TensorRows& part : fill.parts) {
      const DataFormat format = options_.part_format ? options_.part_format(fill, part)
                                                     : target_format(checkpoint_, fill.slot, part, options_);
      shapes.push_back({format, part.out_rows(), part.tensor->name});
    }
    auto matrix = make_matrix(fill, shapes);
    if (!matrix.ok()) {
      return Error{matrix.error().kind, fmt::format("{}: {}", checkpoint_.path(), matrix.error().message), {}};
    }
    for (size_t i = 0; i < fill.parts.size(); ++i) {
      const TensorRows& part = fill.parts[i];
      const int64_t whole = part.out_rows();
      const int64_t fitting = kChunkFloats / std::max<int64_t>(1, part.out_cols()) / ops::kFillRows * ops::kFillRows;
      const int64_t step = part.transposed ? whole : std::max(fitting, ops::kFillRows);
      for (int64_t row = 0; row < whole; row += step) {
        chunks_.push_back({&part, matrix->get(), i, shapes[i].format, row, std::min(step, whole - row)});
      }
    }
    matrix_of(weights_, fill) = std::move(*matrix);
    return {};
  }

  Result<std::unique_ptr<ops::Matrix>> make_matrix(const Fill& fill, const std::vector<ops::PartShape>& shapes) const {
    const int64_t cols = fill.parts.front().out_cols();
    if (!options_.make_matrix) return ops::reserve_matrix(options_.ops, cols, shapes);
    return options_.make_matrix({.cols = cols,
                                 .parts = shapes,
                                 .slot = fill.slot,
                                 .layer = fill.layer,
                                 .gate_up_ffn = gate_up_ffn(fill, recipe_.config)});
  }

  Status move_chunks() {
    const auto num_chunks = static_cast<int64_t>(chunks_.size());
    if (!options_.ops.pool) {
      Staging staging;
      for (const Chunk& chunk : chunks_) VAYU_RETURN_IF_ERROR(move(chunk, staging));
      return {};
    }
    std::vector<Staging> staging(options_.ops.pool->num_threads());
    std::atomic<bool> failed = false;
    Status first_failure;
    options_.ops.pool->parallel_for(num_chunks, 1, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t i = begin; i < end && !failed.load(std::memory_order_relaxed); ++i) {
        Status status = move(chunks_[i], staging[thread]);
        if (status.ok()) continue;
        const std::lock_guard lock(mutex_);
        if (!failed.exchange(true)) first_failure = std::move(status);
      }
    });
    return first_failure;
  }

  Status move(const Chunk& chunk, Staging& staging) {
    const TensorRows& part = *chunk.part;
    const CheckpointTensor& tensor = *part.tensor;
    const int64_t first = part.first_row + (part.transposed ? 0 : chunk.first_row);
    const int64_t rows = part.transposed ? part.rows : chunk.rows;
    const int64_t stored_bytes = rows * row_bytes(tensor.format, tensor.cols());
    const ops::SeededRows* seeded = part.transposed ? nullptr : checkpoint_.seeded(tensor);
    if (seeded && chunk.matrix->fill_seeded(chunk.part_index, chunk.first_row, rows, *seeded, first * tensor.cols())) {
      report(stored_bytes);
      return {};
    }
    std::byte* stored = Staging::room(staging.stored, stored_bytes);
    if (chunk.format == DataFormat::kF8E4M3) {
      const loader::Fp8Scales& scales = *checkpoint_.scales(tensor);
      float* given = Staging::room(staging.floats, rows * scales.per_row());
      scales.copy_rows(first, rows, given);
      VAYU_RETURN_IF_ERROR(checkpoint_.read_rows(tensor, first, rows, stored));
      chunk.matrix->fill_scaled(chunk.part_index, chunk.first_row, rows, stored, given);
    } else if (chunk.format == tensor.format && !part.transposed && !checkpoint_.has_scales(tensor)) {
      VAYU_RETURN_IF_ERROR(checkpoint_.read_rows(tensor, first, rows, stored));
      chunk.matrix->fill(chunk.part_index, chunk.first_row, rows, stored);
    } else {
      float* floats = Staging::room(staging.floats, rows * tensor.cols());
      VAYU_RETURN_IF_ERROR(checkpoint_.read_floats(tensor, first, rows, stored, floats));
      if (part.transposed) floats = transpose(floats, rows, tensor.cols(), staging);
      convert(chunk, floats, staging);
    }
    report(stored_bytes);
    return {};
  }

  static float* transpose(const float* x, int64_t rows, int64_t cols, Staging& staging) {
    float* out = Staging::room(staging.turned, rows * cols);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) out[c * rows + r] = x[r * cols + c];
    }
    return out;
  }

  void convert(const Chunk& chunk, const float* floats, Staging& staging) const {
    if (chunk.format == DataFormat::kF32) {
      chunk.matrix->fill(chunk.part_index, chunk.first_row, chunk.rows, floats);
      return;
    }
    const int64_t cols = chunk.part->out_cols();
    const int64_t stride = row_bytes(chunk.format, cols);
    std::byte* out = Staging::room(staging.converted, chunk.rows * stride);
    for (int64_t r = 0; r < chunk.rows; ++r) quantize_row(chunk.format, floats + r * cols, out + r * stride, cols);
    chunk.matrix->fill(chunk.part_index, chunk.first_row, chunk.rows, out);
  }

  void report(int64_t bytes) {
    if (!options_.progress) return;
    const std::lock_guard lock(mutex_);
    done_ += bytes;
    options_.progress(done_, total_);
  }

  const Checkpoint& checkpoint_;
  const Recipe& recipe_;
  const WeightOptions& options_;
  std::vector<Fill> fills_;
  std::vector<Chunk> chunks_;
  std::vector<std::byte> vector_staging_;
  ModelWeights weights_;
  std::mutex mutex_;
  int64_t done_ = 0;
  int64_t total_ = 0;
};

int64_t bytes_of(const std::vector<float>& v) { return static_cast<int64_t>(v.size() * sizeof(float)); }
int64_t bytes_of(const std::unique_ptr<ops::Matrix>& m) { return m ? m->bytes() : 0; }

int64_t vector_bytes(const LayerWeights& layer) {
  int64_t sum = 0;
  for (const auto* v : {&layer.attention_norm, &layer.q_norm, &layer.k_norm, &layer.latent_norm, &layer.mlp_norm,
                        &layer.router, &layer.router_bias}) {
    sum += bytes_of(*v);
  }
  return sum;
}

int64_t matrix_bytes(const LayerWeights& layer) {
  int64_t sum = 0;
  for (const auto* m :
       {&layer.qkv, &layer.latent_to_k, &layer.latent_to_v, &layer.latent_to_kv, &layer.attention_output,
        &layer.gate_up, &layer.down, &layer.expert_gate_up, &layer.expert_down}) {
    sum += bytes_of(*m);
  }
  return sum;
}

}  // namespace

int64_t ModelWeights::matrix_bytes() const {
  int64_t sum = bytes_of(embedding) + bytes_of(head);
  for (const LayerWeights& layer : layers) sum += model::matrix_bytes(layer);
  return sum;
}

int64_t ModelWeights::bytes() const {
  int64_t sum = matrix_bytes() + bytes_of(output_norm) + bytes_of(rope_factors);
  for (const LayerWeights& layer : layers) sum += vector_bytes(layer);
  return sum;
}

Result<ModelWeights> load_weights(const Checkpoint& checkpoint, const Recipe& recipe, const WeightOptions& options) {
  return WeightLoader(checkpoint, recipe, options).load();
}

}  // namespace vayu::model
