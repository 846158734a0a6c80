// The router on the device. Choices are held to select_experts on logits in double; tokens whose choice hangs on less
// than kMargin are left out. Counts and order are held, element by element, to what follows from the ids.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

#include "ops/cuda/cuda_test_util.h"
#include "ops/cuda/flush.h"
#include "ops/moe/device_route.h"
#include "ops/moe/route_select.h"

namespace vayu::ops {
namespace {

constexpr double kMargin = 1e-5;           // of choice values
constexpr float kWeightTolerance = 1e-5f;  // of weights before `scale`
constexpr int32_t kCheckedTokens = 160;    // at most, in one case

struct Inputs {
  RouterShape shape;
  int32_t tokens = 0;
  std::vector<float> weight;
  std::vector<float> bias;  // empty: none
  std::vector<float> rows;  // values of x

  Inputs(TestRandom& random, const RouterShape& s, int32_t num_tokens, bool biased) : shape(s), tokens(num_tokens) {
    weight = random.normals(s.num_experts * s.hidden, 2.0f / std::sqrt(static_cast<float>(s.hidden)));
    if (biased) bias = random.normals(s.num_experts, 0.1f);
    rows = random.normals(num_tokens * s.hidden);
    round_rows();
  }
  void round_rows() { rows = as_floats(as_bf16(rows)); }
};

struct Outputs {
  std::vector<int32_t> ids, indptr, sorted, position;
  std::vector<float> weights;
};

// The inputs on the device, and every output, poisoned before a run.
class OnDevice {
 public:
  OnDevice(const Inputs& in, int32_t valid)
      : x_(as_bf16(in.rows)),
        weight_(split(in)),
        bias_(in.bias.empty() ? std::vector<float>(1) : in.bias),
        valid_(std::vector<int32_t>{valid}),
        ids_(int64_t{in.tokens} * in.shape.top_k),
        sorted_(ids_.size()),
        position_(ids_.size()),
        indptr_(in.shape.num_experts + 1),
        weights_(ids_.size()),
        scratch_(std::move(DeviceMemory::create(device_route_scratch_bytes(in.shape, in.tokens))).value()) {
    args_.shape = in.shape;
    args_.x = x_.get();
    args_.weight = weight_.get();
    args_.bias = in.bias.empty() ? nullptr : bias_.get();
    args_.num_tokens = in.tokens;
    args_.num_valid_tokens = valid < 0 ? nullptr : valid_.get();
    args_.expert_ids = ids_.get();
    args_.expert_weights = weights_.get();
    args_.expert_indptr = indptr_.get();
    args_.sorted_tokens = sorted_.get();
    args_.pair_position = position_.get();
    args_.scratch = scratch_.data();
  }
  const DeviceRouteArgs& args() const { return args_; }
  // Of the first `tokens`, or all.
  Outputs run(int32_t tokens = 0) {
    DeviceRouteArgs args = args_;
    if (tokens > 0) args.num_tokens = tokens;
    // -1 is a valid id, so integers are poisoned with another value.
    const std::vector<int32_t> poison(ids_.size(), 0x5a5a5a5a);
    for (auto* array : {&ids_, &sorted_, &position_}) array->set(poison);
    indptr_.poison();
    weights_.poison();
    device_route_cuda(nullptr, args);
    EXPECT_TRUE(last_launch("device_route").ok());
    Outputs out;
    out.ids = ids_.host();
    out.indptr = indptr_.host();
    out.sorted = sorted_.host();
    out.position = position_.host();
    out.weights = weights_.host();
    return out;
  }

 private:
  static std::vector<uint8_t> split(const Inputs& in) {
    std::vector<uint8_t> bytes(router_weight_bytes(in.shape.hidden, in.shape.num_experts));
    split_router_weight(in.weight.data(), in.shape.hidden, in.shape.num_experts, bytes.data());
    return bytes;
  }

