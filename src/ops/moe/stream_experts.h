// The experts of a Mixture-of-Experts layer for few rows (decode): SwiGLU MLPs of the routed experts, and the shared
// expert as one more, in one launch that reads every touched weight once.
//   h = silu(x G^T) * (x U^T), rounded to the activation format;  out = h D^T
#pragma once

#include <cstdint>

#include "ops/cuda/types.h"

namespace vayu::ops {

struct StreamExpertsArgs {
  DeviceMatrix gate_up;         // (num_experts * 2 * ffn, hidden), gate and up interleaved by 64
  DeviceMatrix down;            // (num_experts * hidden, ffn)
  DeviceMatrix shared_gate_up;  // (2 * ffn, hidden) or rows 0: no shared expert
  DeviceMatrix shared_down;     // (hidden, ffn)
  ActRows x;                    // (num_tokens, hidden); FP8 with one scale a row when the weights are FP8, else BF16
  int32_t num_tokens = 0;
  int32_t num_experts = 0;
  int32_t top_k = 0;
  int32_t ffn = 0;  // a multiple of kScaleGroup
  // (num_experts + 1) range of each expert in sorted_tokens: the router's permutation. Only rows inside count.
  const int32_t* expert_indptr = nullptr;
  const int32_t* sorted_tokens = nullptr;  // (num_tokens * top_k) token of each row
  // Row r of the routed experts is row r of h and out; token t of the shared expert is row num_tokens * top_k + t.
  // Scratch: (num_tokens * (top_k + 1), ffn) of x's format, scale_group kScaleGroup, or half of it with half_tiles.
  ActRows h;
  Bf16* out = nullptr;        // (num_tokens * (top_k + 1), hidden); rows of no expert are not written
  bool half_tiles = false;    // up to kStreamExpertsHalvesTokens: see stream_experts_halves_pay
  void* workspace = nullptr;  // stream_experts_workspace_bytes, zeroed once, then of the launches of one stream alone
};

constexpr int32_t kStreamExpertsPassRows = 32;    // rows of an expert under one pass of its weights
constexpr int32_t kStreamExpertsMaxGroups = 512;  // passes
constexpr int32_t kStreamExpertsHalvesTokens = 8;
inline int64_t stream_experts_workspace_bytes() {
  return (2 * kStreamExpertsMaxGroups + 64) * int64_t{sizeof(int32_t)};
}
// Whether the shapes are ones the kernel takes. All four matrices have the same kind of scales.
bool stream_experts_fits(const StreamExpertsArgs& args);
// Whether half tiles end sooner on a device of so many multiprocessors. args.half_tiles and h are not looked at.
bool stream_experts_halves_pay(const StreamExpertsArgs& args, int32_t sms);

void stream_experts_ref(const StreamExpertsArgs& args);  // pointers to host memory
void stream_experts_cuda(CudaStream stream, const StreamExpertsArgs& args);

}  // namespace vayu::ops
