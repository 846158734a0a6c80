// Windows over the steps of an executor that only counts: which steps a window holds, and that what is recorded is
// theirs alone.
#include "engine/profiled_executor.h"

#include <gtest/gtest.h>

#include <deque>
#include <optional>
#include <random>
#include <thread>

namespace vayu {
namespace {

// What executor and recorder share: a device that works when it must.
struct Device {
  std::deque<int> queue;  // steps that have not run
  std::optional<std::vector<KernelRecord>> recording;
  int64_t clock_ns = 0;
  int settles = 0;
  bool fail_settle = false;
  bool fail_start = false;

  void run_all() {
    for (; !queue.empty(); queue.pop_front()) {
      clock_ns += 1000;
      if (recording) recording->push_back({std::to_string(queue.front()), clock_ns - 1000, clock_ns, 0});
    }
  }
};

class FakeExecutor final : public Executor {
 public:
  explicit FakeExecutor(Device& device) : device_(device) {}
  const ExecutorLimits& limits() const override { return limits_; }
  bool overlaps() const override { return true; }
  void launch(const Batch&) override { device_.queue.push_back(launches_++); }
  void wait(StepOutput& output) override {
    VAYU_CHECK(waits_ < launches_, "nothing is under way");
    device_.run_all();
    if (waits_++ == fail_at_) output.failure = make_error(ErrorKind::kUnavailable, "the device is gone");
  }
  int fail_at_ = -1;

 private:
  Device& device_;
  ExecutorLimits limits_{.max_rows = 7};
  int launches_ = 0, waits_ = 0;
};

class FakeRecorder final : public StepRecorder {
 public:
  explicit FakeRecorder(Device& device) : device_(device) {}
  const std::string& device() const override { return name_; }
  Status settle() override {
    ++device_.settles;
    if (device_.fail_settle) return make_error(ErrorKind::kUnavailable, "no answer");
    device_.run_all();
    return {};
  }
  Status start() override {
    EXPECT_TRUE(device_.queue.empty()) << "started in the middle of a step";
    EXPECT_FALSE(device_.recording);
    if (device_.fail_start) return make_error(ErrorKind::kUnavailable, "CUPTI: records: busy");
    device_.recording.emplace();
    return {};
  }
  Result<std::vector<KernelRecord>> stop() override {
    EXPECT_TRUE(device_.queue.empty()) << "stopped in the middle of a step";
    VAYU_CHECK(device_.recording, "not recording");
    return *std::exchange(device_.recording, {});
  }
  int64_t now_ns() const override { return device_.clock_ns; }

 private:
  Device& device_;
  const std::string name_ = "fake";
};

class ProfiledExecutorTest : public ::testing::Test {
 protected:
  ProfiledExecutorTest() {
    auto executor = std::make_unique<FakeExecutor>(device_);
    fake_ = executor.get();
    profiled_ = std::make_unique<ProfiledExecutor>(std::move(executor), std::make_unique<FakeRecorder>(device_));
  }
  void launch(int32_t tokens = 3, int32_t rows = 2) {
    Batch batch;
    batch.token_ids.resize(tokens);
    batch.kv_lens.resize(rows);
    profiled_->launch(batch);
  }
  void wait() { profiled_->wait(output_); }
  StepProfiler::WindowId open(int32_t steps) {
    result_.reset();
    return profiled_->open(steps, [this](Result<StepProfile> profile) {
      EXPECT_FALSE(result_) << "told twice";
      result_.emplace(std::move(profile));
    });
  }
  std::vector<std::string> recorded() const {
    std::vector<std::string> names;
    for (const KernelRecord& record : result_->value().records) names.push_back(record.name);
    return names;
  }

