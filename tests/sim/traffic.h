// Random requests for the simulator: everything follows from one seed.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "core/executor.h"
#include "core/request.h"
#include "scheduler/scheduler.h"
#include "scheduler/sim_executor.h"

namespace vayu {

// One episode: a configuration and a kind of traffic, until the engine is idle again.
struct Episode {
  SchedulerConfig config;
  ExecutorLimits limits;
  SimModel model;
  int32_t arrivals_until_step = 0;  // then it runs dry
  double arrivals_per_step = 0;     // mean
  double cancels_per_step = 0;
  bool priorities = false;
  bool deadlines = false;
};

class Traffic {
 public:
  explicit Traffic(uint64_t seed) : random_(seed) {}

  Episode make_episode();
  Request make_request(const Episode& episode, RequestId id, int64_t now_us);

  int32_t uniform(int32_t low, int32_t high) { return std::uniform_int_distribution<int32_t>(low, high)(random_); }
  bool chance(double p) { return std::bernoulli_distribution(p)(random_); }
  int32_t arrivals(const Episode& episode);
  template <class T>
  T pick(std::initializer_list<T> values) {
    return *(values.begin() + uniform(0, static_cast<int32_t>(values.size()) - 1));
  }

 private:
  SchedulerConfig make_config(int32_t vocab_size);
  std::vector<TokenId> make_prompt(const Episode& episode, int32_t max_len);
  void make_sampling(SamplingParams& params, const Episode& episode);

  std::mt19937_64 random_;
  std::vector<std::vector<TokenId>> prefixes_;  // shared by many prompts of the episode
};

}  // namespace vayu
