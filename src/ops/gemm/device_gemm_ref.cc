// The definition: rows expanded to float, dot products in double.
#include <cmath>

#include "ops/cuda/host_rows.h"
#include "ops/gemm/device_gemm.h"

namespace vayu::ops {
namespace {

// (rows of the group's weight) for one row of x: every row of the weight is expanded once for all rows of the group.
std::vector<std::vector<float>> products(const DeviceMatrix& weight, int64_t first_row, int64_t num_rows,
                                         const std::vector<std::vector<float>>& x) {
  std::vector<std::vector<float>> y(x.size(), std::vector<float>(num_rows));
  for (int64_t row = 0; row < num_rows; ++row) {
    const std::vector<float> w = host_weight_row(weight, first_row + row);
    for (size_t i = 0; i < x.size(); ++i) {
      y[i][row] = static_cast<float>(host_dot(w, x[i]));
    }
  }
  return y;
}

std::vector<float> swiglu(const std::vector<float>& gate_up) {
  std::vector<float> h(gate_up.size() / 2);
  for (size_t o = 0; o < h.size(); ++o) {
    const size_t row = o / kGateUpInterleave * 2 * kGateUpInterleave + o % kGateUpInterleave;
    const double gate = gate_up[row];
    h[o] = static_cast<float>(gate / (1 + std::exp(-gate)) * gate_up[row + kGateUpInterleave]);
  }
  return h;
}

}  // namespace

void device_gemm_ref(const DeviceGemmArgs& args) {
  const int64_t rows_per_group = args.rows_per_group();
  for (int32_t group = 0; group < args.num_groups; ++group) {
    const int32_t begin = args.group_indptr ? args.group_indptr[group] : 0;
    const int32_t end = args.group_indptr ? args.group_indptr[group + 1] : args.num_rows;
    if (begin == end) continue;
    std::vector<std::vector<float>> x;
    for (int32_t i = begin; i < end; ++i) x.push_back(host_row(args.x, args.x_rows ? args.x_rows[i] : i));
    const auto y = products(args.weight, group * rows_per_group, rows_per_group, x);
    for (int32_t i = begin; i < end; ++i) {
      const auto& row = y[i - begin];
      store_host_row(args.out, args.y_rows ? args.y_rows[i] : i, args.swiglu ? swiglu(row) : row);
    }
  }
}

}  // namespace vayu::ops
