#include "ops/gemm/device_head_linear.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "ops/cuda/cuda_test_util.h"

namespace vayu::ops {
namespace {

struct Case {
  int32_t heads, in, out, tokens;
  int32_t x_gap = 0, y_gap = 0;    // elements between heads
  int32_t x_tail = 0, y_tail = 0;  // and behind a token's last
  int64_t x_head() const { return in + x_gap; }
  int64_t y_head() const { return out + y_gap; }
  int64_t x_token() const { return heads * x_head() + x_tail; }
  int64_t y_token() const { return heads * y_head() + y_tail; }
  std::string name() const {
    return std::to_string(tokens) + " x " + std::to_string(heads) + " heads x " + std::to_string(in) + " -> " +
           std::to_string(out);
  }
};

// Repeats after a prime number of values, so that no two rows are alike: millions of normals would take seconds.
std::vector<Bf16> random_bf16(TestRandom& random, int64_t count, float sigma) {
  const std::vector<Bf16> pool = as_bf16(random.normals(std::min<int64_t>(count, 65521), sigma));
  std::vector<Bf16> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = pool[i % static_cast<int64_t>(pool.size())];
  return values;
}

DeviceHeadLinearArgs args_of(const Case& c, const Bf16* weight, const Bf16* x, Bf16* y) {
  return {.weight = weight,
          .x = x,
          .x_stride = c.x_token(),
          .x_head_stride = c.x_head(),
          .y = y,
          .y_stride = c.y_token(),
          .y_head_stride = c.y_head(),
          .num_heads = c.heads,
          .in = c.in,
          .out = c.out,
          .num_tokens = c.tokens};
}

constexpr uint16_t kPoison = 0xFFFF;

// The reference is slow: from the beginning, the end, and in between.
std::vector<int32_t> sampled_tokens(TestRandom& random, int32_t count) {
  std::vector<int32_t> tokens;
  for (int32_t t = 0; t < count; ++t) {
    if (t < 2 || t >= count - 2 || random.uniform() < 8.0 / count) tokens.push_back(t);
  }
  return tokens;
}

void check(TestRandom& random, const Case& c) {
  SCOPED_TRACE(c.name());
  const auto weight = random_bf16(random, int64_t{c.heads} * c.out * c.in, 0.05f);
  std::vector<Bf16> x = random_bf16(random, c.tokens * c.x_token(), 1.0f);
  // What lies between the heads of a token is another's, and may be anything.
  for (int64_t i = 0; i < static_cast<int64_t>(x.size()); ++i) {
    const int64_t place = i % c.x_token();
    if (place >= c.heads * c.x_head() || place % c.x_head() >= c.in) x[i].bits = 0x7FC0;
  }
  DeviceArray<Bf16> device_weight(weight), device_x(x), device_y(c.tokens * c.y_token());
  device_head_linear_cuda(nullptr, args_of(c, device_weight.get(), device_x.get(), device_y.get()));
  ASSERT_TRUE(last_launch("device_head_linear").ok());
  const std::vector<Bf16> got = device_y.host();
  for (const int32_t t : sampled_tokens(random, c.tokens)) {
    std::vector<Bf16> want(c.y_token(), Bf16{kPoison});
    Case one = c;
    one.tokens = 1;
    device_head_linear_ref(args_of(one, weight.data(), x.data() + t * c.x_token(), want.data()));
    for (int64_t i = 0; i < c.y_token(); ++i) {
      const Bf16 mine = got[t * c.y_token() + i];
      if (want[i].bits == kPoison) {
        ASSERT_EQ(mine.bits, kPoison) << "token " << t << ": written between heads at " << i;
        continue;
      }
      // Two roundings of nearly the same number to 8 bits; sums of up to 512 products differ by less than 1e-5 of
      // their terms.
      const float a = as_float(mine), b = as_float(want[i]);
      ASSERT_NEAR(a, b, std::fabs(b) / 128 + 1e-4f) << "token " << t << " at " << i;
    }
  }
  // Tokens that were not compared are at least all there.
  for (int32_t t = 0; t < c.tokens; ++t) {
    for (int64_t h = 0; h < c.heads; ++h) {
      for (int64_t o = 0; o < c.out; o += 16) {
        ASSERT_TRUE(std::isfinite(as_float(got[t * c.y_token() + h * c.y_head() + o]))) << t << " " << h << " " << o;
      }
    }
  }
}

TEST(DeviceHeadLinearCuda, IsTheReference) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  // The models' shapes.
  for (const int32_t tokens : unless_short({1, 2, 8, 31, 63, 64, 65, 128, 129, 200}, {1, 31, 64, 129})) {
    check(random, {64, 128, 512, tokens, 64, 64, 576, 0});
    check(random, {64, 512, 128, tokens});
    check(random, {8, 64, 128, tokens, 32, 32, 160, 0});
    check(random, {8, 128, 64, tokens});
    check(random, {4, 128, 512, tokens, 64, 64, 576, 0});
    check(random, {4, 512, 128, tokens});
  }
  for (int round = 0; round < unless_short(30, 9); ++round) {
    const auto step = [&](int64_t low, int64_t high, int64_t unit) {
      return static_cast<int32_t>(unit * random.integer(low, high));
    };
    check(random, {step(1, 70, 1), step(1, 32, 16), step(1, 32, 16), step(1, round % 3 == 0 ? 600 : 70, 1),
                   step(0, 4, 8), step(0, 4, 8), step(0, 4, 8), step(0, 4, 8)});
  }
}

TEST(DeviceHeadLinearCuda, ManyTokens) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  const auto tokens = static_cast<int32_t>(unless_short(random.integer(1000, 4096), random.integer(200, 300)));
  check(random, {64, 128, 512, tokens, 64, 64, 576, 0});
  check(random, {64, 512, 128, tokens});
  check(random, {3, 512, 512, unless_short(8192, 1500)});
  check(random, {5, 208, 336, unless_short(5000, 1000), 8, 16});
}

