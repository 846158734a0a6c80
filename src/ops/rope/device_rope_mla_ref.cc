// The definitions of device_mla_rope_kv_write and mla_split_queries.
#include "ops/rope/device_rope_mla.h"
#include "ops/rope/device_rope_ref.h"
#include "ops/rope/rotate_ref.h"

namespace vayu::ops {

void device_mla_rope_kv_write_ref(const DeviceMlaRopeKvWriteArgs& args) {
  const DeviceKvLayer& kv = args.kv;
  const int64_t q_dim = args.nope_dim + args.rope_dim();
  const auto rotated = [&](const Bf16* p, int64_t t) {
    std::vector<float> x = host_floats(p, args.rope_dim());
    rotate_ref(x.data(), args.rope_dim(), args.rotation.pairing, args.rotation.inv_freq, args.rotation.attention_factor,
               args.positions[t]);
    return x;
  };
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    Bf16* row = args.q_kv + t * args.row_elements();
    for (int64_t h = 0; h < args.num_heads; ++h) {
      Bf16* q = row + h * q_dim + args.nope_dim;
      const std::vector<float> x = rotated(q, t);
      quantize_row(DataFormat::kBF16, x.data(), q, args.rope_dim());
      if (!args.q_latent) continue;
      Bf16* copy = args.q_latent + (t * args.num_heads + h) * kv.head_dim + kv.latent_dim;
      quantize_row(DataFormat::kBF16, x.data(), copy, args.rope_dim());
    }
    const Bf16* latent = row + args.num_heads * q_dim;
    std::vector<float> x = host_floats(latent, kv.latent_dim);
    norm_ref(x, args.latent_norm, args.norm_eps);
    const int64_t slot = args.slot_mapping[t];
    if (slot < 0) continue;
    const int64_t line = slot * kv.head_dim;  // pages are lines one after the other
    store_kv_ref(kv, line, x);
    store_kv_ref(kv, line + kv.latent_dim, rotated(latent + kv.latent_dim, t));
  }
}

void mla_split_queries_ref(const MlaSplitQueriesArgs& args) {
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    for (int64_t h = 0; h < args.num_heads; ++h) {
      const Bf16* from = args.q + t * args.q_stride + h * (args.nope_dim + args.rope_dim) + args.nope_dim;
      Bf16* to = args.q_latent + (t * args.num_heads + h) * (args.latent_dim + args.rope_dim) + args.latent_dim;
      for (int64_t i = 0; i < args.rope_dim; ++i) to[i] = from[i];
    }
  }
}

}  // namespace vayu::ops
