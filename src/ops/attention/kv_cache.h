// The paged KV memory of one layer as ops see it. Layout of a page, fixed here: for each kv head, K transposed as
// (head_dim, page_size) so that one vector holds one dimension of 16 tokens, then V as (page_size, head_dim).
// Multi-head latent attention (DeepSeek-V2, 2024) keeps one head of K only: latent_dim normed latents, which are also
// V, then the rotated key that all heads share.
#pragma once

#include <cstdint>

namespace vayu::ops {

enum class KvFormat : uint8_t { kF32, kF16, kBF16 };
inline int64_t kv_element_bytes(KvFormat format) { return format == KvFormat::kF32 ? 4 : 2; }

struct KvLayer {
  void* pages = nullptr;  // (num_pages, num_kv_heads, head_elements) elements of `format`
  KvFormat format = KvFormat::kF16;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;  // of K; of V too unless latent_dim > 0
  int32_t page_size = 16;
  int32_t latent_dim = 0;  // > 0: V is the first latent_dim dimensions of K and is not stored; num_kv_heads is 1

  int32_t v_dim() const { return latent_dim > 0 ? latent_dim : head_dim; }
  int64_t head_elements() const { return int64_t{latent_dim > 0 ? 1 : 2} * head_dim * page_size; }
  int64_t page_elements() const { return num_kv_heads * head_elements(); }
  int64_t page_bytes() const { return page_elements() * kv_element_bytes(format); }
};

}  // namespace vayu::ops
