#include "ops/rope/mla_rope_kv_write.h"

#include "base/check.h"

namespace vayu::ops {

void mla_rope_kv_write_ref(const MlaRopeKvWriteArgs& args);  // mla_rope_kv_write_ref.cc
void mla_rope_kv_write_cpu(const OpContext& ctx, const MlaRopeKvWriteArgs& args);

void mla_rope_kv_write(const OpContext& ctx, const MlaRopeKvWriteArgs& args) {
  if (args.num_tokens == 0) return;
  const KvLayer& kv = args.kv;
  VAYU_CHECK(args.q_kv && args.positions && args.slot_mapping && args.inv_freq && args.latent_norm && kv.pages,
             "null pointer");
  VAYU_CHECK(args.num_q_heads > 0 && args.nope_dim > 0 && args.rope_dim > 0 && args.rope_dim % 2 == 0,
             "{} query heads of {} + {}", args.num_q_heads, args.nope_dim, args.rope_dim);
  VAYU_CHECK(
      kv.num_kv_heads == 1 && kv.latent_dim > 0 && kv.head_dim == kv.latent_dim + args.rope_dim && kv.page_size > 0,
      "{} KV heads of {}, latent of {}, page of {}", kv.num_kv_heads, kv.head_dim, kv.latent_dim, kv.page_size);
  ctx.backend == Backend::kReference ? mla_rope_kv_write_ref(args) : mla_rope_kv_write_cpu(ctx, args);
}

}  // namespace vayu::ops
