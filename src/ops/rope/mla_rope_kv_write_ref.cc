// The definition of mla_rope_kv_write.
#include <cmath>

#include "ops/attention/kv_element.h"
#include "ops/rope/mla_rope_kv_write.h"
#include "ops/rope/rotate_ref.h"

namespace vayu::ops {
void mla_rope_kv_write_ref(const MlaRopeKvWriteArgs& args) {
  const KvLayer& kv = args.kv;
  const int64_t q_dim = args.nope_dim + args.rope_dim;
  const auto rotate = [&](float* x, int32_t position) {
    rotate_ref(x, args.rope_dim, args.pairing, args.inv_freq, args.attention_factor, position);
  };
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    float* q = args.q_kv + t * (args.num_q_heads * q_dim + kv.head_dim);
    float* latent = q + args.num_q_heads * q_dim;
    float* key = latent + kv.latent_dim;
    for (int h = 0; h < args.num_q_heads; ++h) rotate(q + h * q_dim + args.nope_dim, args.positions[t]);
    rotate(key, args.positions[t]);
    double sum = 0;
    for (int i = 0; i < kv.latent_dim; ++i) sum += double{latent[i]} * latent[i];
    const auto scale = static_cast<float>(1.0 / std::sqrt(sum / kv.latent_dim + args.norm_eps));
    const int64_t page = args.slot_mapping[t] / kv.page_size;
    const int64_t offset = args.slot_mapping[t] % kv.page_size;
    for (int i = 0; i < kv.head_dim; ++i) {
      const float value = i < kv.latent_dim ? latent[i] * scale * args.latent_norm[i] : latent[i];
      store_kv(kv, k_index(kv, page, 0, offset, i), value);
    }
  }
}

}  // namespace vayu::ops
