#include <cstdlib>
#include <limits>

#include "ops/cuda/cuda_test_util.h"
#include "ops/sampling/device_sample_table.h"
#include "ops/sampling/device_sample_test_util.h"

namespace vayu::ops {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kTolerance = 1e-5f;  // of log-probabilities, relative to 1 + |logprob|

struct RunOptions {
  int64_t padding = 0;  // columns between rows
  int64_t offset = 0;   // floats by which the first row is off its alignment
  std::vector<int32_t> prev_tokens, prev_rows;
};

// The device's results; everything it writes is poisoned before. `logits` are (tasks, vocab) without padding.
std::vector<SampleResult> run(const std::vector<float>& logits, const std::vector<SampleTask>& samples,
                              const RunOptions& options = {}) {
  const auto count = static_cast<int64_t>(samples.size());
  const auto vocab = static_cast<int64_t>(logits.size()) / count;
  const int64_t stride = vocab + options.padding;
  std::vector<float> padded(options.offset + count * stride, kNaN);
  for (int64_t i = 0; i < count; ++i) {
    std::copy_n(logits.begin() + i * vocab, vocab, padded.begin() + options.offset + i * stride);
  }
  std::vector<DeviceSampleTask> tasks(count);
  std::vector<int32_t> lists(list_words(samples) + 1);
  pack_sample_tasks(samples, tasks.data(), lists.data());
  for (size_t i = 0; i < options.prev_rows.size(); ++i) tasks[i].prev_index = options.prev_rows[i];
  const int64_t edited_rows =
      std::count_if(tasks.begin(), tasks.end(), [](const auto& task) { return task.edit_row >= 0; });

  const DeviceArray<float> device_logits(padded);
  const DeviceArray<DeviceSampleTask> device_tasks(tasks);
  const DeviceArray<int32_t> device_lists(lists), next_tokens(count);
  const DeviceArray<int32_t> prev_tokens(options.prev_tokens.empty() ? std::vector<int32_t>(1) : options.prev_tokens);
  const DeviceArray<DeviceRowScan> scans(count);
  const DeviceArray<float> edited((edited_rows + 1) * padded_vocab(vocab));
  const DeviceArray<DeviceSampleResult> results(count);
  DeviceSampleArgs args;
  args.logits = device_logits.get() + options.offset;
  args.logits_stride = stride;
  args.vocab_size = static_cast<int32_t>(vocab);
  args.num_samples = static_cast<int32_t>(count);
  args.tasks = device_tasks.get();
  args.lists = device_lists.get();
  args.prev_tokens = prev_tokens.get();
  args.scans = scans.get();
  args.edited = edited.get();
  args.results = results.get();
  args.next_tokens = next_tokens.get();
  args.draw = std::any_of(tasks.begin(), tasks.end(), needs_draw);
  device_sample_cuda(nullptr, args);
  const Status launched = last_launch("device_sample");
  EXPECT_TRUE(launched.ok()) << (launched.ok() ? "" : launched.error().message);

  std::vector<SampleResult> out;
  const std::vector<int32_t> next = next_tokens.host();
  for (const DeviceSampleResult& result : results.host()) {
    EXPECT_GE(result.num_top, 0);
    if (result.num_top < 0 || result.num_top > kMaxTopLogprobs) return std::vector<SampleResult>(count);
    EXPECT_EQ(next[out.size()], std::max(result.token, 0));
    out.push_back(to_sample_result(result));
  }
  const std::vector<float> after = device_logits.host();
  EXPECT_EQ(std::memcmp(after.data(), padded.data(), padded.size() * sizeof(float)), 0) << "logits were changed";
  return out;
}

// Returns how many tokens differ. Greedy, scored and forced ones never do.
int compare(const std::vector<SampleResult>& results, const std::vector<SampleResult>& expected,
            const std::vector<SampleTask>& tasks, const std::string& what) {
  int mismatches = 0;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const std::string row = what + " row " + std::to_string(i);
    if (results[i].token != expected[i].token) {
      const SamplingParams& params = *tasks[i].params;
      EXPECT_TRUE(tasks[i].target < 0 && tasks[i].forced < 0 && params.temperature != 0 && params.top_k != 1) << row;
      EXPECT_EQ(results[i].finite, expected[i].finite) << row;
      ++mismatches;
      continue;
    }
    expect_same_logprobs(results[i], expected[i], kTolerance, row);
  }
  return mismatches;
}

