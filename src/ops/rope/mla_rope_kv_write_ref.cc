// The definition of mla_rope_kv_write; the angle is a float product, as in rope_kv_write.
#include <cmath>

#include "ops/attention/kv_element.h"
#include "ops/rope/mla_rope_kv_write.h"

namespace vayu::ops {
namespace {

void rotate(const MlaRopeKvWriteArgs& args, float* x, int32_t position) {
  const int half = args.rope_dim / 2;
  const bool split = args.pairing == RopePairing::kHalfSplit;
  for (int i = 0; i < half; ++i) {
    const float angle = static_cast<float>(position) * args.inv_freq[i];
    const float c = static_cast<float>(std::cos(double{angle})) * args.attention_factor;
    const float s = static_cast<float>(std::sin(double{angle})) * args.attention_factor;
    float& a = x[split ? i : 2 * i];
    float& b = x[split ? i + half : 2 * i + 1];
    const float rotated_a = a * c - b * s;
    b = b * c + a * s;
    a = rotated_a;
  }
}

}  // namespace

void mla_rope_kv_write_ref(const MlaRopeKvWriteArgs& args) {
  const KvLayer& kv = args.kv;
  const int64_t q_dim = args.nope_dim + args.rope_dim;
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    float* q = args.q_kv + t * (args.num_q_heads * q_dim + kv.head_dim);
    float* latent = q + args.num_q_heads * q_dim;
    float* key = latent + kv.latent_dim;
    for (int h = 0; h < args.num_q_heads; ++h) rotate(args, q + h * q_dim + args.nope_dim, args.positions[t]);
    rotate(args, key, args.positions[t]);
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
