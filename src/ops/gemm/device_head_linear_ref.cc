// The definition of device_head_linear.
#include "ops/cuda/host_rows.h"
#include "ops/gemm/device_head_linear.h"

namespace vayu::ops {

void device_head_linear_ref(const DeviceHeadLinearArgs& args) {
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    for (int64_t h = 0; h < args.num_heads; ++h) {
      const Bf16* x = args.x + t * args.x_stride + h * args.x_head_stride;
      Bf16* y = args.y + t * args.y_stride + h * args.y_head_stride;
      std::vector<double> values(args.in);
      for (int64_t i = 0; i < args.in; ++i) values[i] = host_float(x[i]);
      for (int64_t o = 0; o < args.out; ++o) {
        const Bf16* w = args.weight + (h * args.out + o) * args.in;
        double sum = 0;
        for (int64_t i = 0; i < args.in; ++i) sum += values[i] * host_float(w[i]);
        y[o] = host_bf16(static_cast<float>(sum));
      }
    }
  }
}

}  // namespace vayu::ops