// Every pass of the draw at a size that racecheck takes: it needs seconds a row.
TEST(DeviceSampleCuda, EveryPassOnce) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  constexpr int64_t kVocab = 3000;
  TestTasks all;
  all.add().top_p = 0.9f;              // histogram by distance, gathered bin
  all.add().top_k = 2000;              // more than a list: histogram by key
  all.add().logprobs = 20;             // sorted list beside a draw
  SamplingParams& edited = all.add();  // a copy of the row, and its scan
  edited.repetition_penalty = 1.3f;
  edited.logit_bias = {{7, 2.0f}, {8, -100.0f}};
  edited.min_p = 0.05f;
  all.set_lists({1, 2, 3, 2999}, 2, {5});
  const std::vector<float> logits = random.normals(static_cast<int64_t>(all.tasks.size()) * kVocab, 0.3f);
  EXPECT_LE(compare(run(logits, all.tasks), sample_by_reference(logits, all.tasks), all.tasks, "passes"), 1);
}

TEST(DeviceSampleCuda, EqualsReferenceOnRandomTasks) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  int mismatches = 0, draws = 0;
  for (int64_t vocab : unless_short({1, 2, 17, 64, 1000, 1027, 5000, 32003}, {1, 17, 1027, 5000, 32003})) {
    for (float sigma : unless_short({0.0f, 0.01f, 1.0f, 4.0f}, {0.0f, 1.0f})) {  // from all ties to one clear favourite
      // Clusters of 8, 4, 2 and 1 blocks.
      const int64_t sizes[] = {random.integer(1, 16), random.integer(17, 32), random.integer(33, 66), 67};
      for (int64_t count : sizes) {
        if (vocab > 10000 && count > 32 && sigma != 1.0f) continue;  // the reference sorts every row
        TestTasks all;
        for (int64_t i = 0; i < count; ++i) add_random_task(random, vocab, all);
        const std::vector<float> logits = random_logits(random, count, vocab, sigma);
        RunOptions options;
        options.padding = random.integer(0, 1) ? random.integer(0, 9) : (4 - vocab % 4) % 4;
        options.offset = random.integer(0, 3) ? 0 : 1;
        const std::string what =
            "vocab " + std::to_string(vocab) + " sigma " + std::to_string(sigma) + " rows " + std::to_string(count);
        mismatches += compare(run(logits, all.tasks, options), sample_by_reference(logits, all.tasks), all.tasks, what);
        draws += static_cast<int>(count);
      }
    }
  }
  // A draw within the rounding of float exponentials of a boundary may go the other way: about one in 10^5 here.
  EXPECT_LE(mismatches, 2) << "of " << draws;
}

