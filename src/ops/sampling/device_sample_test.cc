// The packed table of the device sampler and its reference, without a device.
#include <gtest/gtest.h>

#include "ops/sampling/device_sample_table.h"
#include "ops/sampling/device_sample_test_util.h"

namespace vayu::ops {
namespace {

struct Packed {
  explicit Packed(const std::vector<SampleTask>& samples)
      : tasks(samples.size()), lists(list_words(samples)), results(samples.size()), next_tokens(samples.size(), -7) {
    EXPECT_EQ(pack_sample_tasks(samples, tasks.data(), lists.data()), static_cast<int64_t>(lists.size()));
  }
  void run(const std::vector<float>& logits, const int32_t* prev_tokens = nullptr) {
    DeviceSampleArgs args;
    args.logits = logits.data();
    args.num_samples = static_cast<int32_t>(tasks.size());
    args.vocab_size = static_cast<int32_t>(logits.size() / tasks.size());
    args.logits_stride = args.vocab_size;
    args.tasks = tasks.data();
    args.lists = lists.data();
    args.prev_tokens = prev_tokens;
    args.results = results.data();
    args.next_tokens = next_tokens.data();
    device_sample_ref(args);
  }
  std::vector<DeviceSampleTask> tasks;
  std::vector<int32_t> lists;
  std::vector<DeviceSampleResult> results;
  std::vector<int32_t> next_tokens;
};

TEST(DeviceSampleTable, CarriesEveryTask) {
  TestRandom random;
  for (int64_t vocab : {1, 17, 1000}) {
    TestTasks all;
    for (int i = 0; i < 200; ++i) add_random_task(random, vocab, all);
    all.tasks[5].poison = true;
    const std::vector<float> logits = random_logits(random, 200, vocab, 2);
    const std::vector<SampleResult> expected = sample_by_reference(logits, all.tasks);
    Packed packed(all.tasks);
    packed.run(logits);
    for (int i = 0; i < 200; ++i) {
      const std::string what = "vocab " + std::to_string(vocab) + " row " + std::to_string(i);
      const SampleResult result = to_sample_result(packed.results[i]);
      ASSERT_EQ(result.token, expected[i].token) << what;
      ASSERT_EQ(packed.next_tokens[i], std::max(expected[i].token, 0)) << what;
      expect_same_logprobs(result, expected[i], 0, what);
      // What the scan alone finishes is an argmax or a given token.
      if (!needs_draw(packed.tasks[i]) && result.finite && packed.tasks[i].fixed_token < 0) {
        const float* row = logits.data() + i * vocab;
        ASSERT_EQ(result.token, std::max_element(row, row + vocab) - row) << what;
      }
    }
  }
}

TEST(DeviceSampleTable, ATokenTheHostHasNotSeenCountsAsOutput) {
  TestTasks all;
  SamplingParams& params = all.add();
  params.temperature = 0;
  params.presence_penalty = 1;
  all.set_lists({0}, 1, {});
  Packed packed(all.tasks);
  const std::vector<int32_t> prev_tokens = {9, 2};
  packed.tasks[0].prev_index = 1;
  packed.run({0, 1, 1.5f}, prev_tokens.data());
  EXPECT_EQ(packed.results[0].token, 1);
}

}  // namespace
}  // namespace vayu::ops
