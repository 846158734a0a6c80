#include "ops/activation/silu_mul.h"

#include "base/check.h"

namespace vayu::ops {

void silu_mul_ref(const float* gate_up, float* y, int64_t num_tokens, int64_t width);  // silu_mul_ref.cc
void silu_mul_cpu(const OpContext& ctx, const float* gate_up, float* y, int64_t num_tokens, int64_t width);

void silu_mul(const OpContext& ctx, const float* gate_up, float* y, int64_t num_tokens, int64_t width) {
  if (num_tokens == 0) return;
  VAYU_CHECK(num_tokens > 0 && width > 0, "{} tokens of {}", num_tokens, width);
  VAYU_CHECK(gate_up && y, "null pointer");
  if (ctx.backend == Backend::kReference) return silu_mul_ref(gate_up, y, num_tokens, width);
  silu_mul_cpu(ctx, gate_up, y, num_tokens, width);
}

}  // namespace vayu::ops
