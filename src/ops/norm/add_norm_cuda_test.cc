#include "ops/norm/add_norm.h"

#include "ops/norm/quantize_rows_test_util.h"

namespace vayu::ops {
namespace {

struct Case {
  int64_t num_tokens = 0;
  int64_t hidden = 0;
  bool with_delta = true, f8 = true, with_copy = false;
  std::vector<int32_t> ids;  // empty: all rows
  std::vector<Bf16> residual, delta;
  std::vector<float> weight;

  int64_t num_rows() const { return ids.empty() ? num_tokens : static_cast<int64_t>(ids.size()); }
};

Case random_case(TestRandom& random, int64_t num_tokens, int64_t hidden) {
  Case c;
  c.num_tokens = num_tokens;
  c.hidden = hidden;
  c.with_delta = random.integer(0, 3) > 0;
  c.f8 = hidden % 16 == 0 && random.integer(0, 2) > 0;
  c.with_copy = random.integer(0, 1);
  c.residual = random_bf16(random, num_tokens * hidden, 2);
  c.delta = random_bf16(random, num_tokens * hidden);
  c.weight = random.normals(hidden);
  return c;
}

AddNormArgs shape_of(const Case& c) {
  AddNormArgs args;
  args.eps = 1e-5f;
  args.num_rows = c.num_rows();
  args.hidden = c.hidden;
  return args;
}

struct DeviceRun {
  explicit DeviceRun(const Case& c)
      : residual(c.residual),
        delta(c.delta),
        ids(c.ids.empty() ? std::vector<int32_t>{0} : c.ids),
        weight(c.weight),
        y(c.f8, c.num_rows(), c.hidden),
        copy(c.num_rows() * c.hidden),
        args(shape_of(c)) {
    args.residual = residual.get();
    args.delta = c.with_delta ? delta.get() : nullptr;
    args.row_ids = c.ids.empty() ? nullptr : ids.get();
    args.weight = weight.get();
    args.y = y.view;
    args.y_bf16 = c.with_copy ? copy.get() : nullptr;
  }
  DeviceArray<Bf16> residual, delta;
  DeviceArray<int32_t> ids;
  DeviceArray<float> weight;
  DeviceActRows y;
  DeviceArray<Bf16> copy;
  AddNormArgs args;
};

struct HostRun {
  explicit HostRun(const Case& c)
      : residual(c.residual), y(c.f8, c.num_rows(), c.hidden), copy(c.num_rows() * c.hidden, Bf16{0xFFFF}) {
    AddNormArgs args = shape_of(c);
    args.residual = residual.data();
    args.delta = c.with_delta ? c.delta.data() : nullptr;
    args.row_ids = c.ids.empty() ? nullptr : c.ids.data();
    args.weight = c.weight.data();
    args.y = y.view;
    args.y_bf16 = c.with_copy ? copy.data() : nullptr;
    add_norm_ref(args);
  }
  std::vector<Bf16> residual;
  HostActRows y;
  std::vector<Bf16> copy;
};

void expect_same(const DeviceRun& got, const HostRun& want, const std::string& name) {
  const std::vector<Bf16> residual = got.residual.host();
  for (size_t i = 0; i < residual.size(); ++i) {
    const float a = as_float(residual[i]), b = as_float(want.residual[i]);
    ASSERT_TRUE(a == b || (std::isnan(a) && std::isnan(b))) << name << " residual " << i << ": " << a << " for " << b;
  }
  expect_same_rows(got.y, want.y, name);
  expect_same_bf16(got.copy.host(), want.copy, name + " copy");
}

void check(const Case& c) {
  const std::string name = std::to_string(c.num_rows()) + " rows of " + std::to_string(c.hidden) +
                           (c.f8 ? " f8" : " bf16") + (c.with_delta ? " delta" : "") + (c.ids.empty() ? "" : " picked");
  DeviceRun device(c);
  add_norm_cuda(nullptr, device.args);
  ASSERT_TRUE(last_launch("add_norm").ok());
  expect_same(device, HostRun(c), name);
}

TEST(AddNormCuda, MatchesReference) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (int64_t hidden : {8, 16, 64, 256, 576, 1000, 2048, 4096, 4104, 5120, 8192, 8208, 16384}) {
    for (int64_t num_tokens : unless_short({1, 2, 37}, {1, 11})) {
      Case c = random_case(random, num_tokens, hidden);
      check(c);
      for (int64_t i = random.integer(0, 5); i >= 0; --i) {
        c.ids.push_back(static_cast<int32_t>(random.integer(-1, num_tokens - 1)));
      }
      check(c);
    }
  }
  check(random_case(random, unless_short(8192, 1000), 208));
}

TEST(AddNormCuda, BadRowsAreNanAndAlone) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (bool f8 : {false, true}) {
    Case c = random_case(random, 8, 4096);
    c.f8 = f8;
    c.with_delta = c.with_copy = true;
    c.residual[1 * c.hidden + 4095] = Bf16{0x7fc0};         // NaN
    c.delta[3 * c.hidden + 77] = Bf16{0xff80};              // -infinity
    c.residual[6 * c.hidden + 1024] = as_bf16({3e30f})[0];  // its square overflows
    const HostRun want(c);
    for (int64_t row = 0; row < 8; ++row) expect_nan_row(want.y, row, row == 1 || row == 3 || row == 6);
    check(c);
  }
}

TEST(AddNormCuda, ZeroRowsHaveScaleOne) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  Case c = random_case(random, 2, 512);
  c.f8 = true;
  c.with_delta = false;
  std::fill(c.residual.begin(), c.residual.begin() + 512, Bf16{0});
  check(c);
  DeviceRun device(c);
  add_norm_cuda(nullptr, device.args);
  EXPECT_EQ(device.y.scales.host()[0], 1.0f);
}

TEST(AddNormCuda, AloneGivesTheSameBits) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  const Case c = random_case(random, 40, 4096);
  DeviceRun batch(c);
  add_norm_cuda(nullptr, batch.args);
  const std::vector<uint8_t> all = batch.y.bytes.host();
  const size_t row_bytes = all.size() / 40;
  for (int64_t t : {0, 17, 39}) {
    Case one = c;
    one.num_tokens = 1;
    one.residual.assign(c.residual.begin() + t * c.hidden, c.residual.begin() + (t + 1) * c.hidden);
    one.delta.assign(c.delta.begin() + t * c.hidden, c.delta.begin() + (t + 1) * c.hidden);
    DeviceRun alone(one);
    add_norm_cuda(nullptr, alone.args);
    const std::vector<uint8_t> bytes = alone.y.bytes.host();
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), all.begin() + t * row_bytes)) << t;
  }
}

TEST(AddNormCuda, Speed) {
  VAYU_NEEDS_DEVICE();
  if (!speed_wanted()) GTEST_SKIP();
  TestRandom random;
  for (int64_t rows : {1, 8, 32, 64, 3584}) {
    Case c = random_case(random, rows, 4096);
    c.with_delta = c.f8 = true;
    for (bool with_copy : {false, true}) {
      c.with_copy = with_copy;
      DeviceRun device(c);
      const double bytes = double(rows) * 4096 * (2 + 2 + 2 + 1 + 2 * with_copy);
      print_speed("add_norm", std::to_string(rows) + "x4096" + (with_copy ? "+bf16" : ""), bytes,
                  [&](CudaStream stream) { add_norm_cuda(stream, device.args); });
    }
  }
}

}  // namespace
}  // namespace vayu::ops
