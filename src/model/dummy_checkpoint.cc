#include "model/dummy_checkpoint.h"

#include <cmath>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

#include "ops/gemm/seeded_rows.h"

namespace vayu::model {
namespace {

using loader::CheckpointTensor;

constexpr double kSigmaOfSum = 37837.22659;  // sqrt((65536^2 - 1) / 3)

uint64_t fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

struct Distribution {
  double mean = 0;
  double sigma = 1;
};

Distribution distribution(Slot slot, const ModelConfig& config, int64_t fan_in) {
  switch (slot) {
    case Slot::kEmbedding:
      return {0, config.tied_head ? 1 / std::sqrt(static_cast<double>(config.hidden)) : 1};
    case Slot::kRouter:
      return {0, 1.5 / std::sqrt(static_cast<double>(fan_in))};
    case Slot::kRouterBias:
      return {0.2, 0.3};
    default:
      if (is_vector(slot)) return {1, 0.3};
      return {0, 1 / std::sqrt(static_cast<double>(fan_in))};
  }
}

class DummyCheckpoint final : public loader::Checkpoint {
 public:
  DummyCheckpoint(const Recipe& recipe, uint64_t seed, std::string path) : path_(std::move(path)) {
    for (const SlotRow& row : recipe.slots) {
      if (row.optional) continue;
      for (const int32_t layer : layers_of(row, recipe)) add_row(row, layer, recipe.config, seed);
    }
    for (size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
  }

  const std::string& path() const override { return path_; }
  std::span<const CheckpointTensor> tensors() const override { return tensors_; }
  const CheckpointTensor* find_tensor(std::string_view name) const override {
    const auto found = index_.find(name);
    return found == index_.end() ? nullptr : &tensors_[found->second];
  }

  Status read_rows(const CheckpointTensor& tensor, int64_t first_row, int64_t num_rows, std::byte* dst) const override {
    const ops::SeededRows& source = *seeded(tensor);
    const int64_t first = first_row * tensor.cols();
    const int64_t count = num_rows * tensor.cols();
    for (int64_t i = 0; i < count; ++i) {
      const float v = ops::seeded_value(source, static_cast<uint64_t>(first + i));
      std::memcpy(dst + i * sizeof(float), &v, sizeof(v));
    }
    return {};
  }

  const ops::SeededRows* seeded(const CheckpointTensor& tensor) const override {
    return &sources_[&tensor - tensors_.data()];
  }

  Status check_unchanged() const override { return {}; }

 private:
  void add_row(const SlotRow& row, int32_t layer, const ModelConfig& config, uint64_t seed) {
    for (const TensorPattern& pattern : row.forms.front()) {
      const int32_t experts = is_per_expert(pattern) ? config.moe.router.num_experts : 1;
      for (int32_t expert = 0; expert < experts; ++expert) {
        CheckpointTensor tensor;
        tensor.name = tensor_name(pattern.names.substr(0, pattern.names.find('|')), layer, expert);
        int64_t elements = 1;
        for (const Dim dim : pattern.shape) {
          tensor.shape.push_back(size_of(dim, config));
          elements *= tensor.shape.back();
        }
        tensor.bytes = elements * static_cast<int64_t>(sizeof(float));
        const Distribution d = distribution(row.slot, config, tensor.cols());
        sources_.push_back({ops::seed_mix(fnv1a(tensor.name) + seed * ops::kSeedStep), d.mean, d.sigma / kSigmaOfSum});
        tensors_.push_back(std::move(tensor));
      }
    }
  }

  std::string path_;
  std::vector<CheckpointTensor> tensors_;
  std::vector<ops::SeededRows> sources_;                // of each tensor
  std::unordered_map<std::string_view, size_t> index_;  // views of names in tensors_
};

}  // namespace

std::shared_ptr<const loader::Checkpoint> dummy_checkpoint(const Recipe& recipe, uint64_t seed, std::string path) {
  return std::make_shared<DummyCheckpoint>(recipe, seed, std::move(path));
}

}  // namespace vayu::model
