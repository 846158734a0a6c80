#include "ops/rope/rope_kv_write.h"

#include "base/check.h"

namespace vayu::ops {

void rope_kv_write_ref(const RopeKvWriteArgs& args);                        // rope_kv_write_ref.cc
void rope_kv_write_cpu(const OpContext& ctx, const RopeKvWriteArgs& args);  // rope_kv_write_cpu.cc

void rope_kv_write(const OpContext& ctx, const RopeKvWriteArgs& args) {
  if (args.num_tokens == 0) return;
  const KvLayer& kv = args.kv;
  VAYU_CHECK(args.qkv && args.positions && args.slot_mapping && kv.pages, "null pointer");
  VAYU_CHECK(args.num_q_heads > 0 && kv.num_kv_heads > 0 && kv.head_dim > 0 && kv.page_size > 0,
             "{} query heads, {} KV heads of {}, page of {}", args.num_q_heads, kv.num_kv_heads, kv.head_dim,
             kv.page_size);
  VAYU_CHECK(args.rotary_dim >= 0 && args.rotary_dim % 2 == 0 && args.rotary_dim <= kv.head_dim,
             "rotary_dim {} of head_dim {}", args.rotary_dim, kv.head_dim);
  VAYU_CHECK(args.rotary_dim == 0 || args.inv_freq, "no inv_freq");
  if (ctx.backend == Backend::kReference) return rope_kv_write_ref(args);
  rope_kv_write_cpu(ctx, args);
}

}  // namespace vayu::ops