  DeviceArray<Bf16> x_;
  DeviceArray<uint8_t> weight_;
  DeviceArray<float> bias_;
  DeviceArray<int32_t> valid_, ids_, sorted_, position_, indptr_;
  DeviceArray<float> weights_;
  DeviceMemory scratch_;
  DeviceRouteArgs args_;
};

std::vector<double> exact_logits(const Inputs& in, int64_t token) {
  std::vector<double> logits(in.shape.num_experts);
  const float* row = in.rows.data() + token * in.shape.hidden;
  for (int32_t e = 0; e < in.shape.num_experts; ++e) {
    const float* w = in.weight.data() + e * in.shape.hidden;
    double sum = 0;
    for (int64_t k = 0; k < in.shape.hidden; ++k) sum += double{row[k]} * w[k];
    logits[e] = sum;
  }
  return logits;
}

std::vector<double> choice_values(const Inputs& in, const std::vector<double>& logits) {
  std::vector<double> choice(logits.size());
  const double peak = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double v : logits) sum += std::exp(v - peak);
  for (size_t e = 0; e < logits.size(); ++e) {
    const bool sigmoid = in.shape.score == RouterScore::kSigmoid;
    choice[e] = sigmoid ? 1 / (1 + std::exp(-logits[e])) : std::exp(logits[e] - peak) / sum;
    if (!in.bias.empty()) choice[e] += in.bias[e];
  }
  return choice;
}

// The smallest difference that decides: between neighbours among the best `kept` + 1.
double margin_of(std::vector<double> values, int32_t kept) {
  std::sort(values.begin(), values.end(), std::greater<>());
  double margin = INFINITY;
  for (int32_t i = 0; i < kept && i + 1 < static_cast<int32_t>(values.size()); ++i) {
    margin = std::min(margin, values[i] - values[i + 1]);
  }
  return margin;
}

double choice_margin(const Inputs& in, std::vector<double> choice) {
  const RouterShape& s = in.shape;
  if (s.num_groups == 1) return margin_of(choice, s.top_k);
  const int32_t size = s.num_experts / s.num_groups;
  std::vector<double> groups;
  for (int32_t g = 0; g < s.num_groups; ++g) {
    std::vector<double> group(choice.begin() + g * size, choice.begin() + (g + 1) * size);
    std::sort(group.begin(), group.end(), std::greater<>());
    groups.push_back(size > 1 ? group[0] + group[1] : group[0]);
  }
  std::vector<double> sorted = groups;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  const double group_margin =
      s.groups_kept < s.num_groups ? sorted[s.groups_kept - 1] - sorted[s.groups_kept] : INFINITY;
  std::vector<double> left;
  for (int32_t e = 0; e < s.num_experts; ++e) {
    if (groups[e / size] >= sorted[s.groups_kept - 1]) left.push_back(choice[e]);
  }
  return std::min(group_margin, margin_of(left, s.top_k));
}

void expect_choice(const Inputs& in, const Outputs& out, int64_t token, int& near_ties) {
  const RouterShape& s = in.shape;
  const std::vector<double> exact = exact_logits(in, token);
  std::vector<float> logits(exact.begin(), exact.end()), choice(s.num_experts), weights(s.top_k);
  std::vector<int32_t> ids(s.top_k);
  select_experts(s, in.bias.empty() ? nullptr : in.bias.data(), logits.data(), choice.data(), ids.data(),
                 weights.data());
  if (std::isnan(weights[0])) {
    for (int32_t j = 0; j < s.top_k; ++j) {
      ASSERT_EQ(out.ids[token * s.top_k + j], j) << "token " << token;
      ASSERT_TRUE(std::isnan(out.weights[token * s.top_k + j])) << "token " << token;
    }
    return;
  }
  if (choice_margin(in, choice_values(in, exact)) < kMargin) {
    ++near_ties;
    return;
  }
  for (int32_t j = 0; j < s.top_k; ++j) {
    ASSERT_EQ(out.ids[token * s.top_k + j], ids[j]) << "token " << token << " choice " << j;
    ASSERT_NEAR(out.weights[token * s.top_k + j], weights[j], kWeightTolerance * s.scale) << "token " << token;
  }
}

void expect_order(const Inputs& in, const Outputs& out, int32_t valid) {
  const RouterShape& s = in.shape;
  const int32_t pairs = in.tokens * s.top_k;
  std::vector<std::vector<int32_t>> rows(s.num_experts);
  for (int32_t p = 0; p < pairs; ++p) {
    if (p >= valid * s.top_k) {
      ASSERT_EQ(out.ids[p], -1);
      ASSERT_EQ(out.weights[p], 0.0f);
      ASSERT_EQ(out.position[p], 0);
      ASSERT_EQ(out.sorted[p], 0);
      continue;
    }
    ASSERT_TRUE(out.ids[p] >= 0 && out.ids[p] < s.num_experts) << "pair " << p << " id " << out.ids[p];
    for (int32_t q = p / s.top_k * s.top_k; q < p; ++q) ASSERT_NE(out.ids[q], out.ids[p]) << "pair " << p;
    rows[out.ids[p]].push_back(p);
  }
  int32_t row = 0;
  for (int32_t e = 0; e < s.num_experts; ++e) {
    ASSERT_EQ(out.indptr[e], row) << "expert " << e;
    for (const int32_t p : rows[e]) {
      ASSERT_EQ(out.sorted[row], p / s.top_k) << "row " << row;
      ASSERT_EQ(out.position[p], row) << "pair " << p;
      ++row;
    }
  }
  ASSERT_EQ(out.indptr[s.num_experts], row);
}

template <class T>
void expect_same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(T)), 0) << "two runs differ";
}

