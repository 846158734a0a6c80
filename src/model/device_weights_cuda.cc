#include "model/device_weights.h"

#include <cstring>

#include "model/recipe.h"
#include "model/weight_plan.h"
#include "ops/cpu/thread_pool.h"
#include "ops/cuda/device.h"
#include "ops/moe/device_route.h"

namespace vayu::model {
namespace {

// Collects host data that goes to the device in one piece.
class SmallData {
 public:
  size_t add(const void* data, size_t bytes) {
    const size_t at = (bytes_.size() + 255) / 256 * 256;
    bytes_.resize(at + bytes);
    std::memcpy(bytes_.data() + at, data, bytes);
    return at;
  }
  size_t add(const std::vector<float>& v) { return add(v.data(), v.size() * sizeof(float)); }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

constexpr size_t kAbsent = SIZE_MAX;

struct LayerPlaces {
  size_t attention_norm, mlp_norm, q_norm, k_norm, latent_norm, router_bias, router;
};

size_t add_optional(SmallData& data, const std::vector<float>& v) { return v.empty() ? kAbsent : data.add(v); }

LayerPlaces add_layer(SmallData& data, const LayerWeights& layer, const ModelConfig& config) {
  LayerPlaces places{data.add(layer.attention_norm),
                     data.add(layer.mlp_norm),
                     add_optional(data, layer.q_norm),
                     add_optional(data, layer.k_norm),
                     add_optional(data, layer.latent_norm),
                     add_optional(data, layer.router_bias),
                     kAbsent};
  if (!layer.router.empty()) {
    const int32_t experts = config.moe.router.num_experts;
    std::vector<std::byte> split(ops::router_weight_bytes(config.hidden, experts));
    ops::split_router_weight(layer.router.data(), config.hidden, experts, split.data());
    places.router = data.add(split.data(), split.size());
  }
  return places;
}

ops::DeviceMatrix view_of(const std::unique_ptr<ops::Matrix>& matrix) {
  return matrix ? ops::device_view(*matrix) : ops::DeviceMatrix{};
}

// The values' part of a matrix that holds the keys' before it.
ops::DeviceMatrix values_of(const ops::DeviceMatrix& latent_to_kv, const ModelConfig& config) {
  const int64_t key_rows = int64_t{config.num_q_heads} * config.mla.nope_dim;
  ops::DeviceMatrix values = latent_to_kv;
  values.data = static_cast<const std::byte*>(values.data) + key_rows * values.row_bytes();
  values.rows -= key_rows;
  return values;
}

DeviceLayer layer_of(const LayerWeights& owned, const LayerPlaces& places, const std::byte* base,
                     const ModelConfig& config) {
  const auto at = [&](size_t place) -> const void* { return place == kAbsent ? nullptr : base + place; };
  const auto floats = [&](size_t place) { return static_cast<const float*>(at(place)); };
  DeviceLayer layer;
  layer.attention_norm = floats(places.attention_norm);
  layer.mlp_norm = floats(places.mlp_norm);
  layer.q_norm = floats(places.q_norm);
  layer.k_norm = floats(places.k_norm);
  layer.latent_norm = floats(places.latent_norm);
  layer.router_bias = floats(places.router_bias);
  layer.router = at(places.router);
  layer.qkv = view_of(owned.qkv);
  layer.latent_to_k = view_of(owned.latent_to_k);
  layer.latent_to_kv = view_of(owned.latent_to_kv);
  layer.latent_to_v = owned.latent_to_kv ? values_of(layer.latent_to_kv, config) : view_of(owned.latent_to_v);
  layer.attention_output = view_of(owned.attention_output);
  layer.gate_up = view_of(owned.gate_up);
  layer.down = view_of(owned.down);
  layer.expert_gate_up = view_of(owned.expert_gate_up);
  layer.expert_down = view_of(owned.expert_down);
  layer.moe = layer.expert_gate_up.rows > 0;
  return layer;
}

Status place_small(DeviceWeights& weights, const Recipe& recipe) {
  VAYU_ASSIGN_OR_RETURN(const RopeFrequencies rope, rope_frequencies(recipe.config.rope, weights.owned.rope_factors));
  weights.attention_factor = rope.attention_factor;
  SmallData data;
  const size_t output_norm = data.add(weights.owned.output_norm), inv_freq = data.add(rope.inv_freq);
  std::vector<LayerPlaces> places;
  for (const LayerWeights& layer : weights.owned.layers) places.push_back(add_layer(data, layer, recipe.config));
  const auto bytes = static_cast<int64_t>(data.bytes().size());
  VAYU_ASSIGN_OR_RETURN(weights.small, ops::DeviceMemory::create(bytes));
  VAYU_RETURN_IF_ERROR(ops::copy_to_device(weights.small.data(), data.bytes().data(), bytes, nullptr));
  VAYU_RETURN_IF_ERROR(ops::synchronize(nullptr));
  weights.output_norm = reinterpret_cast<const float*>(weights.small.data() + output_norm);
  weights.inv_freq = reinterpret_cast<const float*>(weights.small.data() + inv_freq);
  for (size_t i = 0; i < places.size(); ++i) {
    weights.layers.push_back(layer_of(weights.owned.layers[i], places[i], weights.small.data(), recipe.config));
  }
  return {};
}

}  // namespace

int32_t loading_threads(const ThreadPool* pool) { return pool != nullptr ? pool->num_threads() : 1; }

Result<DeviceWeights> load_device_weights(const loader::Checkpoint& checkpoint, const Recipe& recipe,
                                          const DeviceFormats& formats, ThreadPool* pool,
                                          const LoadProgress& progress) {
  VAYU_ASSIGN_OR_RETURN(const auto staging, ops::WeightStaging::create(loading_threads(pool)));
  WeightOptions options;
  options.ops.pool = pool;
  options.progress = progress;
  options.part_format = [&](const Fill& fill, const TensorRows& part) {
    return formats.part_format(checkpoint, fill, part);
  };
  options.make_matrix = [&](const MatrixRequest& request) {
    const ops::WeightScale scale = formats.scale(request.slot, request.layer);
    return ops::CudaMatrix::create(device_shape(request.slot, request.cols, request.gate_up_ffn, scale), request.parts,
                                   staging.get());
  };
  DeviceWeights weights;
  VAYU_ASSIGN_OR_RETURN(weights.owned, load_weights(checkpoint, recipe, options));
  VAYU_RETURN_IF_ERROR(staging->failure());
  VAYU_RETURN_IF_ERROR(place_small(weights, recipe));
  weights.embedding = view_of(weights.owned.embedding);
  weights.head = weights.owned.head ? view_of(weights.owned.head) : weights.embedding;
  weights.bytes = weights.owned.matrix_bytes() + weights.small.bytes();  // vectors are in `small`
  return weights;
}

}  // namespace vayu::model
