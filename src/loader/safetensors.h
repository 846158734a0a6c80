// A checkpoint in safetensors: one file, or shards listed by model.safetensors.index.json. Headers are checked against
// the files before anything is allocated; data is read on demand by ordinary reads. Pickle files are never opened.
#pragma once

#include <memory>
#include <string>

#include "loader/checkpoint.h"

namespace vayu::loader {

// How FP8 scales lie over a matrix when nothing in the tensor's own shape says so.
struct ScaleBlocks {
  int64_t rows = 128;
  int64_t cols = 128;
};

// folder: holds model.safetensors, or the index and its shards (the index wins when both are there, and then the single
// file must be one of its shards).
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