// valid < 0: no count on the device. `first`: tokens that are always checked.
Outputs check(TestRandom& random, const Inputs& in, int32_t valid = -1, const std::vector<int32_t>& first = {}) {
  const RouterShape& s = in.shape;
  SCOPED_TRACE("tokens " + std::to_string(in.tokens) + " of " + std::to_string(valid) + ", experts " +
               std::to_string(s.num_experts) + ", top " + std::to_string(s.top_k) + ", hidden " +
               std::to_string(s.hidden));
  OnDevice device(in, valid);
  const Outputs out = device.run();
  const Outputs again = short_tests() ? out : device.run();
  expect_same_bytes(out.ids, again.ids);
  expect_same_bytes(out.weights, again.weights);
  expect_same_bytes(out.indptr, again.indptr);
  expect_same_bytes(out.sorted, again.sorted);
  expect_same_bytes(out.position, again.position);
  const int32_t counted = valid < 0 ? in.tokens : std::min(valid, in.tokens);
  expect_order(in, out, counted);
  std::vector<int32_t> tokens = first;
  if (counted <= kCheckedTokens) {
    tokens.resize(counted);
    std::iota(tokens.begin(), tokens.end(), 0);
  } else {
    tokens.push_back(0);
    tokens.push_back(counted - 1);
    while (static_cast<int32_t>(tokens.size()) < kCheckedTokens) {
      tokens.push_back(static_cast<int32_t>(random.integer(0, counted - 1)));
    }
  }
  int near_ties = 0;
  for (const int32_t token : tokens) {
    expect_choice(in, out, token, near_ties);
    if (testing::Test::HasFatalFailure()) return out;
  }
  EXPECT_LE(near_ties, 2 + static_cast<int>(tokens.size()) / 10);
  return out;
}

RouterShape sarvam() { return {.hidden = unless_short(4096, 1024), .num_experts = 128, .top_k = 6, .scale = 2.5f}; }

TEST(DeviceRouteCuda, FewTokens) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const int32_t tokens :
       unless_short({1, 2, 7, 8, 9, 16, 17, 31, 33, 64, 65, 100, 128}, {1, 7, 8, 9, 17, 33, 64, 128})) {
    check(random, Inputs(random, sarvam(), tokens, true));
    check(random, Inputs(random, {.hidden = 512, .num_experts = 32, .top_k = 4}, tokens, false));
  }
}

TEST(DeviceRouteCuda, ManyTokens) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const int32_t tokens : unless_short({129, 255, 256, 500, 1024, 2049, 3584}, {129, 256, 500, 2049})) {
    check(random, Inputs(random, sarvam(), tokens, true));
  }
  for (const int32_t tokens : unless_short({129, 700, 4096, 4500, 8192}, {700, 4500})) {
    check(random, Inputs(random, {.hidden = 512, .num_experts = 32, .top_k = 4}, tokens, true));
  }
}

