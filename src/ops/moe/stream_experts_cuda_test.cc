#include "ops/moe/stream_experts.h"

#include <numeric>

#include "ops/cuda/matrix_test_util.h"

namespace vayu::ops {
namespace {

struct Shape {
  int32_t experts, top_k, hidden, ffn;
  bool shared;
};

// Rows of experts as the router leaves them: by expert, then by token.
struct Routing {
  Routing(TestRandom& random, int32_t tokens, const Shape& s, bool crowded) : indptr(s.experts + 1) {
    std::vector<std::vector<int32_t>> of(s.experts);
    std::vector<int32_t> all(s.experts);
    std::iota(all.begin(), all.end(), 0);
    for (int32_t t = 0; t < tokens; ++t) {
      if (!crowded) std::shuffle(all.begin(), all.end(), random.engine());
      for (int32_t j = 0; j < s.top_k; ++j) of[all[j]].push_back(t);
    }
    for (int32_t e = 0; e < s.experts; ++e) {
      rows.insert(rows.end(), of[e].begin(), of[e].end());
      indptr[e + 1] = static_cast<int32_t>(rows.size());
    }
  }
  std::vector<int32_t> indptr, rows;
};

struct Fixture {
  Fixture(TestRandom& random, const Shape& s, int32_t tokens, bool f8, bool crowded, bool fast = false)
      : scale(f8 ? WeightScale::kRow : WeightScale::kNone),
        gate_up(random, int64_t{s.experts} * 2 * s.ffn, s.hidden, scale, fast),
        down(random, int64_t{s.experts} * s.hidden, s.ffn, scale, fast),
        shared_gate_up(random, 2 * s.ffn, s.hidden, scale, fast),
        shared_down(random, s.hidden, s.ffn, scale, fast),
        rows(int64_t{tokens} * (s.top_k + 1)),
        x(tokens, s.hidden, f8, 0, random.normals(int64_t{tokens} * s.hidden)),
        h(rows, s.ffn, f8, kScaleGroup),
        routing(random, tokens, s, crowded),
        indptr(routing.indptr),
        sorted(routing.rows),
        out(rows * s.hidden),
        host_out(rows * s.hidden),
        workspace(stream_experts_workspace_bytes()) {
    workspace.set(std::vector<uint8_t>(stream_experts_workspace_bytes(), 0));
    host = {.gate_up = gate_up.host(),
            .down = down.host(),
            .x = x.host(),
            .num_tokens = tokens,
            .num_experts = s.experts,
            .top_k = s.top_k,
            .ffn = s.ffn,
            .expert_indptr = routing.indptr.data(),
            .sorted_tokens = routing.rows.data(),
            .h = h.host(),
            .out = host_out.data()};
    device = host;
    device.gate_up = gate_up.device();
    device.down = down.device();
    if (s.shared) {
      host.shared_gate_up = shared_gate_up.host();
      host.shared_down = shared_down.host();
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
  WeightScale scale;
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

void check(TestRandom& random, const Shape& s, int32_t tokens, bool f8, bool crowded) {
  const std::string name = std::to_string(tokens) + " tokens, " + std::to_string(s.experts) + " experts, hidden " +
                           std::to_string(s.hidden) + (f8 ? ", f8" : ", bf16") + (crowded ? ", crowded" : "");
  Fixture f(random, s, tokens, f8, crowded);
  stream_experts_ref(f.host);
  ASSERT_TRUE(stream_experts_fits(f.device)) << name;
  for (int run = 0; run < 3; ++run) {  // the workspace must serve again
    f.out.poison();
    stream_experts_cuda(nullptr, f.device);
    ASSERT_TRUE(last_launch("stream_experts").ok()) << name;
    const int64_t written = (s.shared ? f.rows : int64_t{tokens} * s.top_k) * s.hidden;
    auto got = as_floats(f.out.host());
    auto want = as_floats(f.host_out);
    got.resize(written);
    want.resize(written);
    // A rounding of h to E4M3 may fall the other way: 1/16 of one element in ffn.
    ASSERT_LT(relative_error(got, want), f8 ? 2e-2 : 6e-3) << name << " run " << run;
    double rms = 0;
    for (float v : want) rms += double{v} * v;
    rms = std::sqrt(rms / static_cast<double>(written));
    for (int64_t i = 0; i < written; ++i)
      ASSERT_NEAR(got[i], want[i], 0.4 * rms + 0.02 * std::fabs(want[i])) << name << " at " << i;
  }
}

TEST(StreamExpertsCuda, IsTheReference) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const bool f8 : {true, false}) {
    for (const int32_t tokens : {1, 2, 8, 9, 31, 40}) check(random, {16, 4, 256, 128, true}, tokens, f8, false);
    check(random, {16, 4, 256, 128, false}, 13, f8, false);
    check(random, {8, 3, 384, 256, true}, 70, f8, true);  // three experts get all rows; hidden is no whole tile
    check(random, {32, 6, 512, 128, true}, 128, f8, false);
    check(random, {128, 6, 1024, 384, true}, 20, f8, false);
  }
}

TEST(StreamExpertsCuda, KeepsNaNInItsRow) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  const Shape s{8, 2, 256, 128, true};
  Fixture f(random, s, 6, true, false);
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

TEST(StreamExpertsCuda, Speed) {
  VAYU_NEEDS_DEVICE();
  if (!std::getenv("VAYU_SPEED")) GTEST_SKIP() << "VAYU_SPEED is not set";
  TestRandom random;
  const Shape s{128, 6, 4096, 1024, true};
  for (const bool f8 : {true, false}) {
    Fixture f(random, s, 128, f8, false, true);
    for (const int32_t tokens : {1, 8, 16, 32, 64, 128}) {
      const Routing routing(random, tokens, s, false);
      f.indptr.set(routing.indptr);
      DeviceArray<int32_t> sorted(routing.rows);
      f.device.sorted_tokens = sorted.get();
      f.device.num_tokens = tokens;
      int touched = 0;
      for (int32_t e = 0; e < s.experts; ++e) touched += routing.indptr[e + 1] > routing.indptr[e];
      for (const bool shared : {false, true}) {
        StreamExpertsArgs args = f.device;
        if (!shared) args.shared_gate_up = args.shared_down = {};
        const double us = median_us([&](CudaStream stream) { stream_experts_cuda(stream, args); }).value();
        const double gbs = double{touched + shared + 0.0} * 3 * s.hidden * s.ffn * (f8 ? 1 : 2) / us * 1e-3;
        std::printf("SPEED stream_experts %s tokens %d experts %d+%d: %.1f us %.0f GB/s %.3f\n", f8 ? "f8" : "bf16",
                    tokens, touched, shared, us, gbs, gbs / 4300);
      }
    }
  }
}

}  // namespace
}  // namespace vayu::ops
