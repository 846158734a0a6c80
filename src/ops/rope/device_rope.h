// QK-norm, rotary embedding of Q and K, and the write of K and V into their pages, on BF16 rows in device memory: one
// pass. Semantics of ops/rope/rope_kv_write.h: norm, then rotation; the angle is the float product position * inv_freq;
// arithmetic in float, one rounding at the end. A NaN or an infinity in a head may make all of that head NaN (it does
// when the head is normed), and nothing else; an infinity reaches FP8 pages as NaN, since they have none.
#pragma once

#include <cstdint>

#include "ops/cuda/types.h"
#include "ops/rope/rope_kv_write.h"

namespace vayu::ops {

constexpr int32_t kMaxRotatedDim = 256;  // of a head, or of the rotated part of one with latent attention
constexpr int32_t kHalfSplitUnit = 16;   // rotary_dim of kHalfSplit is a multiple of it, as is all of a rotated part

struct DeviceRotation {
  const float* inv_freq = nullptr;  // (rotary_dim / 2) radians a position, scaling already applied
  float attention_factor = 1.0f;    // multiplies cos and sin (YaRN)
  RopePairing pairing = RopePairing::kHalfSplit;
  int32_t rotary_dim = 0;  // kHalfSplit: a multiple of kHalfSplitUnit; kInterleaved: even. The rest of a head is copied
};

struct DeviceRopeKvWriteArgs {
  Bf16* qkv = nullptr;  // (num_tokens, (num_q_heads + 2 * num_kv_heads) * head_dim): Q, K, V; Q is changed in place, K
                        // and V stay as they are
  const int32_t* positions = nullptr;     // (num_tokens)
  const int32_t* slot_mapping = nullptr;  // (num_tokens) page * page_size + offset; negative: nothing is written
  DeviceRotation rotation;
  const float* q_norm = nullptr;  // (head_dim) or null: RMS norm of each Q head before rotation
  const float* k_norm = nullptr;  // (head_dim) or null
  float norm_eps = 1e-6f;
  int32_t num_q_heads = 0;
  int64_t num_tokens = 0;
  DeviceKvLayer kv;  // written; head_dim a multiple of 16, at most kMaxRotatedDim; latent_dim 0
};

void device_rope_kv_write_ref(const DeviceRopeKvWriteArgs& args);  // host pointers
void device_rope_kv_write_cuda(CudaStream stream, const DeviceRopeKvWriteArgs& args);

}  // namespace vayu::ops
