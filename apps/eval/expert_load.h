// How often the router of each MoE layer chose each expert.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace vayu::eval {

struct LayerLoad {
  int32_t layer = 0;
  int64_t choices = 0;        // tokens * top_k
  std::vector<double> share;  // (num_experts) of the choices; sums to 1
  int32_t busiest = 0;        // expert
  double max_over_uniform = 0;
  double gini = 0;
  std::vector<int32_t> never_chosen;
};

class ExpertLoad {
 public:
  ExpertLoad(int32_t num_experts, int32_t top_k) : num_experts_(num_experts), top_k_(top_k) {}
  // Counts the experts of some tokens of a step. expert_ids: (num_tokens, top_k); tokens: rows of it.
  void count(int32_t layer, const int32_t* expert_ids, std::span<const int32_t> tokens);
  std::vector<LayerLoad> layers() const;  // those that were counted, ascending

 private:
  int32_t num_experts_;
  int32_t top_k_;
  std::map<int32_t, std::vector<int64_t>> counts_;  // layer -> (num_experts)
};

}  // namespace vayu::eval