TEST(DeviceRouteCuda, OtherShapes) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  const RouterShape shapes[] = {
      {.hidden = 64, .num_experts = 8, .top_k = 2},
      {.hidden = 128, .num_experts = 5, .top_k = 5},
      {.hidden = 192, .num_experts = 1, .top_k = 1},
      {.hidden = 704, .num_experts = 100, .top_k = 16, .scale = 0.5f},
      {.hidden = 1024, .num_experts = 130, .top_k = 3},
      {.hidden = 2048, .num_experts = 256, .top_k = 8, .num_groups = 8, .groups_kept = 4, .scale = 2.5f},
      {.hidden = 576, .num_experts = 96, .top_k = 6, .num_groups = 32, .groups_kept = 5},
      {.hidden = 320, .num_experts = 12, .top_k = 3, .num_groups = 12, .groups_kept = 3},
      {.hidden = 1024, .num_experts = 64, .top_k = 8, .score = RouterScore::kSoftmax, .normalize = false},
      {.hidden = 768,
       .num_experts = 160,
       .top_k = 6,
       .num_groups = 8,
       .groups_kept = 3,
       .score = RouterScore::kSoftmax},
  };
  for (const RouterShape& shape : shapes) {
    for (const int32_t tokens : unless_short({1, 5, 40, 128, 129, 300, 1111}, {5, 129})) {
      check(random, Inputs(random, shape, tokens, random.integer(0, 1) == 1));
    }
  }
  // More tiles than clusters of either kind of tile.
  RouterShape grouped = shapes[5];
  grouped.hidden = unless_short(2048, 512);
  check(random, Inputs(random, grouped, 4100, true));
  // Rows too long for the small kernel's shared memory.
  check(random, Inputs(random, {.hidden = 16384, .num_experts = 16, .top_k = 2}, 120, true));
}

TEST(DeviceRouteCuda, MostTokensExpertsAndChoices) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  const int32_t tokens = unless_short(kRouteMaxTokens, 2300);
  check(random, Inputs(random, {.hidden = 64, .num_experts = kRouteMaxExperts, .top_k = kRouteMaxTopK}, tokens, true));
  check(random, Inputs(random, {.hidden = 128, .num_experts = 128, .top_k = 6}, tokens, true), tokens - 129);
}

TEST(DeviceRouteCuda, AllTokensChooseTheSame) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const int32_t tokens : {3, 128, 1000, unless_short(8192, 2200)}) {
    RouterShape shape = sarvam();
    shape.hidden = 256;
    Inputs in(random, shape, tokens, true);
    const int32_t same[] = {127, 3, 64, 4, 0, 90};
    for (int j = 0; j < 6; ++j) in.bias[same[j]] = 600.0f - 100.0f * j;
    const Outputs out = check(random, in);
    for (int32_t p = 0; p < tokens * 6; ++p) ASSERT_EQ(out.ids[p], same[p % 6]);
    ASSERT_EQ(out.indptr[1], tokens);
    ASSERT_EQ(out.indptr[128] - out.indptr[127], tokens);
    ASSERT_EQ(out.indptr[3] - out.indptr[1], 0);  // experts without rows
  }
}

TEST(DeviceRouteCuda, LowestExpertOnTies) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const int32_t experts : {96, 256}) {
    for (const int32_t tokens : {4, 200}) {
      Inputs in(random, {.hidden = 64, .num_experts = experts, .top_k = 8}, tokens, false);
      std::fill(in.weight.begin(), in.weight.end(), 0.0f);
      OnDevice device(in, -1);
      const Outputs out = device.run();
      for (int32_t p = 0; p < tokens * 8; ++p) ASSERT_EQ(out.ids[p], p % 8);
      expect_order(in, out, tokens);
      // Runs of four equal columns: the four of the best run, in order, come first.
      const std::vector<float> logits = random.normals(experts / 4);
      in.rows.assign(in.rows.size(), 0.0f);
      for (int32_t t = 0; t < tokens; ++t) in.rows[t * 64] = 1.0f;
      for (int32_t e = 0; e < experts; ++e) in.weight[e * 64] = logits[e / 4];
      OnDevice second(in, -1);
      const Outputs tied = second.run();
      const auto best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
      for (int32_t p = 0; p < tokens * 8; ++p) {
        if (p % 8 < 4) {
          ASSERT_EQ(tied.ids[p], best * 4 + p % 8);
        }
      }
    }
  }
}

