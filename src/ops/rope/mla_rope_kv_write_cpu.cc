// Norm of the latent, rotation of the queries and of the shared key, and the write: a token at a time.
#include "ops/cpu/thread_pool.h"
#include "ops/rope/mla_rope_kv_write.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/rope/mla_rope_kv_write_cpu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/vector_math-inl.h"
#include "ops/rope/rotation-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vayu::ops {
namespace HWY_NAMESPACE {
namespace {

// One element a line of the transposed page.
template <class T>
void write_key(const KvLayer& kv, const float* key, int32_t slot) {
  constexpr int kBlock = 64;
  T converted[kBlock];
  T* dst = static_cast<T*>(kv.pages) + int64_t{slot / kv.page_size} * kv.page_elements() + slot % kv.page_size;
  for (int begin = 0; begin < kv.head_dim; begin += kBlock) {
    const int count = std::min(kBlock, kv.head_dim - begin);
    convert_floats(key + begin, converted, count);
    for (int i = 0; i < count; ++i) dst[int64_t{begin + i} * kv.page_size] = converted[i];
  }
}

void mla_tokens(const MlaRopeKvWriteArgs& args, int64_t begin, int64_t end) {
  const KvLayer& kv = args.kv;
  const int64_t q_dim = args.nope_dim + args.rope_dim;
  for (int64_t t = begin; t < end; ++t) {
    float* q = args.q_kv + t * (args.num_q_heads * q_dim + kv.head_dim);
    float* latent = q + args.num_q_heads * q_dim;
    const int32_t position = args.positions[t];
    rotate_heads(args.inv_freq, args.attention_factor, args.pairing, args.rope_dim, q + args.nope_dim, args.num_q_heads,
                 q_dim, position);
    rotate_heads(args.inv_freq, args.attention_factor, args.pairing, args.rope_dim, latent + kv.latent_dim, 1, 0,
                 position);
    norm_head(latent, args.latent_norm, kv.latent_dim, args.norm_eps);
    switch (kv.format) {
      case KvFormat::kF32:
        write_key<float>(kv, latent, args.slot_mapping[t]);
        break;
      case KvFormat::kF16:
        write_key<hwy::float16_t>(kv, latent, args.slot_mapping[t]);
        break;
      case KvFormat::kBF16:
        write_key<hwy::bfloat16_t>(kv, latent, args.slot_mapping[t]);
        break;
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace vayu::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vayu::ops {
HWY_EXPORT(mla_tokens);

void mla_rope_kv_write_cpu(const OpContext& ctx, const MlaRopeKvWriteArgs& args) {
  constexpr int64_t kInlineTokens = 4;  // a few microseconds each: fewer are not worth waking a thread for
  const auto tokens = HWY_DYNAMIC_DISPATCH(mla_tokens);
  if (args.num_tokens <= kInlineTokens) return tokens(args, 0, args.num_tokens);
  ctx.pool->parallel_for(args.num_tokens, 8, [&](int64_t begin, int64_t end, int) { tokens(args, begin, end); });
}

}  // namespace vayu::ops
#endif
