#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cuda/host_rows.h"
#include "ops/moe/stream_experts.h"

namespace vayu::ops {
namespace {

bool matrix_fits(const DeviceMatrix& m, WeightScale scale, int64_t cols) {
  return m.cols == cols && m.row_bytes() % 16 == 0 && m.scale == scale &&
         (scale != WeightScale::kBlock || cols % kScaleGroup == 0);
}

// out row = the expert's MLP of x row.
void run_row(const StreamExpertsArgs& a, const DeviceMatrix& gate_up, const DeviceMatrix& down, int64_t expert,
             int64_t token, int64_t row) {
  const int64_t hidden = a.gate_up.cols, ffn = a.ffn;
  const std::vector<float> x = host_row(a.x, token);
  std::vector<float> inner(ffn);
  for (int64_t i = 0; i < ffn; ++i) {
    const int64_t gate_row = expert * 2 * ffn + i / kGateUpInterleave * 2 * kGateUpInterleave + i % kGateUpInterleave;
    const double gate = host_dot(host_weight_row(gate_up, gate_row), x);
    const double up = host_dot(host_weight_row(gate_up, gate_row + kGateUpInterleave), x);
    inner[i] = static_cast<float>(gate / (1 + std::exp(-gate)) * up);
  }
  store_host_row(a.h, row, inner);
  inner = host_row(a.h, row);
  for (int64_t i = 0; i < hidden; ++i) {
    a.out[row * hidden + i] =
        host_bf16(static_cast<float>(host_dot(host_weight_row(down, expert * hidden + i), inner)));
  }
}

}  // namespace

bool stream_experts_fits(const StreamExpertsArgs& a) {
  const WeightScale scale = a.gate_up.scale;
  const bool f8 = a.gate_up.is_f8();
  const int64_t hidden = a.gate_up.cols;
  const int64_t max_groups =
      a.num_experts + (int64_t{a.num_tokens} * a.top_k + a.num_tokens) / kStreamExpertsPassRows + 2;
  bool fits = a.ffn > 0 && a.ffn % kScaleGroup == 0 && max_groups <= kStreamExpertsMaxGroups &&
              a.num_experts < INT16_MAX && a.x.cols == hidden && a.x.is_f8() == f8 && a.x.scale_group == 0 &&
              a.h.cols == a.ffn && a.h.is_f8() == f8 &&
              (!f8 || a.h.scale_group == (a.half_tiles ? kScaleGroup / 2 : kScaleGroup)) &&
              !(a.half_tiles && a.num_tokens > kStreamExpertsHalvesTokens) && matrix_fits(a.gate_up, scale, hidden) &&
              matrix_fits(a.down, scale, a.ffn);
  if (a.shared_gate_up.rows > 0) {
    fits = fits && a.shared_gate_up.rows == 2 * int64_t{a.ffn} && matrix_fits(a.shared_gate_up, scale, hidden) &&
           matrix_fits(a.shared_down, scale, a.ffn);
  }
  return fits;
}

// All tiles are under way at once, or they take fewer rounds. Experts without rows are not known here.
bool stream_experts_halves_pay(const StreamExpertsArgs& a, int32_t sms) {
  if (a.num_tokens > kStreamExpertsHalvesTokens) return false;
  const int32_t groups = std::min(a.num_tokens * a.top_k, a.num_experts) + (a.shared_gate_up.rows > 0);
  const int32_t tiles = groups * (a.ffn / 128);
  const auto rounds = [sms](int32_t tiles) { return (tiles + sms - 1) / sms; };
  return tiles <= sms || rounds(2 * tiles) < 2 * rounds(tiles);
}

void stream_experts_ref(const StreamExpertsArgs& a) {
  for (int32_t e = 0; e < a.num_experts; ++e) {
    for (int32_t r = a.expert_indptr[e]; r < a.expert_indptr[e + 1]; ++r) {
      run_row(a, a.gate_up, a.down, e, a.sorted_tokens[r], r);
    }
  }
  if (a.shared_gate_up.rows == 0) return;
  for (int32_t t = 0; t < a.num_tokens; ++t) {
    run_row(a, a.shared_gate_up, a.shared_down, 0, t, int64_t{a.num_tokens} * a.top_k + t);
  }
}

}  // namespace vayu::ops
