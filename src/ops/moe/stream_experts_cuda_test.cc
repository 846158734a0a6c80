#include "ops/moe/stream_experts.h"

#include <numeric>

#include "ops/cuda/matrix_test_util.h"
#include "ops/cuda/num_sms.h"

namespace vayu::ops {
namespace {

constexpr WeightScale kBf16 = WeightScale::kNone, kRows = WeightScale::kRow, kBlocks = WeightScale::kBlock;
constexpr const char* kScaleNames[] = {"bf16", "f8", "f8 in blocks"};  // by WeightScale
std::string name_of(WeightScale scale) { return kScaleNames[static_cast<int>(scale)]; }

struct Shape {
  int32_t experts, top_k, hidden, ffn;
  bool shared;
};

// Rows of experts as the router leaves them: by expert, then by token. Tokens from `valid` on are padding: they are in
// the shared expert only.
struct Routing {
  Routing(TestRandom& random, int32_t tokens, const Shape& s, bool crowded, int32_t valid) : indptr(s.experts + 1) {
    std::vector<std::vector<int32_t>> of(s.experts);
    std::vector<int32_t> all(s.experts);
    std::iota(all.begin(), all.end(), 0);
    for (int32_t t = 0; t < valid; ++t) {
      if (!crowded) std::shuffle(all.begin(), all.end(), random.engine());
      for (int32_t j = 0; j < s.top_k; ++j) of[all[j]].push_back(t);
    }
    for (int32_t e = 0; e < s.experts; ++e) {
      rows.insert(rows.end(), of[e].begin(), of[e].end());
      indptr[e + 1] = static_cast<int32_t>(rows.size());
    }
    rows.resize(int64_t{tokens} * s.top_k, -1);
  }
  std::vector<int32_t> indptr, rows;
};

struct Fixture {
  Fixture(TestRandom& random, const Shape& s, int32_t tokens, WeightScale scale, bool crowded, int32_t valid,
          bool fast = false, float spread = 1, bool half_tiles = false)
      : gate_up(random, int64_t{s.experts} * 2 * s.ffn, s.hidden, scale, fast),
        down(random, int64_t{s.experts} * s.hidden, s.ffn, scale, fast),
        shared_gate_up(random, 2 * s.ffn, s.hidden, scale, fast),
        shared_down(random, s.hidden, s.ffn, scale, fast),
        rows(int64_t{tokens} * (s.top_k + 1)),
        x(tokens, s.hidden, scale != kBf16, 0, random.normals(int64_t{tokens} * s.hidden, spread)),
        h(rows, s.ffn, scale != kBf16, half_tiles ? kScaleGroup / 2 : kScaleGroup),
        routing(random, tokens, s, crowded, valid),
        indptr(routing.indptr),
        sorted(routing.rows),
        out(rows * s.hidden),
        host_out(rows * s.hidden, Bf16{0xFFFF}),
        workspace(std::vector<uint8_t>(stream_experts_workspace_bytes(), 0)) {
    host = {.gate_up = gate_up.host(),
            .down = down.host(),
            .shared_gate_up = s.shared ? shared_gate_up.host() : DeviceMatrix{},
            .shared_down = s.shared ? shared_down.host() : DeviceMatrix{},
            .x = x.host(),
            .num_tokens = tokens,
            .num_experts = s.experts,
            .top_k = s.top_k,
            .ffn = s.ffn,
            .expert_indptr = routing.indptr.data(),
            .sorted_tokens = routing.rows.data(),
            .h = h.host(),
            .out = host_out.data(),
            .half_tiles = half_tiles};
    device = host;
    device.gate_up = gate_up.device();
    device.down = down.device();
    if (s.shared) {
      device.shared_gate_up = shared_gate_up.device();
      device.shared_down = shared_down.device();
    }
    device.x = x.device();
    device.expert_indptr = indptr.get();
    device.sorted_tokens = sorted.get();
    device.h = h.device();
    device.out = out.get();
    device.workspace = workspace.get();
  }
  TestMatrix gate_up, down, shared_gate_up, shared_down;
  int64_t rows;
  TestRows x, h;
  Routing routing;
  DeviceArray<int32_t> indptr, sorted;
  DeviceArray<Bf16> out;
  std::vector<Bf16> host_out;
  DeviceArray<uint8_t> workspace;
  StreamExpertsArgs host, device;
};

// What lies in f.out is the reference's, which has been called.
void expect_reference(Fixture& f, const Shape& s, int32_t tokens, int32_t valid, const std::string& name) {
  const bool f8 = f.host.x.is_f8();
  const auto got = as_floats(f.out.host()), want = as_floats(f.host_out);
  std::vector<float> got_written, want_written;
  for (size_t i = 0; i < want.size(); ++i) {
    // Rows of no expert, which the reference leaves poisoned.
    ASSERT_EQ(std::isnan(got[i]), std::isnan(want[i])) << name << " at " << i;
    if (std::isnan(want[i])) continue;
    got_written.push_back(got[i]);
    want_written.push_back(want[i]);
  }
  ASSERT_EQ(static_cast<int64_t>(want_written.size()), (int64_t{valid} * s.top_k + (s.shared ? tokens : 0)) * s.hidden);
  // A rounding of h to E4M3 may fall the other way: 1/16 of one element in ffn.
  ASSERT_LT(relative_error(got_written, want_written), f8 ? 2e-2 : 6e-3) << name;
  double rms = 0;
  for (float v : want_written) rms += double{v} * v;
  rms = std::sqrt(rms / static_cast<double>(want_written.size()));
  for (size_t i = 0; i < want_written.size(); ++i) {
    ASSERT_NEAR(got_written[i], want_written[i], 0.4 * rms + 0.02 * std::fabs(want_written[i])) << name << " " << i;
  }
}

void check(TestRandom& random, const Shape& s, int32_t tokens, WeightScale scale, bool crowded = false,
           int32_t padding = 0, bool fast = false, float spread = 1, bool half_tiles = false) {
  if (!half_tiles && tokens <= kStreamExpertsHalvesTokens) {
    check(random, s, tokens, scale, crowded, padding, fast, spread, true);
  }
  const std::string name = std::to_string(tokens) + " tokens, " + std::to_string(padding) + " of padding, " +
                           std::to_string(s.experts) + " experts, hidden " + std::to_string(s.hidden) + ", " +
                           name_of(scale) + (crowded ? ", crowded" : "") + (half_tiles ? ", half tiles" : "");
  Fixture f(random, s, tokens, scale, crowded, tokens - padding, fast, spread, half_tiles);
  stream_experts_ref(f.host);
  ASSERT_TRUE(stream_experts_fits(f.device)) << name;
  for (int run = 0; run < unless_short(3, 2); ++run) {  // the workspace must serve again
    f.out.poison();
    stream_experts_cuda(nullptr, f.device);
    ASSERT_TRUE(last_launch("stream_experts").ok()) << name;
    expect_reference(f, s, tokens, tokens - padding, name + ", run " + std::to_string(run));
  }
}

TEST(StreamExpertsCuda, IsTheReference) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const WeightScale scale : {kRows, kBlocks, kBf16}) {
    for (const int32_t tokens : {1, 2, 8, 9, 31, 40}) check(random, {16, 4, 256, 128, true}, tokens, scale);
    check(random, {8, 3, 384, 256, true}, 40, scale, true);  // three experts get all rows; no whole tile of hidden
    if (short_tests() && scale == kBlocks) continue;         // but for the sums as with scales of rows
    check(random, {16, 4, 256, 128, false}, 13, scale);
    check(random, {16, 4, 256, 128, true}, 13, scale, false, 5);
    check(random, {16, 4, 256, 128, true}, 4, scale, false, 4);   // the shared expert alone
    check(random, {16, 4, 256, 128, false}, 4, scale, false, 4);  // nothing to do
    check(random, {32, 6, 512, 128, true}, 70, scale);
    check(random, {128, 6, 1024, 384, true}, 5, scale, false, 0, true);
    // Some 120 groups: five and more tiles a block.
    check(random, {128, 6, 1024, 256, true}, 60, scale, false, 0, true);
    check(random, {400, 8, 128, 128, true}, 20, scale, false, 0, true);  // more experts than threads
  }
  check(random, {6, 2, 4352, 128, true}, 12, kBlocks);  // more than 32 scales along the depth, of x
  check(random, {6, 2, 128, 4224, true}, 3, kBlocks);   // and of h
}

