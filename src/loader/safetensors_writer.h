// Writes checkpoints in safetensors: the tensors are declared first, then their rows come in any order, so that nothing
// is held in memory but the rows at hand.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "loader/checkpoint_writer.h"

namespace vayu::loader {

class SafetensorsWriter final : public CheckpointWriter {
 public:
  // folder must exist. tensors: name, shape and format (F32, F16, BF16 or FP8; bytes is computed). One file,
  // model.safetensors, when all fits in max_shard_bytes, else shards and their index; a tensor is never split.
  // kInvalidArgument when the folder holds safetensors already or two tensors have one name; kUnsupported for other
  // formats; kIo.
  static Result<SafetensorsWriter> create(const std::string& folder, std::vector<CheckpointTensor> tensors,
                                          int64_t max_shard_bytes = int64_t{5} << 30);
  // Files carry their final names only after finish(); without it they are removed.
  ~SafetensorsWriter() override;
  SafetensorsWriter(SafetensorsWriter&& other) noexcept;

  // Rows [first_row, first_row + num_rows) of tensor `index` of the declaration, each row once. Thread-safe.
  Status write_rows(size_t index, int64_t first_row, int64_t num_rows, const void* data) override;
  // Flushes to the disk and names the files. kInvalidArgument when rows were not written; kIo.
  Status finish() override;

 private:
  struct Shard;
  struct Place {
    Shard* shard = nullptr;
    int64_t offset = 0;  // in the file
  };
  SafetensorsWriter();
  std::string folder_;
  std::vector<CheckpointTensor> tensors_;
  std::vector<Place> places_;  // of each of tensors_
  std::vector<std::unique_ptr<Shard>> shards_;
};

}  // namespace vayu::loader