  Device device_;
  FakeExecutor* fake_ = nullptr;
  std::unique_ptr<ProfiledExecutor> profiled_;
  StepOutput output_;
  std::optional<Result<StepProfile>> result_;
};

using Names = std::vector<std::string>;

TEST_F(ProfiledExecutorTest, PassesThrough) {
  EXPECT_TRUE(profiled_->overlaps());
  EXPECT_EQ(profiled_->limits().max_rows, 7);
  launch();
  launch();
  wait();
  wait();
  EXPECT_EQ(device_.settles, 0);
  EXPECT_FALSE(device_.recording);
}

TEST_F(ProfiledExecutorTest, AWindowHoldsWholeStepsOfAnOverlappingRun) {
  launch();  // 0, under way when the window is asked for
  ASSERT_NE(open(2), 0u);
  EXPECT_FALSE(device_.recording);
  launch(5, 4);  // 1
  EXPECT_EQ(device_.settles, 1);
  wait();
  launch(6, 6);  // 2
  EXPECT_FALSE(result_);
  wait();
  launch();  // 3: no longer
  ASSERT_TRUE(result_);
  ASSERT_TRUE(result_->ok());
  EXPECT_EQ(recorded(), (Names{"1", "2"}));
  const StepProfile& profile = result_->value();
  EXPECT_EQ(profile.device, "fake");
  ASSERT_EQ(profile.steps.size(), 2u);
  EXPECT_EQ(profile.steps[0].tokens, 5);
  EXPECT_EQ(profile.steps[1].rows, 6);
  EXPECT_DOUBLE_EQ(profile.host_us, 2);
  EXPECT_FALSE(device_.recording);
  wait();
  wait();
}

TEST_F(ProfiledExecutorTest, TheLastStepOfARunEndsItsWindow) {
  ASSERT_NE(open(2), 0u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(result_);
    launch();
    wait();
  }
  ASSERT_TRUE(result_);
  EXPECT_EQ(recorded(), (Names{"0", "1"}));
}

TEST_F(ProfiledExecutorTest, OneAtATime) {
  const auto first = open(1);
  ASSERT_NE(first, 0u);
  EXPECT_EQ(profiled_->open(1, [](Result<StepProfile>) { FAIL(); }), 0u);
  profiled_->end(first + 1);  // of nobody
  EXPECT_FALSE(result_);
  launch();
  EXPECT_EQ(profiled_->open(1, [](Result<StepProfile>) { FAIL(); }), 0u);
  wait();
  ASSERT_TRUE(result_);
  const auto second = open(1);
  EXPECT_NE(second, 0u);
  profiled_->end(first);  // long ended
  EXPECT_FALSE(result_);
  launch();
  wait();
  EXPECT_EQ(recorded(), (Names{"1"}));
}

TEST_F(ProfiledExecutorTest, EndedWithoutASingleStep) {
  profiled_->end(open(3));
  ASSERT_TRUE(result_);
  EXPECT_TRUE(result_->value().steps.empty());
  EXPECT_FALSE(device_.recording);
  launch();
  wait();
  EXPECT_EQ(device_.settles, 0);
}

TEST_F(ProfiledExecutorTest, EndedWhileIdleAndWhileAStepRuns) {
  auto window = open(9);
  launch();
  wait();
  profiled_->end(window);
  ASSERT_TRUE(result_);
  EXPECT_EQ(recorded(), (Names{"0"}));

  window = open(9);
  launch();
  profiled_->end(window);
  EXPECT_FALSE(result_);
  profiled_->end(window);  // again
  wait();
  ASSERT_TRUE(result_);
  EXPECT_EQ(recorded(), (Names{"1"}));

  window = open(9);
  launch();
  profiled_->end(window);
  launch();  // ends it ahead of itself
  ASSERT_TRUE(result_);
  EXPECT_EQ(recorded(), (Names{"2"}));
  wait();
  wait();
}

TEST_F(ProfiledExecutorTest, FailuresReachWhoAsked) {
  device_.fail_start = true;
  open(2);
  launch();
  ASSERT_TRUE(result_);
  EXPECT_EQ(result_->error().message, "CUPTI: records: busy");
  wait();
  device_.fail_start = false;

  open(1);
  launch();
  launch();  // closes with the first, and starts nothing
  EXPECT_TRUE(result_->ok());
  wait();
  wait();

  open(1);
  launch();
  device_.fail_settle = true;
  launch();
  EXPECT_EQ(result_->error().message, "no answer");
  wait();
  wait();
}

TEST_F(ProfiledExecutorTest, ALostDeviceEndsTheWindow) {
  fake_->fail_at_ = 1;
  open(5);
  launch();
  launch();
  wait();
  EXPECT_FALSE(result_);
  wait();
  ASSERT_TRUE(result_);
  EXPECT_EQ(result_->error().message, "the device is gone");
}

// Another thread opens and ends windows at any time, while steps run two at once and while none is under way.
TEST_F(ProfiledExecutorTest, WindowsFromAnotherThread) {
  std::atomic<bool> stop = false;
  std::thread asker([&] {
    std::minstd_rand random(7);
    for (int i = 0; i < 400; ++i) {
      const int32_t steps = 1 + static_cast<int32_t>(random() % 4);
      std::atomic<bool> told = false;
      const auto window = profiled_->open(steps, [&](Result<StepProfile> profile) {
        ASSERT_TRUE(profile.ok());
        EXPECT_LE(profile->steps.size(), static_cast<size_t>(steps));
        ASSERT_EQ(profile->records.size(), profile->steps.size());
        for (size_t s = 1; s < profile->records.size(); ++s) {
          EXPECT_EQ(std::stoi(profile->records[s].name), std::stoi(profile->records[s - 1].name) + 1);
        }
        told = true;
      });
      EXPECT_NE(window, 0u);
      for (int spin = static_cast<int>(random() % 50); spin > 0; --spin) std::this_thread::yield();
      if (random() % 2) profiled_->end(window);
      while (!told) std::this_thread::yield();
    }
    stop = true;
  });
  std::minstd_rand random(8);
  while (!stop) {
    launch();
    for (auto more = random() % 8; more > 0; --more) {
      launch();
      wait();
    }
    wait();
    for (auto spin = random() % 50; spin > 0; --spin) std::this_thread::yield();
  }
  asker.join();
}

}  // namespace
}  // namespace vayu
