// The weights of DeviceModel: views of device memory, and the memory.
#pragma once

#include <vector>

#include "model/device_formats.h"
#include "model/weights.h"
#include "ops/cuda/device.h"
#include "ops/gemm/cuda_matrix.h"

namespace vayu::model {

// rows 0, or null, where a layer has no such weight.
struct DeviceLayer {
  const float* attention_norm = nullptr;  // (hidden)
  const float* mlp_norm = nullptr;        // (hidden)
  const float* q_norm = nullptr;          // (head_dim)
  const float* k_norm = nullptr;          // (head_dim)
  const float* latent_norm = nullptr;     // MLA: (latent_dim)
  const float* router_bias = nullptr;     // (num_experts)
  const void* router = nullptr;           // ops::split_router_weight
  ops::DeviceMatrix qkv;                  // (qkv_width, hidden)
  ops::DeviceMatrix latent_to_k;          // MLA, BF16: (heads * latent_dim, nope_dim), U_K transposed head by head
  ops::DeviceMatrix latent_to_v;          // MLA, BF16: (heads * v_dim, latent_dim)
  ops::DeviceMatrix latent_to_kv;         // MLA that expands prompts, BF16: U_K of all heads, then latent_to_v
  ops::DeviceMatrix attention_output;     // (hidden, attention_width)
  ops::DeviceMatrix gate_up;              // dense MLP or shared expert, interleaved
  ops::DeviceMatrix down;
  ops::DeviceMatrix expert_gate_up;  // expert over expert, each interleaved
  ops::DeviceMatrix expert_down;
  bool moe = false;
};

struct DeviceWeights {
  ModelWeights owned;       // matrices in device memory; vectors stay on the host too
  ops::DeviceMemory small;  // vectors and routers
  std::vector<DeviceLayer> layers;
  ops::DeviceMatrix embedding;  // BF16 (vocab_size, hidden)
  ops::DeviceMatrix head;       // (vocab_size, hidden)
  const float* output_norm = nullptr;
  const float* inv_freq = nullptr;
  float attention_factor = 1.0f;
  int64_t bytes = 0;
};

// Threads that load at once, each with a place of ops::WeightStaging.
int32_t loading_threads(const ThreadPool* pool);
Result<DeviceWeights> load_device_weights(const loader::Checkpoint& checkpoint, const Recipe& recipe,
                                          const DeviceFormats& formats, ThreadPool* pool, const LoadProgress& progress);

}  // namespace vayu::model