TEST(DeviceSampleCuda, LargeVocabularyEqualsReference) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  constexpr int64_t kVocab = 262144;
  int mismatches = 0;
  for (float sigma : unless_short({0.0f, 0.5f, 3.0f}, {0.0f, 3.0f})) {
    TestTasks all;
    for (int way = 0; way < 16; ++way) {
      SamplingParams& params = all.add();
      if (way == 0) params.temperature = 0;
      if (way == 2 || way == 6) params.top_p = 0.95f;
      if (way == 3) params.top_k = 100000;
      if (way == 4) params.min_p = 0.3f;
      if (way == 5 || way == 6) params.top_k = 50;
      if (way == 7) params.temperature = 1e-5f;
      if (way == 8) params.temperature = 1e5f;
      if (way == 9) params.top_k = 600;
      if (way == 10) params.top_p = 0.1f, params.min_p = 0.001f;
      if (way == 11) params.repetition_penalty = 1.2f;
      if (way == 11) all.set_lists(std::vector<TokenId>(1000, 17), 500, {3});
      if (way == 12) params.logit_bias = {{5, 100.0f}, {kVocab - 1, 100.0f}, {7, -100.0f}};
      if (way == 13) all.tasks.back().target = 77;
      if (way >= 14) all.rows.pop_back(), all.tasks.pop_back(), add_random_task(random, kVocab, all);
      if (way < 14) params.logprobs = way % 3 == 0 ? 20 : way % 3 - 1;
      all.tasks.back().output_index = static_cast<int32_t>(random.integer(0, 1 << 20));
    }
    const std::vector<float> logits = random.normals(16 * kVocab, sigma);
    const std::vector<SampleResult> expected = sample_by_reference(logits, all.tasks);
    const std::vector<SampleResult> results = run(logits, all.tasks);
    const int differ = compare(results, expected, all.tasks, "sigma " + std::to_string(sigma));
    EXPECT_TRUE(sigma > 0 || differ == 0);  // all weights 1: no rounding
    mismatches += differ;
    for (int i = 0; i < 14; ++i) {
      // Neighbours in the order of likelihood: rounding may move a draw among 262144 tokens by one or two.
      const float* row = logits.data() + i * kVocab;
      EXPECT_NEAR(row[results[i].token], row[expected[i].token], 1e-2) << sigma << " way " << i;
    }
  }
  EXPECT_LE(mismatches, 2);
}

TEST(DeviceSampleCuda, TemperaturesFromTinyToHuge) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  constexpr int64_t kVocab = 1000;
  TestTasks all;
  for (int exponent = -5; exponent <= 5; ++exponent) {
    for (int i = 0; i < 6; ++i) {
      SamplingParams& params = all.add();
      params.temperature = std::pow(10.0f, static_cast<float>(exponent));
      if (i % 3 == 1) params.min_p = 1;
      if (i % 3 == 2) params.top_p = 0.999f;
    }
  }
  const auto count = static_cast<int64_t>(all.tasks.size());
  std::vector<float> logits = random.normals(count * kVocab, 3);
  for (int64_t i = 0; i < count; i += 2) logits[i * kVocab + 100] = logits[i * kVocab + 900] = 1e6f;
  const std::vector<SampleResult> expected = sample_by_reference(logits, all.tasks);
  EXPECT_LE(compare(run(logits, all.tasks), expected, all.tasks, "temperatures"), 1);
}

TEST(DeviceSampleCuda, GreedyTakesTheLowestIdOfATie) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (int64_t vocab : {1, 5, 1000, 32003, 262144}) {
    constexpr int kRows = 20;
    TestTasks all;
    std::vector<float> logits = random.normals(kRows * vocab);
    for (int i = 0; i < kRows; ++i) {
      all.add().temperature = 0;
      float* row = logits.data() + i * vocab;
      if (i == 0) std::fill_n(row, vocab, i % 2 ? 0.0f : -0.0f), row[vocab / 2] = 0.0f;
      if (i == 1) std::fill_n(row, vocab, -kInf), row[vocab - 1] = -3e38f;
      if (i > 1) {
        for (int j = 0; j < 4; ++j) row[random.integer(0, vocab - 1)] = 9;
      }
    }
    const std::vector<SampleResult> results = run(logits, all.tasks);
    for (int i = 0; i < kRows; ++i) {
      const float* row = logits.data() + i * vocab;
      EXPECT_EQ(results[i].token, std::max_element(row, row + vocab) - row) << vocab << " row " << i;
    }
  }
}

