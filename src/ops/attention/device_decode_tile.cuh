// Keys and values of decode attention in shared memory and as operands of mma.sync.m16n8k16, whose 16 rows are the
// query heads of one kv head.
//
// The products are free to number their inner dimension as they like if both operands agree, so the numbering is chosen
// for wide loads from memory as the pages have it, and no element ever changes lanes. Lane = 4 g + c. With S = min(64,
// head_dim), blocks of S dimensions b, kN = S / 8:
//   scores   s = q k^T: 8 keys a product (column n of product t is key 4 (n / 2) + 2 t + n % 2 of the page), and lane c
//            holds dimensions S b + (S / 4) c + 0 .. S / 4 - 1 of its key: in step i the pairs (4 i, 4 i + 1) and
//            (4 i + 2, 4 i + 3) of them. The queries lie likewise.
//   output   o = p v: the 16 keys of a page are one step. Lane c holds scores of columns 2 c, 2 c + 1, that is keys
//            4 c + 0 .. 3, already in the place where the product wants p, and it needs those keys of v; lane g loads
//            dimensions S b + kN g + 0 .. kN - 1 of them, one a product (product j is dimension kN n + j). Pairs of
//            keys are zipped by byte permutes.
// So lane (g, c) ends with heads g and g + 8, dimensions S b + 2 kN c + 0 .. 2 kN - 1.
//
// FP8 keys and values become FP16 (one cvt for two; every E4M3 value is an FP16 value) and p is FP16 too: finer than
// BF16 for p in [0, 1]. A head of q is multiplied by the power of two that puts its largest magnitude into [2^14, 2^15)
// and its scores by the inverse: all BF16 values down to 2^-32 of the largest are then exact in FP16, and what is
// smaller loses less than 2^-39 of it. BF16 pages are multiplied in BF16.
#pragma once

#include <cuda_fp16.h>

#include "ops/cuda/sm90.cuh"
#include "ops/cuda/types.h"
#include "ops/cuda/vector.cuh"

namespace vayu::ops {

template <bool kF8>
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kF8) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

__device__ __forceinline__ uint32_t f8x2_to_f16x2(uint32_t low_half) {
  uint32_t out;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(out) : "h"(static_cast<uint16_t>(low_half)));
  return out;
}

template <int kWords>
__device__ __forceinline__ void load_words(const char* p, uint32_t* out) {
  static_assert(kWords == 1 || kWords == 2 || kWords == 4);
  if constexpr (kWords == 4) {
    const uint4 v = *reinterpret_cast<const uint4*>(p);
    out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
  } else if constexpr (kWords == 2) {
    const uint2 v = *reinterpret_cast<const uint2*>(p);
    out[0] = v.x, out[1] = v.y;
  } else {
    out[0] = *reinterpret_cast<const uint32_t*>(p);
  }
}

template <bool kIsF8, int kDim>
struct DecodeTile {
  static constexpr bool kF8 = kIsF8;
  static constexpr int kHeadDim = kDim;
  static constexpr int kElementBytes = kF8 ? 1 : 2;
  static constexpr int kSpan = kHeadDim < 64 ? kHeadDim : 64;  // S above
  static constexpr int kBlocks = kHeadDim / kSpan;             // b above
  static constexpr int kSteps = kSpan / 16;                    // of a block, for the scores
  static constexpr int kN = kSpan / 8;                         // products of a block, for the output
  static constexpr int kKeyChunks = kHeadDim * kElementBytes / 16;
  static constexpr int kPartBytes = 16 * kHeadDim * kElementBytes;  // K or V of one head of a page
  static constexpr int kRunBytes = 2 * kPartBytes;                  // both: one run of memory
  static constexpr int kPages = kRunBytes <= 2048 ? 2 : 1;          // a tile: more work between two waits
  static constexpr int kKeys = 16 * kPages;
  static constexpr int kTileBytes = kPages * kRunBytes;

  // Where the 16-byte chunk j of a key lies in shared memory, in chunks. The chunks of 128 bytes are permuted such that
  // a quarter warp loading keys (16 bytes a lane: two keys of one 2 t, four chunks) and one loading values (keys 4 c +
  // i of four c) touch every bank once; exceptions: keys of FP8 at head dim 128 twice, head dim 32 not tuned.
  static __device__ __forceinline__ int chunk_at(int key, int j) {
    if constexpr (kKeyChunks >= 8) {
      return key * kKeyChunks + (j ^ (((key >> 2) << 1) | (key & 1)));
    } else {
      const int linear = key * kKeyChunks + j;
      return linear ^ ((linear >> 3) & 7);
    }
  }
  static __device__ __forceinline__ const char* at(const char* part, int key, int byte) {
    return part + chunk_at(key, byte >> 4) * 16 + (byte & 15);
  }

