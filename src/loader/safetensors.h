// A checkpoint in safetensors: one file, or shards listed by model.safetensors.index.json. Headers are checked against
// the files before anything is allocated; data is read on demand by ordinary reads. Pickle files are never opened.
#pragma once

#include <memory>
#include <string>

#include "loader/checkpoint.h"
#include "loader/fp8_scales.h"

namespace vayu::loader {

// folder: holds model.safetensors, or the index and its shards. The index wins when both are there, and then every
// model*.safetensors must be one of its shards; without it there must be no other. Files of other names are left alone.
//
// FP8 tensors bring scales as `<name>_scale` or `<name>_scale_inv` (both multiply), F32, F16 or BF16: one a tensor, one
// a row, or one a block of `blocks`; of a stack, the same for each matrix in it. Scales of activations and of the KV
// cache are not weights and are passed over, like rotary_emb.inv_freq. Errors name file and tensor: kIo, kCorrupt
// (offsets outside the file, overlaps, holes, a tensor in two shards or not where the index says, a missing or unusable
// scale), kUnsupported (other dtypes).
Result<std::shared_ptr<const Checkpoint>> open_safetensors(const std::string& folder, const ScaleBlocks& blocks);

// One file alone. `name` is for messages.
Result<std::shared_ptr<const Checkpoint>> open_safetensors_file(const std::string& path, const ScaleBlocks& blocks);

}  // namespace vayu::loader
