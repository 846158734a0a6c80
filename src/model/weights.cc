#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "model/memory.h"
#include "model/recipe.h"

namespace vayu::model {
namespace {

using loader::GgufFile;
using loader::GgufTensor;

constexpr int32_t kNoLayer = -1;

// One slot of one layer, and the tensors that are stacked into it.
struct Fill {
  Slot slot;
  int32_t layer;
  std::vector<const GgufTensor*> parts;

  int64_t bytes() const {
    int64_t sum = 0;
    for (const GgufTensor* part : parts) sum += part->bytes;
    return sum;
  }
};

bool is_per_layer(Slot slot) { return slot >= Slot::kAttentionNorm; }

int64_t size_of(Dim dim, const ModelConfig& config) {
  switch (dim) {
    case Dim::kHidden:
      return config.hidden;
    case Dim::kQuery:
      return config.q_width();
    case Dim::kKeyValue:
      return config.kv_width();
    case Dim::kFfn:
      return config.ffn;
    case Dim::kVocab:
      return config.vocab_size;
    case Dim::kRotaryHalf:
      return config.rope.rotary_dim / 2;
  }
  return 0;
}

std::string tensor_name(const TensorRow& row, int32_t layer) {
  std::string name(row.name);
  const size_t at = name.find("{}");
  if (at != std::string::npos) name.replace(at, 2, std::to_string(layer));
  return name;
}

// Null for an optional tensor that is not there.
Result<const GgufTensor*> find_checked(const GgufFile& file, const ModelConfig& config, const TensorRow& row,
                                       int32_t layer) {
  const std::string name = tensor_name(row, layer);
  const GgufTensor* tensor = file.find_tensor(name);
  if (!tensor) {
    if (row.optional) return tensor;
    return make_error(ErrorKind::kCorrupt, "{}: tensor '{}' is missing", file.path(), name);
  }
  std::vector<int64_t> expected;
  for (const Dim dim : row.shape) expected.push_back(size_of(dim, config));
  if (tensor->shape != expected) {
    return make_error(ErrorKind::kCorrupt, "{}: tensor '{}' has shape ({}), expected ({})", file.path(), name,
                      fmt::join(tensor->shape, ", "), fmt::join(expected, ", "));
  }
  return tensor;
}

// Every slot with its tensors: global slots first, then layer by layer. Reads no tensor data.
Result<std::vector<Fill>> plan_fills(const GgufFile& file, const Recipe& recipe) {
  std::vector<Fill> fills;
  for (int32_t layer = kNoLayer; layer < recipe.config.num_layers; ++layer) {
    for (const TensorRow& row : recipe.tensors) {
      if (is_per_layer(row.slot) != (layer != kNoLayer)) continue;
      VAYU_ASSIGN_OR_RETURN(const GgufTensor* tensor, find_checked(file, recipe.config, row, layer));
      if (!tensor) continue;
      if (fills.empty() || fills.back().slot != row.slot || fills.back().layer != layer) {
        fills.push_back({row.slot, layer, {}});
      }
      fills.back().parts.push_back(tensor);
    }
  }
  return fills;
}

Status check_nothing_is_left(const GgufFile& file, const Recipe& recipe, const std::vector<Fill>& fills) {
  std::vector<const GgufTensor*> used;
  for (const Fill& fill : fills) used.insert(used.end(), fill.parts.begin(), fill.parts.end());
  std::sort(used.begin(), used.end());
  VAYU_CHECK(std::adjacent_find(used.begin(), used.end()) == used.end(), "a table names one tensor twice");
  for (const GgufTensor& tensor : file.tensors()) {
    if (std::binary_search(used.begin(), used.end(), &tensor)) continue;
    return make_error(ErrorKind::kUnsupported,
                      "{}: tensor '{}' is not part of architecture {} ({} tensors known, {} in "
                      "the file)",
                      file.path(), loader::printable(tensor.name), recipe.config.architecture, used.size(),
                      file.tensors().size());
  }
  return {};
}

std::unique_ptr<ops::Matrix>* matrix_slot(ModelWeights& weights, const Fill& fill) {
  switch (fill.slot) {
    case Slot::kEmbedding:
      return &weights.embedding;
    case Slot::kHead:
      return &weights.head;
    case Slot::kQkv:
      return &weights.layers[fill.layer].qkv;
    case Slot::kAttentionOutput:
      return &weights.layers[fill.layer].attention_output;
    case Slot::kGateUp:
      return &weights.layers[fill.layer].gate_up;
    case Slot::kDown:
      return &weights.layers[fill.layer].down;
    default:
      return nullptr;
  }
}

std::vector<float>& vector_slot(ModelWeights& weights, const Fill& fill) {
  switch (fill.slot) {
    case Slot::kOutputNorm:
      return weights.output_norm;
    case Slot::kRopeFactors:
      return weights.rope_factors;
    case Slot::kAttentionNorm:
      return weights.layers[fill.layer].attention_norm;
    case Slot::kMlpNorm:
      return weights.layers[fill.layer].mlp_norm;
    default:
      break;
  }
  VAYU_CHECK(false, "slot {} is no vector", static_cast<int>(fill.slot));
}

Status fill_vector(const GgufFile& file, const Fill& fill, const std::byte* data, std::vector<float>& out) {
  const GgufTensor& tensor = *fill.parts.front();
  VAYU_CHECK(fill.parts.size() == 1, "vectors are not stacked");
  out.resize(tensor.shape.front());
  dequantize_row(tensor.format, data, out.data(), tensor.shape.front());
  for (const float v : out) {
    if (!std::isfinite(v)) {
      return make_error(ErrorKind::kCorrupt, "{}: tensor '{}' holds a value that is not finite", file.path(),
                        tensor.name);
    }
  }
  return {};
}

Status fill_matrix(const GgufFile& file, const Fill& fill, const ops::OpContext& ctx, const std::byte* data,
                   std::unique_ptr<ops::Matrix>& out) {
  std::vector<ops::MatrixView> views;
  for (const GgufTensor* part : fill.parts) {
    views.push_back({data, part->format, part->shape[0], part->shape[1], part->name});
    data += part->bytes;
  }
  auto packed = ops::pack_matrix(ctx, views);
  if (!packed.ok()) {
    return Error{packed.error().kind, fmt::format("{}: {}", file.path(), packed.error().message), {}};
  }
  out = std::move(*packed);
  return {};
}

Status fill_slot(const GgufFile& file, const Fill& fill, const ops::OpContext& ctx, std::byte* staging,
                 ModelWeights& weights) {
  int64_t offset = 0;
  for (const GgufTensor* part : fill.parts) {
    VAYU_RETURN_IF_ERROR(file.read(*part, staging + offset));
    offset += part->bytes;
  }
  if (auto* matrix = matrix_slot(weights, fill)) return fill_matrix(file, fill, ctx, staging, *matrix);
  return fill_vector(file, fill, staging, vector_slot(weights, fill));
}

int64_t bytes_of(const std::vector<float>& v) { return static_cast<int64_t>(v.size() * sizeof(float)); }
int64_t bytes_of(const std::unique_ptr<ops::Matrix>& m) { return m ? m->bytes() : 0; }

}  // namespace

int64_t ModelWeights::bytes() const {
  int64_t sum = bytes_of(embedding) + bytes_of(output_norm) + bytes_of(head) + bytes_of(rope_factors);
  for (const LayerWeights& layer : layers) {
    sum += bytes_of(layer.attention_norm) + bytes_of(layer.qkv) + bytes_of(layer.attention_output) +
           bytes_of(layer.mlp_norm) + bytes_of(layer.gate_up) + bytes_of(layer.down);
  }
  return sum;
}

Result<ModelWeights> load_weights(const GgufFile& file, const Recipe& recipe, const ops::OpContext& ctx,
                                  const LoadProgress& progress) {
  VAYU_ASSIGN_OR_RETURN(const std::vector<Fill> fills, plan_fills(file, recipe));
  VAYU_RETURN_IF_ERROR(check_nothing_is_left(file, recipe, fills));
  int64_t staging_bytes = 0;
  for (const Fill& fill : fills) staging_bytes = std::max(staging_bytes, fill.bytes());
  VAYU_ASSIGN_OR_RETURN(const AnonymousMemory staging, AnonymousMemory::create(staging_bytes));

  ModelWeights weights;
  weights.layers.resize(recipe.config.num_layers);
  int64_t done = 0;
  for (const Fill& fill : fills) {
    VAYU_RETURN_IF_ERROR(fill_slot(file, fill, ctx, staging.data(), weights));
    done += static_cast<int64_t>(fill.parts.size());
    if (progress) progress(done, static_cast<int64_t>(file.tensors().size()));
  }
  VAYU_RETURN_IF_ERROR(file.check_unchanged());
  return weights;
}

}  // namespace vayu::model