  // Operand b of the score products of one key: pairs of dimensions, two registers a step.
  static __device__ __forceinline__ void load_key(const char* part, int key, int block, int c,
                                                  uint32_t (&b)[2 * kSteps]) {
    constexpr int kLaneBytes = kSpan / 4 * kElementBytes;
    const int byte = (block * kSpan * kElementBytes) + c * kLaneBytes;
    if constexpr (kF8) {
      uint32_t words[kSteps];
      load_words<kSteps>(at(part, key, byte), words);
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        b[2 * i] = f8x2_to_f16x2(words[i]);
        b[2 * i + 1] = f8x2_to_f16x2(words[i] >> 16);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kLaneBytes / 16; ++i) load_words<4>(at(part, key, byte + 16 * i), b + 4 * i);
    }
  }

  // Operand b of the output products from two keys (4 c + 2 t, 4 c + 2 t + 1): one register a product.
  static __device__ __forceinline__ void load_values(const char* part, int key, int block, int g, uint32_t (&b)[kN]) {
    constexpr int kLaneBytes = kN * kElementBytes, kWords = kLaneBytes / 4;
    const int byte = block * kSpan * kElementBytes + g * kLaneBytes;
    uint32_t even[kWords], odd[kWords];
    load_words<kWords>(at(part, key, byte), even);
    load_words<kWords>(at(part, key + 1, byte), odd);
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      if constexpr (kF8) {
        const uint32_t low = __byte_perm(even[w], odd[w], 0x5140), high = __byte_perm(even[w], odd[w], 0x7362);
        b[4 * w] = f8x2_to_f16x2(low);
        b[4 * w + 1] = f8x2_to_f16x2(low >> 16);
        b[4 * w + 2] = f8x2_to_f16x2(high);
        b[4 * w + 3] = f8x2_to_f16x2(high >> 16);
      } else {
        b[2 * w] = __byte_perm(even[w], odd[w], 0x5410);
        b[2 * w + 1] = __byte_perm(even[w], odd[w], 0x7632);
      }
    }
  }

  static __device__ __forceinline__ uint32_t pack(float low, float high) {
    if constexpr (kF8) {
      const __half2 v = __floats2half2_rn(low, high);
      return reinterpret_cast<const uint32_t&>(v);
    } else {
      return pack_bf16x2(low, high);
    }
  }
};

// Queries and running softmax of one warp over the keys it has seen; [r] is head g + 8 r.
template <class Tile>
struct DecodeState {
  uint32_t q[Tile::kBlocks * Tile::kSteps][4];
  float factor[2];  // scores to powers of two
  float max[2], sum[2];
  float out[Tile::kBlocks][Tile::kN][4];

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int r = 0; r < 2; ++r) max[r] = -__int_as_float(0x7f800000), sum[r] = 0;
#pragma unroll
    for (int b = 0; b < Tile::kBlocks; ++b) {
#pragma unroll
      for (int j = 0; j < Tile::kN; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) out[b][j][e] = 0;
      }
    }
  }

  // heads: (group, head_dim) of the kv head. Heads beyond `group` are zeros; nobody reads their output.
  __device__ __forceinline__ void load_queries(const Bf16* heads, int group, float scale_log2, int lane) {
    const int g = lane >> 2, c = lane & 3;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = g + 8 * r;
      const Bf16* row = heads + head * Tile::kHeadDim + c * (Tile::kSpan / 4);
#pragma unroll
      for (int b = 0; b < Tile::kBlocks; ++b) {
#pragma unroll
        for (int i = 0; i < Tile::kSteps; ++i) {
          uint2 v = make_uint2(0, 0);
          if (head < group) v = *reinterpret_cast<const uint2*>(row + b * Tile::kSpan + 4 * i);
          q[b * Tile::kSteps + i][r] = v.x;
          q[b * Tile::kSteps + i][2 + r] = v.y;
        }
      }
      factor[r] = scale_log2;
      if constexpr (Tile::kF8) to_f16(r);
    }
  }

  // E4M3 pages: see above. 2^e with e = 14 - exponent of the peak, within what float holds; 1 for an infinite peak.
  __device__ __forceinline__ void to_f16(int r) {
    float peak = 0;
#pragma unroll
    for (int i = 0; i < Tile::kBlocks * Tile::kSteps; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 v = unpack_bf16x2(q[i][2 * half + r]);
        peak = fmaxf(peak, fmaxf(fabsf(v.x), fabsf(v.y)));
      }
    }
    peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 1));
    peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 2));
    const int exponent = __float_as_int(peak) >> 23;  // biased by 127
    const int e = exponent == 255 ? 0 : min(141 - exponent, 120);
    const float up = __int_as_float((127 + e) << 23);
    factor[r] *= __int_as_float((127 - e) << 23);