TEST(DeviceRouteCuda, PaddingIsCountedNowhere) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const int32_t tokens : unless_short({8, 64, 128, 400}, {8, 128, 400})) {
    RouterShape shape = sarvam();
    shape.hidden = 512;
    for (const int32_t valid : {0, 1, tokens / 2, tokens - 3, tokens, tokens + 9}) {
      Inputs in(random, shape, tokens, true);
      // What padding holds must not matter.
      for (int64_t i = int64_t{valid} * 512; i < int64_t{tokens} * 512; ++i) in.rows[i] = kNaN;
      check(random, in, valid);
    }
  }
}

TEST(DeviceRouteCuda, BadRowsStayAlone) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const int32_t experts : {128, 256}) {
    for (const int32_t tokens : {40, 333}) {
      const RouterShape shape{.hidden = 640, .num_experts = experts, .top_k = 6};
      Inputs in(random, shape, tokens, true);
      for (int32_t e = 0; e < experts; ++e) in.weight[e * 640 + 77] = random.normal(1e-5f);
      in.rows[3 * 640 + 100] = kNaN;
      in.rows[17 * 640 + 639] = INFINITY;
      in.rows[18 * 640 + 77] = 1e5f;  // finite, and beyond FP16
      in.rows[39 * 640 + 77] = -3e5f;
      in.round_rows();
      const Outputs out = check(random, in, -1, {3, 17, 18, 39, 2, 4, 16, 19, 38});
      int bad = 0;
      for (int32_t t = 0; t < tokens; ++t) bad += std::isnan(out.weights[t * 6]);
      EXPECT_EQ(bad, 2);
    }
  }
}

TEST(DeviceRouteCuda, ManyAndFewTokensShareAScratch) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  const Inputs in(random, {.hidden = 640, .num_experts = 128, .top_k = 6}, 1500, true);
  OnDevice device(in, -1);
  const int32_t counts[] = {40, 1500, 3, 300, 128};
  std::vector<Outputs> once;
  for (const int32_t tokens : counts) once.push_back(device.run(tokens));
  for (size_t i = 0; i < once.size(); ++i) {
    const Outputs again = device.run(counts[i]);
    expect_same_bytes(once[i].ids, again.ids);
    expect_same_bytes(once[i].weights, again.weights);
    expect_same_bytes(once[i].indptr, again.indptr);
    expect_same_bytes(once[i].sorted, again.sorted);
  }
}

TEST(DeviceRouteCuda, Speed) {
  VAYU_NEEDS_DEVICE();
  if (!std::getenv("VAYU_SPEED")) GTEST_SKIP() << "VAYU_SPEED is not set";
  TestRandom random;
  const DeviceArray<uint8_t> other(int64_t{96} << 20);  // between launches lists and code are cold, as between layers
  const auto read_other = [&](CudaStream stream, int) { read_memory_cuda(stream, other.get(), other.bytes()); };
  const double reads = chained_us(read_other, 16).value();
  for (const int32_t tokens : {1, 8, 32, 64, 128, 256, 1024, 3584, 8192}) {
    const Inputs in(random, sarvam(), tokens, true);
    OnDevice device(in, -1);
    const double us = median_us([&](CudaStream stream) { device_route_cuda(stream, device.args()); }).value();
    const double chained =
        chained_us([&](CudaStream stream, int) { device_route_cuda(stream, device.args()); }, 16).value();
    const auto between = [&](CudaStream stream, int) {
      read_memory_cuda(stream, other.get(), other.bytes());
      device_route_cuda(stream, device.args());
    };
    const double in_step = chained_us(between, 16).value() - reads;
    const double bytes = 2.0 * 128 * 4096 * 2 + 2.0 * tokens * 4096;
    const double flops = 2.0 * 2 * 128 * 4096 * tokens;
    const double floor_us = std::max(bytes / (read_ceiling_gb_s() * 1e3), flops / 800e6);
    std::printf(
        "SPEED device_route tokens %d: %.1f us (in a chain %.1f, between reads %.1f) %.0f GB/s %.0f TFLOP/s %.3f\n",
        tokens, us, chained, in_step, bytes / us * 1e-3, flops / us * 1e-6, floor_us / us);
  }
}

}  // namespace
}  // namespace vayu::ops
