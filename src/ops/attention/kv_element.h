// One element of a KV page as float, for the plain versions of the ops; fast versions convert vectors.
#pragma once

#include "base/half.h"
#include "ops/attention/kv_cache.h"

namespace vayu::ops {

inline float load_kv(const KvLayer& kv, int64_t index) {
  switch (kv.format) {
    case KvFormat::kF32:
      return static_cast<const float*>(kv.pages)[index];
    case KvFormat::kF16:
      return f16_to_float(static_cast<const f16_t*>(kv.pages)[index]);
    case KvFormat::kBF16:
      return bf16_to_float(static_cast<const bf16_t*>(kv.pages)[index]);
  }
  return 0;
}

inline void store_kv(const KvLayer& kv, int64_t index, float value) {
  switch (kv.format) {
    case KvFormat::kF32:
      static_cast<float*>(kv.pages)[index] = value;
      return;
    case KvFormat::kF16:
      static_cast<f16_t*>(kv.pages)[index] = float_to_f16(value);
      return;
    case KvFormat::kBF16:
      static_cast<bf16_t*>(kv.pages)[index] = float_to_bf16(value);
      return;
  }
}

// Index of dimension d of K or V of one token in a page.
inline int64_t k_index(const KvLayer& kv, int64_t page, int64_t head, int64_t offset, int64_t d) {
  return page * kv.page_elements() + head * kv.head_elements() + d * kv.page_size + offset;
}
inline int64_t v_index(const KvLayer& kv, int64_t page, int64_t head, int64_t offset, int64_t d) {
  if (kv.latent_dim > 0) return k_index(kv, page, head, offset, d);
  return page * kv.page_elements() + head * kv.head_elements() + int64_t{kv.page_size + offset} * kv.head_dim + d;
}

}  // namespace vayu::ops
