// What the CUDA backend takes: the limits of its kernels, in the words of a model's config.json and of the command
// line. The launchers of ops/ abort on what they do not take, so everything that a file or a flag can ask for is
// refused here, before anything is loaded.
#pragma once

#include "base/result.h"
#include "model/config.h"
#include "model/device_formats.h"
#include "model/device_model.h"

namespace vayu::model {

// Tokens of one step: fewer with experts (the router's) and with latent attention.
int32_t max_device_step_tokens(const ModelConfig& config);

// The flags alone, for those who take memory by them before a model is loaded. options.max_context is set. The error
// (kInvalidArgument) names the flag, what it is, and the limit.
Status check_device_flags(const ModelConfig& config, const DeviceModelOptions& options);

// The model's fields, then the flags. config.mla.expands_prompts is set too. inputs: of DeviceFormats. The error names
// the field (kUnsupported) or the flag, what it is, and the limit.
Status check_device_limits(const ModelConfig& config, const DeviceModelOptions& options, const InputForms& inputs);

}  // namespace vayu::model
