// The register tile both products of attention are made of: C += A B for a few rows of A (queries or their weights)
// against vectors of B (keys across the page, or values). Every element of C is one chain of fused multiply-adds over
// the depth, in order, whatever the tile it falls into: that is what makes results independent of batching.
#if defined(VAYU_OPS_ATTENTION_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef VAYU_OPS_ATTENTION_TILE_INL_H_
#undef VAYU_OPS_ATTENTION_TILE_INL_H_
#else
#define VAYU_OPS_ATTENTION_TILE_INL_H_
#endif

#include <algorithm>

#include "hwy/highway.h"
#include "ops/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vayu::ops {
namespace HWY_NAMESPACE {

// 6 rows x 4 vectors of sums, 4 of B and a broadcast: 29 of the 32 registers of AVX-512. 6 x 2: 15 of AVX2's 16.
constexpr int kTileRows = 6;
constexpr int kTileVectors = HWY_TARGET <= HWY_AVX3 ? 4 : 2;

// b[v] points at vector v of row 0 of B, rows b_stride elements apart. c: (kRows, c_stride), vectors side by side.
template <int kRows, int kVectors, class T>
void tile_multiply(const float* HWY_RESTRICT a, int64_t a_stride, const T* const* b, int64_t b_stride, int64_t depth,
                   float* HWY_RESTRICT c, int64_t c_stride) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const int64_t lanes = hn::Lanes(d);
  V sum[kRows][kVectors];
  const T* column[kVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) column[v] = b[v];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::LoadU(d, c + r * c_stride + v * lanes);
  }
  for (int64_t k = 0; k < depth; ++k) {
    V row_b[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) row_b[v] = load_as_float(d, column[v] + k * b_stride);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const V value = hn::Set(d, a[r * a_stride + k]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(value, row_b[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[r][v], d, c + r * c_stride + v * lanes);
  }
}

template <int kVectors, class T>
void tile_multiply_rows(int rows, const float* a, int64_t a_stride, const T* const* b, int64_t b_stride, int64_t depth,
                        float* c, int64_t c_stride) {
  switch (rows) {
    case 1:
      return tile_multiply<1, kVectors>(a, a_stride, b, b_stride, depth, c, c_stride);
    case 2:
      return tile_multiply<2, kVectors>(a, a_stride, b, b_stride, depth, c, c_stride);
    case 3:
      return tile_multiply<3, kVectors>(a, a_stride, b, b_stride, depth, c, c_stride);
    case 4:
      return tile_multiply<4, kVectors>(a, a_stride, b, b_stride, depth, c, c_stride);
    case 5:
      return tile_multiply<5, kVectors>(a, a_stride, b, b_stride, depth, c, c_stride);
    default:
      return tile_multiply<kTileRows, kVectors>(a, a_stride, b, b_stride, depth, c, c_stride);
  }
}

// Any number of vectors; rows <= kTileRows.
template <class T>
void multiply(int rows, int num_vectors, const float* a, int64_t a_stride, const T* const* b, int64_t b_stride,
              int64_t depth, float* c, int64_t c_stride) {
  const int64_t lanes = hn::Lanes(hn::ScalableTag<float>());
  int v = 0;
  for (; v + kTileVectors <= num_vectors; v += kTileVectors) {
    tile_multiply_rows<kTileVectors>(rows, a, a_stride, b + v, b_stride, depth, c + v * lanes, c_stride);
  }
  for (; v < num_vectors; ++v) {
    tile_multiply_rows<1>(rows, a, a_stride, b + v, b_stride, depth, c + v * lanes, c_stride);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace vayu::ops
HWY_AFTER_NAMESPACE();

#endif  // VAYU_OPS_ATTENTION_TILE_INL_H_
