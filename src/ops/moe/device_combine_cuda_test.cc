#include "ops/moe/device_combine.h"

#include <numeric>

#include "ops/norm/quantize_rows_test_util.h"

namespace vayu::ops {
namespace {

struct Case {
  int64_t num_tokens = 0, hidden = 0;
  int32_t top_k = 0;
  bool with_shared = true, with_norm = true, f8 = true, with_copy = false;
  std::vector<int32_t> ids;  // empty: all rows
  std::vector<Bf16> residual, shared, expert_out;
  std::vector<int32_t> position;
  std::vector<float> weights, norm_weight;

  int64_t num_rows() const { return ids.empty() ? num_tokens : static_cast<int64_t>(ids.size()); }
};

Case random_case(TestRandom& random, int64_t num_tokens, int32_t top_k, int64_t hidden) {
  Case c;
  c.num_tokens = num_tokens;
  c.hidden = hidden;
  c.top_k = top_k;
  c.with_shared = random.integer(0, 3) > 0;
  c.with_norm = random.integer(0, 3) > 0;
  c.f8 = hidden % 16 == 0 && random.integer(0, 2) > 0;
  c.with_copy = random.integer(0, 1);
  c.residual = random_bf16(random, num_tokens * hidden, 2);
  c.shared = random_bf16(random, num_tokens * hidden);
  c.expert_out = random_bf16(random, num_tokens * top_k * hidden);
  c.position.resize(num_tokens * top_k);
  std::iota(c.position.begin(), c.position.end(), 0);
  std::shuffle(c.position.begin(), c.position.end(), random.engine());
  c.weights = random.normals(num_tokens * top_k);
  c.norm_weight = random.normals(hidden);
  return c;
}

// The arguments of a run whose arrays are in `memory`, of the host or the device.
template <class Memory>
CombineAddNormArgs args_of(const Case& c, Memory& memory) {
  CombineAddNormArgs args;
  args.expert_out = memory.expert_out();
  args.pair_position = memory.position();
  args.weights = memory.weights();
  args.top_k = c.top_k;
  args.norm.residual = memory.residual_data();
  args.norm.delta = c.with_shared ? memory.shared() : nullptr;
  args.norm.row_ids = c.ids.empty() ? nullptr : memory.ids();
  args.norm.weight = c.with_norm ? memory.norm_weight() : nullptr;
  args.norm.num_rows = c.num_rows();
  args.norm.hidden = c.hidden;
  args.norm.y = memory.y.view;
  args.norm.y_bf16 = c.with_copy ? memory.copy_data() : nullptr;
  return args;
}

struct DeviceRun {
  explicit DeviceRun(const Case& c)
      : residual(c.residual),
        y(c.f8, c.num_rows(), c.hidden),
        copy(c.num_rows() * c.hidden),
        shared_(c.shared),
        expert_out_(c.expert_out),
        ids_(c.ids.empty() ? std::vector<int32_t>{0} : c.ids),
        position_(c.position),
        weights_(c.weights),
        norm_weight_(c.norm_weight),
        args(args_of(c, *this)) {}
  Bf16* residual_data() { return residual.get(); }
  Bf16* copy_data() { return copy.get(); }
  const Bf16* shared() { return shared_.get(); }
  const Bf16* expert_out() { return expert_out_.get(); }
  const int32_t* ids() { return ids_.get(); }
  const int32_t* position() { return position_.get(); }
  const float* weights() { return weights_.get(); }
  const float* norm_weight() { return norm_weight_.get(); }
  DeviceArray<Bf16> residual;
  DeviceActRows y;
  DeviceArray<Bf16> copy;
  DeviceArray<Bf16> shared_, expert_out_;
  DeviceArray<int32_t> ids_, position_;
  DeviceArray<float> weights_, norm_weight_;
  CombineAddNormArgs args;
};

struct HostRun {
  explicit HostRun(const Case& of)
      : c(of), residual(c.residual), y(c.f8, c.num_rows(), c.hidden), copy(c.num_rows() * c.hidden, Bf16{0xFFFF}) {
    combine_add_norm_ref(args_of(c, *this));
  }
  Bf16* residual_data() { return residual.data(); }
  Bf16* copy_data() { return copy.data(); }
  const Bf16* shared() { return c.shared.data(); }
  const Bf16* expert_out() { return c.expert_out.data(); }
  const int32_t* ids() { return c.ids.data(); }
  const int32_t* position() { return c.position.data(); }
  const float* weights() { return c.weights.data(); }
  const float* norm_weight() { return c.norm_weight.data(); }
  const Case& c;
  std::vector<Bf16> residual;
  HostActRows y;
  std::vector<Bf16> copy;
};

// Both add by fused multiply-adds in the same order, so the residual agrees to the bit; the rest as in add_norm.
void check(const Case& c) {
  const std::string name = std::to_string(c.num_tokens) + " tokens of " + std::to_string(c.hidden) + " top " +
                           std::to_string(c.top_k) + (c.f8 ? " f8" : " bf16") + (c.with_norm ? " norm" : "") +
                           (c.with_shared ? " shared" : "") + (c.ids.empty() ? "" : " picked");
  DeviceRun device(c);
  combine_add_norm_cuda(nullptr, device.args);
  ASSERT_TRUE(last_launch("combine_add_norm").ok());
  const HostRun want(c);
  const std::vector<Bf16> residual = device.residual.host();
  for (size_t i = 0; i < residual.size(); ++i) {
    const float a = as_float(residual[i]), b = as_float(want.residual[i]);
    ASSERT_TRUE(a == b || (std::isnan(a) && std::isnan(b))) << name << " residual " << i << ": " << a << " for " << b;
  }
  expect_same_rows(device.y, want.y, name);  // without a norm both are still poison
  expect_same_bf16(device.copy.host(), want.copy, name + " copy");
}

TEST(CombineAddNormCuda, MatchesReference) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (int64_t hidden : {8, 64, 576, 2048, 4096, 5120, 8208}) {
    for (int32_t top_k : unless_short({1, 2, 6, 8, 9}, {1, 6, 9})) {
      Case c = random_case(random, random.integer(1, 30), top_k, hidden);
      check(c);
      c.with_norm = true;
      for (int64_t i = random.integer(0, 5); i >= 0; --i) {
        c.ids.push_back(static_cast<int32_t>(random.integer(-1, c.num_tokens - 1)));
      }
      check(c);
    }
  }
  check(random_case(random, unless_short(8192, 1000), 6, 80));
}

TEST(CombineAddNormCuda, AbsentPairsAndBadRows) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (bool f8 : {false, true}) {
    Case c = random_case(random, 9, 6, 4096);
    c.with_norm = c.with_shared = c.with_copy = true;
    c.f8 = f8;
    c.expert_out[c.position[1 * 6 + 4] * c.hidden + 100] = Bf16{0x7fc0};   // NaN: token 1
    c.expert_out[c.position[3 * 6 + 0] * c.hidden + 4095] = Bf16{0x7f80};  // infinity: token 3
    c.weights[5 * 6 + 2] = kNaN;                                           // token 5
    c.expert_out[c.position[7 * 6 + 1] * c.hidden + 8] = Bf16{0x7fc0};     // of a pair that is absent: nothing
    c.position[7 * 6 + 1] = -1;
    for (int j = 0; j < 6; ++j) c.position[8 * 6 + j] = -1;
    const HostRun want(c);
    for (int64_t row = 0; row < 9; ++row) expect_nan_row(want.y, row, row == 1 || row == 3 || row == 5);
    check(c);
  }
}

TEST(CombineAddNormCuda, Speed) {
  VAYU_NEEDS_DEVICE();
  if (!speed_wanted()) GTEST_SKIP();
  TestRandom random;
  for (int64_t tokens : {1, 8, 32, 64, 3584}) {
    Case c = random_case(random, tokens, 6, 4096);
    c.with_shared = c.with_norm = c.f8 = true;  // as the step has it
    c.with_copy = false;
    DeviceRun device(c);
    print_speed("combine_add_norm", std::to_string(tokens) + "x6x4096", double(tokens) * 4096 * (12 + 6 + 1),
                [&](CudaStream stream) { combine_add_norm_cuda(stream, device.args); });
  }
}

}  // namespace
}  // namespace vayu::ops
