// The definition of device_head_linear.
#include "base/data_format.h"
#include "ops/cuda/host_rows.h"
#include "ops/gemm/device_head_linear.h"

namespace vayu::ops {
namespace {

std::vector<float> host_floats(const Bf16* values, int64_t count) {
  std::vector<float> out(count);
  dequantize_row(DataFormat::kBF16, values, out.data(), count);
  return out;
}

}  // namespace

void device_head_linear_ref(const DeviceHeadLinearArgs& args) {
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    for (int64_t h = 0; h < args.num_heads; ++h) {
      const Bf16* x = args.x + t * args.x_stride + h * args.x_head_stride;
      Bf16* y = args.y + t * args.y_stride + h * args.y_head_stride;
      const std::vector<float> values = host_floats(x, args.in);
      for (int64_t o = 0; o < args.out; ++o) {
        const Bf16* w = args.weight + (h * args.out + o) * args.in;
        y[o] = host_bf16(static_cast<float>(host_dot(values, host_floats(w, args.in))));
      }
    }
  }
}

}  // namespace vayu::ops
