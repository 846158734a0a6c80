// The router of a Mixture-of-Experts layer on the device, in one launch: logits, scores, choice and weights as route.h
// defines them, then the counts and the permutation that group the rows by expert.
//
// The logits have the accuracy of a float product. Rows are BF16 (8 significant bits), so they become FP16 exactly; a
// float weight becomes two FP16 numbers (11 significant bits each), after its expert's row was scaled by a power of two
// that keeps them in FP16's range. What is left over is nothing for three weights in four and one unit in the last
// place of the float for the others: as if weights had 23 bits. Two passes of the tensor cores with float accumulators
// then do what would take three BF16 parts and three passes. Where a finite row has elements beyond FP16's range
// (65,504) its logits overflow; such a row is computed again in plain float arithmetic, slowly. Elements below 2^-17
// are rounded to multiples of 2^-24.
#pragma once

#include <cstdint>

#include "ops/cuda/types.h"
#include "ops/moe/route.h"

namespace vayu::ops {

constexpr int32_t kRouteMaxExperts = 256;
constexpr int32_t kRouteMaxTopK = 16;
constexpr int32_t kRouteMaxGroups = 32;
constexpr int32_t kRouteMaxTokens = 65536;
constexpr int32_t kRouteChunk = 64;  // elements of a row in one tile of the weights

struct DeviceRouteArgs {
  RouterShape shape;             // hidden a multiple of 64; at most 256 experts, 16 chosen, 32 groups
  const Bf16* x = nullptr;       // (num_tokens, hidden), 16-byte aligned
  const void* weight = nullptr;  // split_router_weight's layout, 128-byte aligned; read before earlier kernels end
  const float* bias = nullptr;   // (num_experts) or null; constant like the weights
  int32_t num_tokens = 0;        // up to kRouteMaxTokens
  // On the device, or null: tokens from *num_valid_tokens on are padding. They get ids -1, weights 0 and positions 0
  // and are counted nowhere.
  const int32_t* num_valid_tokens = nullptr;
  int32_t* expert_ids = nullptr;     // (num_tokens, top_k) by falling choice value
  float* expert_weights = nullptr;   // (num_tokens, top_k)
  int32_t* expert_indptr = nullptr;  // (num_experts + 1): where the rows of each expert begin
  int32_t* sorted_tokens =
      nullptr;  // (num_tokens * top_k): token of each row, by expert, then token; 0 behind the last
  int32_t* pair_position = nullptr;  // (num_tokens, top_k): the row of token t's j-th expert
  void* scratch = nullptr;           // device_route_scratch_bytes, 128-byte aligned, zeroed once when it is allocated
};

// The weights as the kernels read them: tiles of 64 columns of all experts (their number padded to 128 or 256), first
// the upper parts, then the lower; a tile is rows of 128 bytes in the 128-byte swizzle (sm90.cuh). Then a float an
// expert: logit = scale * product.
constexpr int32_t padded_experts(int32_t num_experts) { return num_experts <= 128 ? 128 : 256; }
constexpr int64_t router_tiles_bytes(int64_t hidden, int32_t num_experts) {
  return hidden / kRouteChunk * 2 * padded_experts(num_experts) * 128;
}
constexpr int64_t router_weight_bytes(int64_t hidden, int32_t num_experts) {
  return router_tiles_bytes(hidden, num_experts) + padded_experts(num_experts) * int64_t{sizeof(float)};
}
// Host to host. weight: (num_experts, hidden); out: router_weight_bytes.
void split_router_weight(const float* weight, int64_t hidden, int32_t num_experts, void* out);
// One weight out of that layout, exactly.
double joined_router_weight(const void* split, int64_t hidden, int32_t num_experts, int32_t expert, int64_t column);

int64_t device_route_scratch_bytes(const RouterShape& shape, int64_t max_tokens);

void device_route_ref(const DeviceRouteArgs& args);
// More than 128 tokens: the blocks wait for each other, and the grid never holds more of them than the device can. No
// other kernel whose blocks wait for each other may run beside it, and one scratch serves one stream.
void device_route_cuda(CudaStream stream, const DeviceRouteArgs& args);

}  // namespace vayu::ops
