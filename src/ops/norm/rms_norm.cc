#include "ops/norm/rms_norm.h"

#include "base/check.h"

namespace vayu::ops {

void rms_norm_ref(const RmsNormArgs& args);                        // rms_norm_ref.cc
void rms_norm_cpu(const OpContext& ctx, const RmsNormArgs& args);  // rms_norm_cpu.cc

void rms_norm(const OpContext& ctx, const RmsNormArgs& args) {
  if (args.num_tokens == 0) return;
  VAYU_CHECK(args.num_tokens > 0 && args.hidden > 0, "{} tokens of {}", args.num_tokens, args.hidden);
  VAYU_CHECK(args.x && args.weight && args.y, "null pointer");
  VAYU_CHECK(args.eps >= 0, "eps {}", args.eps);
  if (ctx.backend == Backend::kReference) return rms_norm_ref(args);
  rms_norm_cpu(ctx, args);
}

}  // namespace vayu::ops
