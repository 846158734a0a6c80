// Where a checkpoint's tensors go: declared first, then their rows in any order, so that nothing is held in memory but
// the rows at hand.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "loader/checkpoint.h"

namespace vayu::loader {

class CheckpointWriter {
 public:
  virtual ~CheckpointWriter() = default;
  // Rows [first_row, first_row + num_rows) of tensor `index` of the declaration, each row once. Thread-safe.
  virtual Status write_rows(size_t index, int64_t first_row, int64_t num_rows, const void* data) = 0;
  // Flushes to the disk and closes: the file is whole only after this.
  virtual Status finish() = 0;
};

}  // namespace vayu::loader
