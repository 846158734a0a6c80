// quantization_config of config.json: says what the dtypes and scales of a checkpoint cannot.
#pragma once

#include "base/result.h"
#include "loader/json_config.h"
#include "loader/safetensors.h"

namespace vayu::loader {

// The scale blocks of an FP8 checkpoint in the spellings of fp8 (weight_block_size), fbgemm_fp8, compressed-tensors
// (config_groups.*.weights.block_structure) and ModelOpt. Without quantization_config, or where it names none, the
// default of 128x128. Errors name the field: kUnsupported for weights that are not FP8, kCorrupt.
Result<ScaleBlocks> scale_blocks(const JsonConfig& config);

}  // namespace vayu::loader