TEST(DeviceSampleCuda, BrokenRowsAreReportedAndDisturbNobody) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (int64_t vocab : {1037, 262144}) {
    constexpr int kRows = 8;
    TestTasks all;
    for (int i = 0; i < kRows; ++i) {
      SamplingParams& params = all.add();
      params.logprobs = 3;
      if (i == 2) params.temperature = 0;
      if (i == 4) params.repetition_penalty = 1.1f, all.set_lists({1, 2, 3}, 1, {4});
    }
    const std::vector<float> logits = random.normals(kRows * vocab);
    const std::vector<SampleResult> expected = run(logits, all.tasks);
    for (int broken_row : unless_short({2, 3, 4}, {vocab < 10000 ? 2 : 4})) {
      for (int way = 0; way < 7; ++way) {
        std::vector<float> broken = logits;
        std::vector<SampleTask> tasks = all.tasks;
        float* row = broken.data() + broken_row * vocab;
        if (way == 0) std::fill_n(row, vocab, kNaN);
        if (way == 1) row[random.integer(0, vocab - 1)] = kNaN;
        if (way == 2) row[random.integer(0, vocab - 1)] = kInf;
        if (way == 3) std::fill_n(row, vocab, -kInf);
        if (way == 4) tasks[broken_row].poison = true;
        if (way == 5) row[vocab - 1] = -kNaN;
        if (way == 6) std::fill_n(row, vocab, kInf);
        const std::vector<SampleResult> results = run(broken, tasks);
        for (int i = 0; i < kRows; ++i) {
          ASSERT_EQ(results[i].finite, i != broken_row) << vocab << " way " << way;
          if (i == broken_row) {
            ASSERT_EQ(results[i].token, kNoToken) << vocab << " way " << way;
          } else {
            ASSERT_EQ(results[i].token, expected[i].token) << vocab << " way " << way;
            ASSERT_EQ(results[i].logprob, expected[i].logprob) << vocab << " way " << way;
          }
        }
      }
    }
  }
}

TEST(DeviceSampleCuda, NothingLeftAfterEdits) {
  VAYU_NEEDS_DEVICE();
  TestTasks all;
  all.add().logit_bias = {{0, -100.0f}, {1, -1000.0f}, {2, -100.0f}, {3, -100.0f}};
  all.add().logit_bias = {{1, 100.0f}};
  all.set_lists({}, 0, {1});  // a ban is stronger: the other three remain
  all.add().temperature = 0;
  all.set_lists({}, 0, {0, 1, 2, 3, 4, -1});
  const std::vector<float> logits = {1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4};
  const std::vector<SampleResult> expected = sample_by_reference(logits, all.tasks);
  EXPECT_FALSE(expected[0].finite);
  EXPECT_TRUE(expected[1].finite);
  EXPECT_EQ(compare(run(logits, all.tasks), expected, all.tasks, "edits"), 0);
}

TEST(DeviceSampleCuda, ATaskGivesTheSameInAnyBatchAndEveryTime) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  constexpr int64_t kVocab = 30000;
  constexpr int kRows = 70;  // one block a row in the batch, 8 alone
  TestTasks all;
  for (int i = 0; i < kRows; ++i) add_random_task(random, kVocab, all);
  const std::vector<float> logits = random_logits(random, kRows, kVocab, 1);
  const std::vector<SampleResult> batch = run(logits, all.tasks);
  EXPECT_EQ(compare(run(logits, all.tasks), batch, all.tasks, "again"), 0);
  for (int i = 0; i < kRows; i += unless_short(1, 5)) {
    const std::vector<float> row(logits.begin() + i * kVocab, logits.begin() + (i + 1) * kVocab);
    const SampleResult alone = run(row, {all.tasks[i]})[0];
    ASSERT_EQ(alone.token, batch[i].token) << i;
    expect_same_logprobs(alone, batch[i], 0, "row " + std::to_string(i));
  }
}

TEST(DeviceSampleCuda, ATokenTheHostHasNotSeenCountsAsOutput) {
  VAYU_NEEDS_DEVICE();
  TestTasks all;
  for (int i = 0; i < 2; ++i) {
    SamplingParams& params = all.add();
    params.temperature = 0;
    params.presence_penalty = 1;
    all.set_lists({0}, 1, {});
  }
  RunOptions options;
  options.prev_tokens = {9, 2};
  options.prev_rows = {1, -1};
  const std::vector<SampleResult> results = run({0, 1, 1.5f, 0, 1, 1.5f}, all.tasks, options);
  EXPECT_EQ(results[0].token, 1);
  EXPECT_EQ(results[1].token, 2);
}

