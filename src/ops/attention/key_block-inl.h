// Keys and values where a register tile can multiply them: in their pages as they lie, or converted to float first.
#if defined(VAYU_OPS_ATTENTION_KEY_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VAYU_OPS_ATTENTION_KEY_BLOCK_INL_H_
#undef VAYU_OPS_ATTENTION_KEY_BLOCK_INL_H_
#else
#define VAYU_OPS_ATTENTION_KEY_BLOCK_INL_H_
#endif

#include <algorithm>

#include "hwy/highway.h"
#include "ops/attention/attention_plan.h"
#include "ops/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vayu::ops {
namespace HWY_NAMESPACE {

// Queries of one KV head against one row's keys: query i belongs to token i / group.
struct Work {
  const KvLayer* kv = nullptr;
  const int32_t* pages = nullptr;  // of the row
  int32_t head = 0;                // KV head
  int num_queries = 0;
  int group = 0;
  int32_t first_visible = 0;  // keys the first token sees; every later token sees one more
  float scale = 1;
  int64_t dim = 0;    // of K, padded to whole vectors; between rows of all buffers
  int64_t v_dim = 0;  // of V, padded too
  int64_t scores_stride = 0;
  float* q = nullptr;       // (num_queries, dim)
  float* scores = nullptr;  // (num_queries, scores_stride), then the weights
  float* sums = nullptr;    // (num_queries, dim) of the chunk, not yet divided by the weight
  float* merged = nullptr;  // (num_queries, dim) of all chunks so far
  float* max = nullptr;     // (num_queries) of the chunk
  float* weight = nullptr;  // (num_queries) of the chunk
  float* merged_max = nullptr;
  float* merged_weight = nullptr;
  float* block = nullptr;  // (kBlockKeys, dim): converted keys or values

