// The definition of device_silu_mul, in double.
#include <cmath>

#include "ops/activation/device_silu_mul.h"
#include "ops/cuda/host_rows.h"

namespace vayu::ops {

void device_silu_mul_ref(const DeviceSiluMulArgs& args) {
  std::vector<float> y(args.y.cols);
  for (int64_t row = 0; row < args.num_rows; ++row) {
    const Bf16* x = args.gate_up + row * 2 * args.y.cols;
    for (int64_t i = 0; i < args.y.cols; ++i) {
      const Bf16* gate = x + i / kGateUpInterleave * 2 * kGateUpInterleave + i % kGateUpInterleave;
      const double g = host_float(gate[0]);
      y[i] = static_cast<float>(g / (1.0 + std::exp(-g)) * host_float(gate[kGateUpInterleave]));
    }
    store_host_row(args.y, row, y);
  }
}

}  // namespace vayu::ops