// Gates in the hundreds: exp() is 0 or infinite.
TEST(StreamExpertsCuda, TakesLargeValues) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const WeightScale scale : {kRows, kBlocks, kBf16}) {
    check(random, {8, 3, 384, 256, true}, 9, scale, false, 0, false, 200);
  }
}

// On one workspace, as the steps of a model follow each other: nothing waits between two launches, and a captured graph
// is replayed.
TEST(StreamExpertsCuda, LaunchesOfAllSizesFollowEachOther) {
  VAYU_NEEDS_DEVICE();
  struct Step {
    Shape shape;
    int32_t tokens;
  };
  const Shape narrow{20, 4, 512, 256, true}, wide{7, 6, 1024, 1024, true}, many{64, 4, 256, 128, true};
  const Step steps[] = {{narrow, 2}, {narrow, 64}, {narrow, 1}, {wide, 1}, {many, 128}, {wide, 3}, {narrow, 40}};
  TestRandom random;
  for (const WeightScale scale : {kRows, kBlocks, kBf16}) {
    DeviceArray<uint8_t> workspace(std::vector<uint8_t>(stream_experts_workspace_bytes(), 0));
    std::vector<std::unique_ptr<Fixture>> all;
    for (const Step& step : steps) {
      all.push_back(std::make_unique<Fixture>(random, step.shape, step.tokens, scale, false, step.tokens, true, 1,
                                              step.tokens <= 2));
      all.back()->device.workspace = workspace.get();
      stream_experts_ref(all.back()->host);
    }
    const int count = static_cast<int>(all.size());
    for (const bool captured : {false, true}) {
      for (const auto& f : all) f->out.poison();
      const auto launch = [&](CudaStream stream, int i) { stream_experts_cuda(stream, all[i]->device); };
      if (captured) {
        ASSERT_TRUE(chained_us(launch, count, 3).ok());
      } else {
        for (int i = 0; i < 3 * count; ++i) launch(nullptr, i % count);
      }
      ASSERT_TRUE(last_launch("stream_experts").ok());
      for (int i = 0; i < count; ++i) {
        expect_reference(*all[i], steps[i].shape, steps[i].tokens, steps[i].tokens,
                         "launch " + std::to_string(i) + (captured ? " of a graph" : "") + ", " + name_of(scale));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(StreamExpertsCuda, KeepsNaNInItsRow) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  const Shape s{8, 2, 256, 128, true};
  Fixture f(random, s, 6, kRows, false, 6);
  std::vector<float> scales(6, 1.0f);
  scales[3] = kNaN;
  ASSERT_TRUE(copy_to_device(f.device.x.scales, scales.data(), 6 * sizeof(float), nullptr).ok());
  stream_experts_cuda(nullptr, f.device);
  const auto got = as_floats(f.out.host());
  for (int64_t r = 0; r < f.rows; ++r) {
    const int64_t token = r < 12 ? f.routing.rows[r] : r - 12;
    for (int64_t i = 0; i < s.hidden; ++i) ASSERT_EQ(std::isnan(got[r * s.hidden + i]), token == 3) << r << " " << i;
  }
}

// A block scale that is NaN: of down, in the outputs of its 64 rows for the rows of its expert; of gate-up, in all that
// its expert does.
TEST(StreamExpertsCuda, KeepsNaNInItsExpert) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  const Shape s{4, 2, 256, 128, true};
  for (int round = 0; round < 8; ++round) {
    Fixture f(random, s, 6, kBlocks, false, 6);
    const int64_t expert = round % 4, block = round % 4;  // both have 4 blocks of 64 rows an expert
    const bool of_down = round >= 4;
    TestMatrix& matrix = of_down ? f.down : f.gate_up;
    std::vector<float> scales = matrix.scales();
    const int64_t along = matrix.host().cols / kScaleGroup;
    scales[(expert * 4 + block) * along + round % along] = kNaN;
    matrix.set_scales(scales);
    stream_experts_cuda(nullptr, f.device);
    const auto got = as_floats(f.out.host());
    for (int64_t i = 0; i < f.rows * s.hidden; ++i) {
      const int64_t row = i / s.hidden;
      bool inside = row >= f.routing.indptr[expert] && row < f.routing.indptr[expert + 1];
      if (of_down) inside = inside && i % s.hidden / kScaleBlockRows == block;
      ASSERT_EQ(std::isnan(got[i]), inside) << "round " << round << " at " << i;
    }
  }
}

// One of many calls in a row, each with experts of its own, the shared one too.
double chained(TestRandom& random, const StreamExpertsArgs& base, const Shape& s) {
  constexpr int kCalls = 16;
  std::vector<std::unique_ptr<DeviceArray<int32_t>>> lists;
  std::vector<StreamExpertsArgs> calls(kCalls, base);
  for (int i = 0; i < kCalls; ++i) {
    const Routing routing(random, base.num_tokens, s, false, base.num_tokens);
    lists.push_back(std::make_unique<DeviceArray<int32_t>>(routing.indptr));
    calls[i].expert_indptr = lists.back()->get();
    lists.push_back(std::make_unique<DeviceArray<int32_t>>(routing.rows));
    calls[i].sorted_tokens = lists.back()->get();
    const auto slice = [&](const DeviceMatrix& all, int64_t rows) {
      DeviceMatrix one = all;
      one.rows = rows;
      one.data = static_cast<const uint8_t*>(all.data) + i * rows * all.row_bytes();
      if (all.scales) one.scales = all.scales + i * one.num_scales();
      return one;
    };
    calls[i].shared_gate_up = slice(base.gate_up, 2 * int64_t{s.ffn});
    calls[i].shared_down = slice(base.down, s.hidden);
  }
  return chained_us([&](CudaStream stream, int i) { stream_experts_cuda(stream, calls[i]); }, kCalls).value();
}

TEST(StreamExpertsCuda, Speed) {
  VAYU_NEEDS_DEVICE();
  if (!std::getenv("VAYU_SPEED")) GTEST_SKIP() << "VAYU_SPEED is not set";
  TestRandom random;
  const Shape s{128, 6, 4096, 1024, true};
  for (const WeightScale scale : {kRows, kBlocks, kBf16}) {
    Fixture f(random, s, 128, scale, false, 128, true);
    for (const int32_t tokens : {1, 2, 3, 4, 8, 16, 32, 64, 128}) {
      const Routing routing(random, tokens, s, false, tokens);
      f.indptr.set(routing.indptr);
      DeviceArray<int32_t> sorted(routing.rows);
      f.device.sorted_tokens = sorted.get();
      f.device.num_tokens = tokens;
      f.device.half_tiles = stream_experts_halves_pay(f.device, num_sms());
      f.device.h.scale_group = scale == kBf16 ? 0 : f.device.half_tiles ? kScaleGroup / 2 : kScaleGroup;
      int touched = 1;
      for (int32_t e = 0; e < s.experts; ++e) touched += routing.indptr[e + 1] > routing.indptr[e];
      const double alone = median_us([&](CudaStream stream) { stream_experts_cuda(stream, f.device); }).value();
      const double in_chain = chained(random, f.device, s);
      const double gbs = double{touched + 0.0} * 3 * s.hidden * s.ffn * (scale != kBf16 ? 1 : 2) / alone * 1e-3;
      std::printf(
          "SPEED stream_experts %s tokens %d experts %d: %.1f us, in a chain %.1f us; %.0f GB/s %.3f of the read "
          "ceiling\n",
          name_of(scale).c_str(), tokens, touched, alone, in_chain, gbs, gbs / read_ceiling_gb_s());
    }
  }
}

}  // namespace
}  // namespace vayu::ops
