// The definition of rope_kv_write.
#include <cmath>

#include "ops/attention/kv_element.h"
#include "ops/rope/rope_kv_write.h"
#include "ops/rope/rotate_ref.h"

namespace vayu::ops {
namespace {

void norm_head(float* head, const float* weight, int head_dim, float eps) {
  double sum = 0;
  for (int d = 0; d < head_dim; ++d) sum += double{head[d]} * head[d];
  const float scale = static_cast<float>(1.0 / std::sqrt(sum / head_dim + eps));
  for (int d = 0; d < head_dim; ++d) head[d] = head[d] * scale * weight[d];
}

}  // namespace

void rope_kv_write_ref(const RopeKvWriteArgs& args) {
  const KvLayer& kv = args.kv;
  const int64_t stride = (args.num_q_heads + 2 * kv.num_kv_heads) * int64_t{kv.head_dim};
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    float* q = args.qkv + t * stride;
    float* k = q + int64_t{args.num_q_heads} * kv.head_dim;
    const float* v = k + int64_t{kv.num_kv_heads} * kv.head_dim;
    for (int h = 0; h < args.num_q_heads + kv.num_kv_heads; ++h) {
      const float* weight = h < args.num_q_heads ? args.q_norm : args.k_norm;
      if (weight) norm_head(q + int64_t{h} * kv.head_dim, weight, kv.head_dim, args.norm_eps);
      rotate_ref(q + int64_t{h} * kv.head_dim, args.rotary_dim, args.pairing, args.inv_freq, args.attention_factor,
                 args.positions[t]);
    }
    const int64_t page = args.slot_mapping[t] / kv.page_size;
    const int64_t offset = args.slot_mapping[t] % kv.page_size;
    for (int h = 0; h < kv.num_kv_heads; ++h) {
      for (int d = 0; d < kv.head_dim; ++d) {
        store_kv(kv, k_index(kv, page, h, offset, d), k[int64_t{h} * kv.head_dim + d]);
        store_kv(kv, v_index(kv, page, h, offset, d), v[int64_t{h} * kv.head_dim + d]);
      }
    }
  }
}

}  // namespace vayu::ops
