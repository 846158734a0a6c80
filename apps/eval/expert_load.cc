#include "apps/eval/expert_load.h"

#include <algorithm>
#include <numeric>

#include "apps/eval/metrics.h"

namespace vayu::eval {

void ExpertLoad::count(int32_t layer, const int32_t* expert_ids, std::span<const int32_t> tokens) {
  std::vector<int64_t>& counts = counts_[layer];
  counts.resize(num_experts_);
  for (const int32_t token : tokens) {
    const int32_t* chosen = expert_ids + int64_t{token} * top_k_;
    for (int32_t j = 0; j < top_k_; ++j) ++counts[chosen[j]];
  }
}

std::vector<LayerLoad> ExpertLoad::layers() const {
  std::vector<LayerLoad> layers;
  for (const auto& [layer, counts] : counts_) {
    LayerLoad load{.layer = layer, .choices = std::accumulate(counts.begin(), counts.end(), int64_t{0})};
    if (load.choices == 0) continue;
    for (int32_t expert = 0; expert < num_experts_; ++expert) {
      load.share.push_back(static_cast<double>(counts[expert]) / static_cast<double>(load.choices));
      if (counts[expert] == 0) load.never_chosen.push_back(expert);
    }
    load.busiest = static_cast<int32_t>(std::max_element(counts.begin(), counts.end()) - counts.begin());
    load.max_over_uniform = load.share[load.busiest] * num_experts_;
    load.gini = gini(load.share);
    layers.push_back(std::move(load));
  }
  return layers;
}

}  // namespace vayu::eval
