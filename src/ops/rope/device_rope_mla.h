// Multi-head latent attention on BF16 rows in device memory: norm of the latent, rotary embedding of the queries'
// rotary parts (in place) and of the shared key, and the write of [normed latent | rotated key] into the pages.
// Semantics of ops/rope/mla_rope_kv_write.h; NaN and infinity as in device_rope.h.
#pragma once

#include "ops/rope/device_rope.h"

namespace vayu::ops {

struct DeviceMlaRopeKvWriteArgs {
  // (num_tokens, num_heads * (nope_dim + rope_dim) + latent_dim + rope_dim); latent and key stay as they are
  Bf16* q_kv = nullptr;
  const int32_t* positions = nullptr;     // (num_tokens)
  const int32_t* slot_mapping = nullptr;  // (num_tokens) page * page_size + offset; negative: nothing is written
  DeviceRotation rotation;                // rotary_dim = rope_dim, a multiple of kHalfSplitUnit, at most kMaxRotatedDim
  const float* latent_norm = nullptr;     // (kv.latent_dim)
  float norm_eps = 1e-6f;
  int32_t nope_dim = 0;  // a multiple of 8
  int32_t num_heads = 0;
  int64_t num_tokens = 0;
  DeviceKvLayer kv;  // written; head_dim = latent_dim + rope_dim; latent_dim a multiple of 8
  // (num_tokens, num_heads, latent_dim + rope_dim) or null: the rotated parts also go behind the latent part of each
  // head, as mla_split_queries would copy them. The latent part is not touched.
  Bf16* q_latent = nullptr;

  int32_t rope_dim() const { return rotation.rotary_dim; }
  int64_t row_elements() const { return int64_t{num_heads} * (nope_dim + rope_dim()) + kv.head_dim; }
};

void device_mla_rope_kv_write_ref(const DeviceMlaRopeKvWriteArgs& args);  // host pointers
void device_mla_rope_kv_write_cuda(CudaStream stream, const DeviceMlaRopeKvWriteArgs& args);

// q_latent[t, h, latent_dim + i] = q[t * q_stride + h * (nope_dim + rope_dim) + nope_dim + i] for i < rope_dim.
struct MlaSplitQueriesArgs {
  const Bf16* q = nullptr;   // (num_tokens, num_heads, nope_dim + rope_dim), tokens q_stride elements apart
  int64_t q_stride = 0;      // a multiple of 8
  Bf16* q_latent = nullptr;  // (num_tokens, num_heads, latent_dim + rope_dim)
  int32_t nope_dim = 0;      // this and the two below: multiples of 8
  int32_t rope_dim = 0;
  int32_t latent_dim = 0;
  int32_t num_heads = 0;
  int64_t num_tokens = 0;
};

void mla_split_queries_ref(const MlaSplitQueriesArgs& args);  // host pointers
void mla_split_queries_cuda(CudaStream stream, const MlaSplitQueriesArgs& args);

}  // namespace vayu::ops