TEST(DeviceSampleCuda, TableKeepsTwoStepsApart) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  constexpr int64_t kVocab = 5000;
  constexpr int kRows = 12;
  const DeviceSampleCapacity capacity{16, 16, kVocab, 16 * 4000};
  DeviceSampleTable table = std::move(DeviceSampleTable::create(capacity)).value();
  const DeviceArray<int32_t> next_tokens(16);
  int mismatches = 0;
  for (int pair = 0; pair < 3; ++pair) {
    TestTasks steps[2];
    std::vector<float> logits[2];
    std::vector<std::unique_ptr<DeviceArray<float>>> device_logits;
    for (int step = 0; step < 2; ++step) {
      for (int i = 0; i < kRows - step; ++i) add_random_task(random, kVocab, steps[step]);
      logits[step] = random_logits(random, kRows - step, kVocab, 2);
      std::vector<float> padded = logits[step];
      padded.resize(16 * kVocab, 1.0f);
      device_logits.push_back(std::make_unique<DeviceArray<float>>(padded));
    }
    for (int step = 0; step < 2; ++step) {
      ASSERT_TRUE(table.upload(steps[step].tasks, {}, 16, nullptr).ok());
      DeviceSampleArgs args = table.args(device_logits[step]->get(), kVocab, 16, next_tokens.get());
      args.draw = table.draw_needed();
      device_sample_cuda(nullptr, args);
      ASSERT_TRUE(table.download(nullptr).ok());
    }
    ASSERT_TRUE(synchronize(nullptr).ok());
    for (int step = 0; step < 2; ++step) {
      std::vector<SampleResult> results;
      table.read_results(results);
      ASSERT_EQ(results.size(), steps[step].tasks.size());
      mismatches += compare(results, sample_by_reference(logits[step], steps[step].tasks), steps[step].tasks, "table");
    }
  }
  EXPECT_LE(mismatches, 1);
}

TEST(DeviceSampleCuda, Speed) {
  VAYU_NEEDS_DEVICE();
  if (!std::getenv("VAYU_SPEED")) GTEST_SKIP() << "VAYU_SPEED is not set";
  TestRandom random;
  constexpr int64_t kVocab = 262144;
  const char* names[] = {"greedy", "greedy+logprob", "temperature", "top_p", "top_k", "penalties", "greedy+20"};
  const std::vector<float> logits = random.normals(64 * kVocab, 2);
  const DeviceArray<float> device_logits(logits);
  const DeviceArray<int32_t> next_tokens(64);
  DeviceSampleTable table = std::move(DeviceSampleTable::create({64, 64, kVocab, 64 * 4096})).value();
  for (int way = 0; way < 7; ++way) {
    for (int rows : {1, 8, 32, 64}) {
      TestTasks all;
      for (int i = 0; i < rows; ++i) {
        SamplingParams& params = all.add();
        params.temperature = way < 2 || way == 6 ? 0.0f : 0.8f;
        if (way == 1) params.logprobs = 0;
        if (way == 3) params.top_p = 0.95f;
        if (way == 4) params.top_k = 50;
        if (way == 6) params.logprobs = 20;
        if (way != 5) continue;
        params.repetition_penalty = 1.1f;
        std::vector<TokenId> tokens(3584);
        for (TokenId& id : tokens) id = static_cast<TokenId>(random.integer(0, kVocab - 1));
        all.set_lists(tokens, 3500, {});
      }
      ASSERT_TRUE(table.upload(all.tasks, {}, rows, nullptr).ok());
      ASSERT_TRUE(synchronize(nullptr).ok());
      DeviceSampleArgs args = table.args(device_logits.get(), kVocab, rows, next_tokens.get());
      args.draw = table.draw_needed();
      const auto us = median_us([&](CudaStream stream) { device_sample_cuda(stream, args); });
      ASSERT_TRUE(us.ok());
      const double gb_s = static_cast<double>(rows) * kVocab * sizeof(float) / us.value() / 1e3;  // one read
      std::printf("SPEED device_sample %s rows=%d %.1f us %.0f GB/s %.2f of the read ceiling\n", names[way], rows,
                  us.value(), gb_s, gb_s / read_ceiling_gb_s());
      std::vector<SampleResult> unread;
      table.read_results(unread);
    }
  }
}

}  // namespace
}  // namespace vayu::ops