#pragma unroll
    for (int i = 0; i < Tile::kBlocks * Tile::kSteps; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 v = unpack_bf16x2(q[i][2 * half + r]);
        q[i][2 * half + r] = Tile::pack(v.x * up, v.y * up);
      }
    }
  }

  // One tile in shared memory; `valid` of its keys count (>= 1), the values of the others are zeros.
  __device__ __forceinline__ void attend(const char* tile, int valid, int lane) {
    const int g = lane >> 2, c = lane & 3;
    float score[2 * Tile::kPages][4];
#pragma unroll
    for (int n = 0; n < 2 * Tile::kPages; ++n) {
      const int key = 4 * (g >> 1) + 2 * (n & 1) + (g & 1);
#pragma unroll
      for (int e = 0; e < 4; ++e) score[n][e] = 0;
#pragma unroll
      for (int b = 0; b < Tile::kBlocks; ++b) {
        uint32_t k[2 * Tile::kSteps];
        Tile::load_key(tile + (n >> 1) * Tile::kRunBytes, key, b, c, k);
#pragma unroll
        for (int i = 0; i < Tile::kSteps; ++i) {
          mma_16x8x16<Tile::kF8>(score[n], q[b * Tile::kSteps + i], k[2 * i], k[2 * i + 1]);
        }
      }
    }
    if (valid < Tile::kKeys) {
#pragma unroll
      for (int n = 0; n < 2 * Tile::kPages; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (16 * (n >> 1) + 4 * c + 2 * (n & 1) + (e & 1) >= valid) score[n][e] = -__int_as_float(0x7f800000);
        }
      }
    }
    softmax(score);
#pragma unroll
    for (int page = 0; page < Tile::kPages; ++page) {
      const float(&s0)[4] = score[2 * page];
      const float(&s1)[4] = score[2 * page + 1];
      const uint32_t p[4] = {Tile::pack(s0[0], s0[1]), Tile::pack(s0[2], s0[3]), Tile::pack(s1[0], s1[1]),
                             Tile::pack(s1[2], s1[3])};
      const char* values = tile + page * Tile::kRunBytes + Tile::kPartBytes;
#pragma unroll
      for (int b = 0; b < Tile::kBlocks; ++b) {
        uint32_t v0[Tile::kN], v1[Tile::kN];
        Tile::load_values(values, 4 * c, b, g, v0);
        Tile::load_values(values, 4 * c + 2, b, g, v1);
#pragma unroll
        for (int j = 0; j < Tile::kN; ++j) mma_16x8x16<Tile::kF8>(out[b][j], p, v0[j], v1[j]);
      }
    }
  }

  // Scores to weights relative to the new maximum. fmaxf drops a NaN score, whose weight is then NaN and stays in sum.
  __device__ __forceinline__ void softmax(float (&score)[2 * Tile::kPages][4]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float peak = fmaxf(score[0][2 * r], score[0][2 * r + 1]);
#pragma unroll
      for (int n = 1; n < 2 * Tile::kPages; ++n) peak = fmaxf(peak, fmaxf(score[n][2 * r], score[n][2 * r + 1]));
      peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 1));
      peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, 2));
      const float new_max = fmaxf(max[r], peak * factor[r]);
      const float rescale = exp2_approx(max[r] - new_max);
      max[r] = new_max;
      sum[r] *= rescale;
#pragma unroll
      for (int n = 0; n < 2 * Tile::kPages; ++n) {
#pragma unroll
        for (int u = 0; u < 2; ++u) {
          float& s = score[n][2 * r + u];
          s = exp2_approx(fmaf(s, factor[r], -new_max));
          sum[r] += s;
        }
      }
#pragma unroll
      for (int b = 0; b < Tile::kBlocks; ++b) {
#pragma unroll
        for (int j = 0; j < Tile::kN; ++j) {
          out[b][j][2 * r] *= rescale;
          out[b][j][2 * r + 1] *= rescale;
        }
      }
    }
  }
};

}  // namespace vayu::ops
