#include "ops/cpu/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

namespace vayu {
namespace {

double process_cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(ThreadPool, UsesAtLeastOneCore) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_EQ(ThreadPool(0).num_threads(), usable_cores());
  EXPECT_EQ(ThreadPool(3).num_threads(), 3);
}

TEST(ThreadPool, CoversEveryItemOnceInChunksOfTheGrain) {
  for (int num_threads : {1, 2, 3, 8}) {
    ThreadPool pool(num_threads);
    for (int64_t count : {0, 1, 2, 7, 64, 1000}) {
      for (int64_t grain : {0, 1, 3, 64, 5000}) {
        std::vector<std::atomic<int>> visits(count);
        std::atomic<bool> odd_chunk{false};
        pool.parallel_for(count, grain, [&](int64_t begin, int64_t end, int worker) {
          if (begin >= end || worker < 0 || worker >= num_threads) odd_chunk = true;
          if (num_threads > 1 && end - begin > std::max<int64_t>(grain, 1)) odd_chunk = true;
          for (int64_t i = begin; i < end; ++i) ++visits[i];
        });
        EXPECT_FALSE(odd_chunk) << count << " by " << grain;
        for (int64_t i = 0; i < count; ++i) ASSERT_EQ(visits[i], 1) << i << " of " << count << " by " << grain;
      }
    }
  }
}

TEST(ThreadPool, OneChunkRunsInTheCaller) {
  ThreadPool pool(4);
  const auto caller = std::this_thread::get_id();
  pool.parallel_for(8, 8, [&](int64_t begin, int64_t end, int worker) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(worker, 0);
    EXPECT_EQ(end - begin, 8);
  });
}

// Two chunks that each wait for the other can only end when two threads run them.
TEST(ThreadPool, ChunksRunAtTheSameTime) {
  ThreadPool pool(2);
  std::atomic<int> arrived{0};
  pool.parallel_for(2, 1, [&](int64_t, int64_t, int) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, 2);
}

// Plain ints: a race between jobs, or a chunk that outlives its job, shows as a wrong sum (and under TSan).
TEST(ThreadPool, ManyShortJobsSeeEachOthersWrites) {
  ThreadPool pool(4);
  std::vector<int> values(16, 0);
  for (int job = 0; job < 20000; ++job) {
    pool.parallel_for(static_cast<int64_t>(values.size()), 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) ++values[i];
    });
    if (job % 5000 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // let the workers park
  }
  for (int value : values) EXPECT_EQ(value, 20000);
}

TEST(ThreadPool, CountsBeyondTheTicketGetALargerGrain) {
  ThreadPool pool(2);
  std::atomic<int64_t> items{0};
  pool.parallel_for(int64_t{1} << 40, 1, [&](int64_t begin, int64_t end, int) { items += end - begin; });
  EXPECT_EQ(items, int64_t{1} << 40);
}

TEST(ThreadPool, WorkersParkWhenIdle) {
  ThreadPool pool(4);
  pool.parallel_for(16, 1, [](int64_t, int64_t, int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double before = process_cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(process_cpu_seconds() - before, 0.1);  // three spinning threads would burn 0.4 s or more on two cores
}

TEST(ThreadPoolDeathTest, NestedJobsAreRefused) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        ThreadPool pool(2);
        pool.parallel_for(4, 1, [&](int64_t, int64_t, int) { pool.parallel_for(4, 1, [](int64_t, int64_t, int) {}); });
      },
      "inside or beside another");
}

}  // namespace
}  // namespace vayu
