// QK-norm, rotary embedding and KV write, a token at a time: sines and cosines once a token for all heads.
#include "ops/cpu/thread_pool.h"
#include "ops/rope/rope_kv_write.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/rope/rope_kv_write_cpu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/vector_math-inl.h"
#include "ops/rope/rotation-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vayu::ops {
namespace HWY_NAMESPACE {
namespace {

// K goes across the page, one element a line of the transposed K; V is contiguous.
template <class T>
void write_kv(const KvLayer& kv, const float* k, const float* v, int32_t slot) {
  constexpr int kBlock = 64;
  T converted[kBlock];
  T* page = static_cast<T*>(kv.pages) + int64_t{slot / kv.page_size} * kv.page_elements();
  const int offset = slot % kv.page_size;
  for (int h = 0; h < kv.num_kv_heads; ++h) {
    T* k_dst = page + h * kv.head_elements() + offset;
    T* v_dst = page + h * kv.head_elements() + int64_t{kv.page_size + offset} * kv.head_dim;
    for (int begin = 0; begin < kv.head_dim; begin += kBlock) {
      const int count = std::min(kBlock, kv.head_dim - begin);
      convert_floats(k + int64_t{h} * kv.head_dim + begin, converted, count);
      for (int i = 0; i < count; ++i) k_dst[int64_t{begin + i} * kv.page_size] = converted[i];
    }
    convert_floats(v + int64_t{h} * kv.head_dim, v_dst, kv.head_dim);
  }
}

void rope_tokens(const RopeKvWriteArgs& args, int64_t begin, int64_t end) {
  const KvLayer& kv = args.kv;
  const int64_t head_dim = kv.head_dim;
  const int num_heads = args.num_q_heads + kv.num_kv_heads;  // rotated: Q and K
  for (int64_t t = begin; t < end; ++t) {
    float* q = args.qkv + t * (num_heads + kv.num_kv_heads) * head_dim;
    float* k = q + args.num_q_heads * head_dim;
    const float* v = k + kv.num_kv_heads * head_dim;
    for (int h = 0; h < num_heads; ++h) {
      const float* weight = h < args.num_q_heads ? args.q_norm : args.k_norm;
      if (weight) norm_head(q + h * head_dim, weight, kv.head_dim, args.norm_eps);
    }
    rotate_heads(args.inv_freq, args.attention_factor, args.pairing, args.rotary_dim, q, num_heads, head_dim,
                 args.positions[t]);
    switch (kv.format) {
      case KvFormat::kF32:
        write_kv<float>(kv, k, v, args.slot_mapping[t]);
        break;
      case KvFormat::kF16:
        write_kv<hwy::float16_t>(kv, k, v, args.slot_mapping[t]);
        break;
      case KvFormat::kBF16:
        write_kv<hwy::bfloat16_t>(kv, k, v, args.slot_mapping[t]);
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
HWY_EXPORT(rope_tokens);

void rope_kv_write_cpu(const OpContext& ctx, const RopeKvWriteArgs& args) {
  constexpr int64_t kInlineTokens = 8;  // a microsecond each: fewer are not worth waking a thread for
  const auto tokens = HWY_DYNAMIC_DISPATCH(rope_tokens);
  if (args.num_tokens <= kInlineTokens) return tokens(args, 0, args.num_tokens);
  ctx.pool->parallel_for(args.num_tokens, 16, [&](int64_t begin, int64_t end, int) { tokens(args, begin, end); });
}

}  // namespace vayu::ops
#endif
