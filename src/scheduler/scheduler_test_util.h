// What scheduler_test.cc and plan_test.cc share: small configurations, requests, and what must hold at the end.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "scheduler/sim_harness.h"

namespace vayu {

constexpr TokenId kEnd = 2;

inline ExecutorLimits limits(int32_t num_pages = 64, int32_t page_size = 16, int32_t max_context = 4096) {
  return {.vocab_size = 500,
          .page_size = page_size,
          .num_pages = num_pages,
          .max_step_tokens = 512,
          .max_rows = 64,
          .max_context = max_context};
}

inline SchedulerConfig config() {
  SchedulerConfig config;
  config.end_ids = {kEnd};
  return config;
}

inline SimModel model() { return {.seed = 9, .end_ids = {kEnd}}; }

// A prompt of `len` tokens; `kind` sets what they are.
inline Request make_request(RequestId id, int32_t len, int32_t max_tokens, uint64_t kind = 0) {
  Request request;
  request.id = id;
  uint64_t h = kind;
  for (int32_t i = 0; i < len; ++i) {
    h = sim_extend(h, i, i);
    request.prompt.push_back(static_cast<TokenId>(3 + h % 400));
  }
  request.sampling.temperature = 0;
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  request.arrival_us = static_cast<int64_t>(id);
  return request;
}

inline void expect_reference(const SimHarness& sim, const Request& request) {
  for (int32_t choice = 0; choice < request.n; ++choice) EXPECT_EQ(sim.difference(request, choice), "");
  EXPECT_EQ(sim.faults, std::vector<std::string>{});
}

inline void expect_idle(SimHarness& sim) {
  EXPECT_FALSE(sim.scheduler.has_work());
  EXPECT_FALSE(sim.step());
  const EngineStats stats = sim.scheduler.stats();
  EXPECT_EQ(stats.running + stats.waiting, 0);
  EXPECT_EQ(stats.free_pages + stats.cached_pages, stats.total_pages);
  EXPECT_EQ(stats.step_running_since_us, 0);
  EXPECT_EQ(sim.scheduler.flush_cache(), stats.cached_pages);
  EXPECT_EQ(sim.scheduler.stats().free_pages, stats.total_pages);
}

}  // namespace vayu
