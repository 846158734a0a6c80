#include "ops/attention/paged_attention.h"

#include "base/check.h"

namespace vayu::ops {

void paged_attention_ref(const PagedAttentionArgs& args);                        // paged_attention_ref.cc
void paged_attention_cpu(const OpContext& ctx, const PagedAttentionArgs& args);  // paged_attention_cpu.cc
int64_t paged_attention_cpu_scratch_bytes(const OpContext& ctx, int32_t num_q_heads, int32_t head_dim,
                                          int64_t max_tokens, int64_t max_context);

int64_t paged_attention_scratch_bytes(const OpContext& ctx, int32_t num_q_heads, const KvLayer& kv, int64_t max_tokens,
                                      int64_t max_context) {
  if (ctx.backend == Backend::kReference) return 0;
  return paged_attention_cpu_scratch_bytes(ctx, num_q_heads, kv.head_dim, max_tokens, max_context);
}

void paged_attention(const OpContext& ctx, const PagedAttentionArgs& args) {
  if (args.num_rows == 0) return;
  const KvLayer& kv = args.kv;
  VAYU_CHECK(args.q && args.out && args.qo_indptr && args.kv_indptr && args.page_table && args.kv_lens && kv.pages,
             "null pointer");
  VAYU_CHECK(kv.num_kv_heads > 0 && kv.head_dim > 0 && kv.page_size > 0, "{} KV heads of {}, page of {}",
             kv.num_kv_heads, kv.head_dim, kv.page_size);
  VAYU_CHECK(kv.latent_dim == 0 || (kv.num_kv_heads == 1 && kv.latent_dim <= kv.head_dim), "latent of {} in {}",
             kv.latent_dim, kv.head_dim);
  VAYU_CHECK(args.num_q_heads > 0 && args.num_q_heads % kv.num_kv_heads == 0, "{} query heads over {} KV heads",
             args.num_q_heads, kv.num_kv_heads);
  VAYU_CHECK(args.q_stride >= int64_t{args.num_q_heads} * kv.head_dim, "q_stride {}", args.q_stride);
  for (int32_t r = 0; r < args.num_rows; ++r) {
    const int64_t num_tokens = args.qo_indptr[r + 1] - args.qo_indptr[r];
    const int64_t capacity = int64_t{args.kv_indptr[r + 1] - args.kv_indptr[r]} * kv.page_size;
    VAYU_CHECK(num_tokens >= 0 && num_tokens <= args.kv_lens[r] && args.kv_lens[r] <= capacity,
               "row {}: {} tokens, kv_len {}, room for {}", r, num_tokens, args.kv_lens[r], capacity);
  }
  if (ctx.backend == Backend::kReference) return paged_attention_ref(args);
  VAYU_CHECK(args.scratch && args.scale > 0, "scale {}", args.scale);
  paged_attention_cpu(ctx, args);
}

}  // namespace vayu::ops
