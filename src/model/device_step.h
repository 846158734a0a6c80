// The launches of one step of DeviceModel, layer by layer.
#pragma once

#include "model/device_buffers.h"
#include "model/device_weights.h"
#include "ops/cuda/device.h"

namespace vayu::model {

// The second stream of a step, and where it leaves the first and comes back.
struct SideStream {
  ops::CudaStream stream = nullptr;  // null: there is none; what is watched runs in line, so that an operator's time is
                                     // its own
  ops::StreamEvent fork, join;
};

struct DeviceStepContext {
  const ModelConfig& config;
  const DeviceModelOptions& options;
  const DeviceWeights& weights;
  const DeviceActivations& act;
  DeviceInputs inputs;
  std::byte* kv;  // (num_layers, num_pages, page_bytes)
  const SideStream& side;
};

// Enqueues kernels and nothing else: what a graph is captured from.
void launch_device_step(const DeviceStepContext& context, const StepShape& shape, ops::CudaStream stream);
// The attention of one layer with latents, behind the rotation; leaves BF16 in act.attention.
void launch_latent_attention(const DeviceStepContext& context, const StepShape& shape, const DeviceLayer& layer,
                             const ops::DeviceKvLayer& kv, ops::CudaStream stream);
// Some of its layers alone, on whatever the activations hold.
void launch_device_layers(const DeviceStepContext& context, const StepShape& shape, int32_t first, int32_t count,
                          ops::CudaStream stream);

}  // namespace vayu::model
