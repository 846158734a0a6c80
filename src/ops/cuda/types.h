// Numbers and matrices in device memory, as the CUDA ops see them. No CUDA header: host code and the plain references
// read this too. A reference (x_ref.cc) takes the same structs with pointers to host memory.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace vayu::ops {

using CudaStream = CUstream_st*;  // cudaStream_t

struct Bf16 {
  uint16_t bits;
};
struct F8E4M3 {
  uint8_t bits;
};

constexpr float kF8Max = 448.0f;  // largest finite E4M3
constexpr float kF8TinyPeak = 1e-30f;
constexpr int32_t kScaleGroup = 128;       // elements of a row under one scale
constexpr int32_t kScaleBlockRows = 64;    // rows of a weight under one scale of a block: see DeviceMatrix
constexpr int32_t kGateUpInterleave = 64;  // see DeviceMatrix

// Rows of activations. FP8 rows carry scales: value = element * scale.
//   scale_group == 0           one scale a row: scales (num_rows)
//   scale_group == kScaleGroup one a row and 128 columns: scales (num_rows, cols / 128); of 64 for stream_experts alone
// A scale is the largest magnitude under it / 448, or 1 when that is below kF8TinyPeak (the elements become 0); NaN or
// infinity under it makes the scale NaN, so that whoever looks at the logits sees it.
struct ActRows {
  void* data = nullptr;     // (num_rows, cols) of Bf16 or F8E4M3, 16-byte aligned, cols a multiple of 16
  float* scales = nullptr;  // null: the rows are Bf16
  int64_t cols = 0;
  int32_t scale_group = 0;
  bool is_f8() const { return scales != nullptr; }
};

enum class WeightScale : uint8_t {
  kNone,   // BF16 weights
  kRow,    // scales (rows): one an output
  kBlock,  // scales (ceil(rows / 64), cols / 128): one for 64 rows and 128 columns, none below 0; cols % 128 == 0
};

// y = x W^T with W (rows, cols) = (out, in), row-major, every row 16-byte aligned. Weight value = element * scale.
// A gate-up matrix holds 2 * ffn rows interleaved by 64: rows [128 b, 128 b + 64) are gate rows [64 b, 64 b + 64) and
// the 64 rows behind them the up rows of the same outputs, so that one tile holds both halves of an output. Its scales
// are interleaved likewise, those of rows by 64, those of blocks by one. Experts are stacked: expert e begins at row
// e * rows_per_expert, its block scales at row e * rows_per_expert / 64 of the scales (rows_per_expert % 64 == 0).
// Checkpoints scale blocks of 128 x 128. A block has 64 rows here, so that a matrix keeps its checkpoint's scales where
// its rows are interleaved, and where parts of 64 rows are joined: each of a checkpoint's scales stands twice.
struct DeviceMatrix {
  const void* data = nullptr;  // Bf16 or F8E4M3
  const float* scales = nullptr;
  WeightScale scale = WeightScale::kNone;
  int64_t rows = 0;
  int64_t cols = 0;
  bool is_f8() const { return scale != WeightScale::kNone; }
  int64_t row_bytes() const { return cols * (is_f8() ? 1 : 2); }
  int64_t num_scales() const {
    if (scale == WeightScale::kBlock) return (rows + kScaleBlockRows - 1) / kScaleBlockRows * (cols / kScaleGroup);
    return scale == WeightScale::kRow ? rows : 0;
  }
};

enum class DeviceKvFormat : uint8_t { kBF16, kF8E4M3 };

// The paged KV memory of one layer. GQA: (num_pages, num_kv_heads, 2, page_size, head_dim), K then V; a head of a page
// is one run of memory. MLA (latent_dim > 0): (num_pages, page_size, head_dim) with head_dim = latent_dim + rope_dim:
// the normed latent, then the rotated shared key; V is the first latent_dim elements. FP8 elements have scale 1 and
// saturate at 448.
struct DeviceKvLayer {
  void* pages = nullptr;
  DeviceKvFormat format = DeviceKvFormat::kBF16;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t page_size = 16;
  int32_t latent_dim = 0;

  int64_t element_bytes() const { return format == DeviceKvFormat::kBF16 ? 2 : 1; }
  int64_t page_elements() const {
    return latent_dim > 0 ? int64_t{page_size} * head_dim : int64_t{num_kv_heads} * 2 * page_size * head_dim;
  }
  int64_t page_bytes() const { return page_elements() * element_bytes(); }
};

// What the rows of a step are, in device memory; the meaning is that of core/batch.h. All lists are padded by the
// caller to the sizes a graph was captured for: a padded token has slot -1 (nothing is written for it) and a padded row
// has kv_len 0 (nothing is read for it; its output is unspecified but finite).
struct DeviceBatch {
  const int32_t* positions = nullptr;     // (num_tokens)
  const int32_t* slot_mapping = nullptr;  // (num_tokens)
  const int32_t* qo_indptr = nullptr;     // (num_rows + 1)
  const int32_t* kv_indptr = nullptr;     // (num_rows + 1)
  const int32_t* page_table = nullptr;
  const int32_t* kv_lens = nullptr;  // (num_rows)
  int32_t num_tokens = 0;
  int32_t num_rows = 0;
};

}  // namespace vayu::ops