  int32_t visible(int query) const { return first_visible + query / group; }
  int32_t max_visible() const { return visible(num_queries - 1); }
};

// Up to kBlockKeys keys where a tile can multiply them: in the pages, or converted.
template <class T>
struct KeyBlock {
  const T* k[kBlockKeys];  // one a vector of tokens
  int64_t k_stride = 0;    // between dimensions
  const T* v[kBlockKeys];  // one a run of tokens
  int64_t v_stride = 0;    // between tokens
  int v_run = kBlockKeys;  // tokens a run
};

inline float scalar_as_float(const float* p) { return *p; }
inline float scalar_as_float(const hwy::float16_t* p) { return f16_to_float(*reinterpret_cast<const f16_t*>(p)); }
inline float scalar_as_float(const hwy::bfloat16_t* p) { return bf16_to_float(*reinterpret_cast<const bf16_t*>(p)); }

template <class T>
const T* head_base(const Work& work, int32_t key) {
  const KvLayer& kv = *work.kv;
  return static_cast<const T*>(kv.pages) + work.pages[key / kv.page_size] * kv.page_elements() +
         work.head * kv.head_elements();
}

// Pages of whole vectors, read where they lie.
template <class T>
struct DirectSource {
  static constexpr int kRun = 16;
  using Element = T;
  static void keys(const Work& work, int32_t first, int count, KeyBlock<T>& block) {
    const int lanes = static_cast<int>(hn::Lanes(hn::ScalableTag<float>()));
    block.k_stride = work.kv->page_size;
    for (int i = 0; i < count; i += lanes) {
      block.k[i / lanes] = head_base<T>(work, first + i) + (first + i) % work.kv->page_size;
    }
  }
  static void values(const Work& work, int32_t first, int count, KeyBlock<T>& block) {
    const KvLayer& kv = *work.kv;
    block.v_stride = kv.head_dim;
    block.v_run = kRun;
    for (int i = 0; i < count; i += kRun) {
      const int64_t offset = (first + i) % kv.page_size;
      block.v[i / kRun] = head_base<T>(work, first + i) + (kv.page_size + offset) * kv.head_dim;
    }
  }
};

// Any page size and head dimension: converted to float into work.block, K as (head_dim, kBlockKeys), V as
// (kBlockKeys, dim).
template <class T>
struct ConvertedSource {
  using Element = float;
  static void keys(const Work& work, int32_t first, int count, KeyBlock<float>& block) {
    const hn::ScalableTag<float> d;
    const int lanes = static_cast<int>(hn::Lanes(d));
    const int64_t page_size = work.kv->page_size;
    const bool whole_vectors = page_size % 16 == 0;
    const int step = whole_vectors ? 16 : 1;
    for (int i = 0; i < count; i += step) {
      const T* src = head_base<T>(work, first + i) + (first + i) % page_size;
      for (int64_t dim = 0; dim < work.kv->head_dim; ++dim) {
        float* dst = work.block + dim * kBlockKeys + i;
        if (whole_vectors) {
          for (int j = 0; j < 16; j += lanes) hn::StoreU(load_as_float(d, src + dim * page_size + j), d, dst + j);
        } else {
          *dst = scalar_as_float(src + dim * page_size);
        }
      }
    }
    block.k_stride = kBlockKeys;
    for (int v = 0; v * lanes < count; ++v) block.k[v] = work.block + v * lanes;
  }
  static void values(const Work& work, int32_t first, int count, KeyBlock<float>& block) {
    const hn::ScalableTag<float> d;
    const int64_t lanes = hn::Lanes(d);
    const KvLayer& kv = *work.kv;
    block.v_stride = work.dim;
    block.v_run = kBlockKeys;
    block.v[0] = work.block;
    if (kv.latent_dim > 0) return latents(work, first, count);
    for (int i = 0; i < count; ++i) {
      const T* src = head_base<T>(work, first + i) + int64_t{kv.page_size + (first + i) % kv.page_size} * kv.head_dim;
      float* dst = work.block + i * work.dim;
      int64_t dim = 0;
      for (; dim + lanes <= kv.head_dim; dim += lanes) hn::StoreU(load_as_float(d, src + dim), d, dst + dim);
      for (; dim < kv.head_dim; ++dim) dst[dim] = scalar_as_float(src + dim);
      for (; dim < work.dim; ++dim) dst[dim] = 0;
    }
  }
  // Values that are the leading dimensions of the keys: turned round from (head_dim, page_size), 16 tokens x 16
  // dimensions at a time where pages allow it.
  static void latents(const Work& work, int32_t first, int count) {
    const KvLayer& kv = *work.kv;
    constexpr int kTile = 16;
    const bool whole_tiles = kv.page_size % kTile == 0 && kv.latent_dim % kTile == 0;
    for (int i = 0; i < count; i += whole_tiles ? kTile : 1) {
      const T* src = head_base<T>(work, first + i) + (first + i) % kv.page_size;
      float* dst = work.block + i * work.dim;
      if (whole_tiles) {
        for (int64_t dim = 0; dim < kv.latent_dim; dim += kTile) {
          turn_tile(src + dim * kv.page_size, kv.page_size, dst + dim, work.dim);
        }
      } else {
        for (int64_t dim = 0; dim < kv.latent_dim; ++dim) dst[dim] = scalar_as_float(src + dim * kv.page_size);
      }
      for (int t = 0; t < (whole_tiles ? kTile : 1); ++t) {
        std::fill(dst + t * work.dim + kv.latent_dim, dst + t * work.dim + work.v_dim, 0.0f);
      }
    }
  }
  // dst[t][d] = src[d][t]
  static void turn_tile(const T* src, int64_t src_stride, float* dst, int64_t dst_stride) {
    const hn::ScalableTag<float> d;
    const int lanes = static_cast<int>(hn::Lanes(d));
    constexpr int kTile = 16;
    HWY_ALIGN float tile[kTile][kTile];
    for (int r = 0; r < kTile; ++r) {
      for (int t = 0; t < kTile; t += lanes) hn::Store(load_as_float(d, src + r * src_stride + t), d, tile[r] + t);
    }
    for (int t = 0; t < kTile; ++t) {
      for (int r = 0; r < kTile; ++r) dst[t * dst_stride + r] = tile[r][t];
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace vayu::ops
HWY_AFTER_NAMESPACE();

#endif  // VAYU_OPS_ATTENTION_KEY_BLOCK_INL_H_
