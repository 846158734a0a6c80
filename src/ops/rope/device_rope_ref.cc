// The definition of device_rope_kv_write.
#include "ops/rope/device_rope_ref.h"
#include "ops/rope/rotate_ref.h"

namespace vayu::ops {

void device_rope_kv_write_ref(const DeviceRopeKvWriteArgs& args) {
  const DeviceKvLayer& kv = args.kv;
  const DeviceRotation& rotation = args.rotation;
  const int num_heads = args.num_q_heads + 2 * kv.num_kv_heads;
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    for (int h = 0; h < num_heads; ++h) {
      Bf16* head = args.qkv + (t * num_heads + h) * kv.head_dim;
      std::vector<float> x = host_floats(head, kv.head_dim);
      const bool is_q = h < args.num_q_heads;
      const bool is_v = h >= args.num_q_heads + kv.num_kv_heads;
      const float* weight = is_q ? args.q_norm : args.k_norm;
      if (!is_v && weight) norm_ref(x, weight, args.norm_eps);
      if (!is_v) {
        rotate_ref(x.data(), rotation.rotary_dim, rotation.pairing, rotation.inv_freq, rotation.attention_factor,
                   args.positions[t]);
      }
      const int64_t slot = args.slot_mapping[t];
      if (is_q) {
        quantize_row(DataFormat::kBF16, x.data(), head, kv.head_dim);
      } else if (slot >= 0) {
        const int64_t kv_head = (h - args.num_q_heads) % kv.num_kv_heads;
        const int64_t line = (kv_head * 2 + is_v) * kv.page_size + slot % kv.page_size;
        store_kv_ref(kv, slot / kv.page_size * kv.page_elements() + line * kv.head_dim, x);
      }
    }
  }
}

}  // namespace vayu::ops
