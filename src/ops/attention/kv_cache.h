// The paged KV memory of one layer as ops see it. Layout of a page, fixed here: for each kv head, K transposed as
// (head_dim, page_size) so that one vector holds one dimension of 16 tokens, then V as (page_size, head_dim).
#pragma once

#include <cstdint>

namespace vayu::ops {

enum class KvFormat : uint8_t { kF32, kF16, kBF16 };
inline int64_t kv_element_bytes(KvFormat format) { return format == KvFormat::kF32 ? 4 : 2; }

struct KvLayer {
  void* pages = nullptr;  // (num_pages, num_kv_heads, 2 * head_dim * page_size) elements of `format`
  KvFormat format = KvFormat::kF16;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t page_size = 16;

  int64_t head_elements() const { return int64_t{2} * head_dim * page_size; }
  int64_t page_elements() const { return num_kv_heads * head_elements(); }
  int64_t page_bytes() const { return page_elements() * kv_element_bytes(format); }
};

}  // namespace vayu::ops