// A row with NaN or infinity is one, and no other row or head notices.
TEST(DeviceHeadLinearCuda, KeepsNaNInItsRow) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const int32_t tokens : {5, 300}) {
    const Case c{6, 128, 512, tokens};
    const auto weight = random_bf16(random, int64_t{c.heads} * c.out * c.in, 0.05f);
    std::vector<Bf16> x = random_bf16(random, c.tokens * c.x_token(), 1.0f);
    x[3 * c.x_token() + 2 * c.x_head() + 77].bits = 0x7FC0;
    x[4 * c.x_token() + 5 * c.x_head() + 1].bits = 0xFF80;
    DeviceArray<Bf16> device_weight(weight), device_x(x), device_y(c.tokens * c.y_token());
    device_head_linear_cuda(nullptr, args_of(c, device_weight.get(), device_x.get(), device_y.get()));
    const auto got = as_floats(device_y.host());
    for (int64_t i = 0; i < static_cast<int64_t>(got.size()); ++i) {
      const int64_t t = i / c.y_token(), h = i % c.y_token() / c.y_head();
      const bool bad = (t == 3 && h == 2) || (t == 4 && h == 5);
      ASSERT_EQ(std::isfinite(got[i]), !bad) << "token " << t << " head " << h;
    }
  }
}

TEST(DeviceHeadLinearCuda, Speed) {
  VAYU_NEEDS_DEVICE();
  if (!std::getenv("VAYU_SPEED")) GTEST_SKIP() << "VAYU_SPEED is not set";
  TestRandom random;
  for (const Case& shape : {Case{64, 128, 512, 0, 64, 64, 576, 0}, Case{64, 512, 128, 0}}) {
    for (const int32_t tokens : {1, 8, 32, 64, 256, 3584}) {
      Case c = shape;
      c.tokens = tokens;
      const int64_t weights = int64_t{c.heads} * c.out * c.in;
      // As in a model, each call has weights of its own, which do not stay in L2.
      constexpr int kLayers = 12;
      const auto row = random_bf16(random, c.tokens * c.x_token(), 1.0f);
      const auto one = random_bf16(random, weights, 0.05f);
      std::vector<Bf16> all;
      for (int i = 0; i < kLayers; ++i) all.insert(all.end(), one.begin(), one.end());
      DeviceArray<Bf16> device_weight(all), device_x(row), device_y(c.tokens * c.y_token());
      const auto call = [&](CudaStream stream, int i) {
        device_head_linear_cuda(
            stream, args_of(c, device_weight.get() + i % kLayers * weights, device_x.get(), device_y.get()));
      };
      const double us = tokens <= 64 ? chained_us(call, 2 * kLayers).value()
                                     : median_us([&](CudaStream stream) { call(stream, 0); }).value();
      const double bytes = 2.0 * (weights + double{1} * c.tokens * c.heads * (c.in + c.out));
      const double flops = 2.0 * c.tokens * weights;
      std::printf("SPEED device_head_linear %s %.2f us %.0f TFLOP/s, %.0f GB/s %.2f of the read ceiling\n",
                  c.name().c_str(), us, flops / us / 1e6, bytes / us / 1e3, bytes / us / 1e3 / read_ceiling_gb_s());
    }
  }
}

}  // namespace
}  // namespace vayu::ops
