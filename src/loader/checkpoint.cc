#include "loader/checkpoint.h"

namespace vayu::loader {

Status Checkpoint::read_floats(const CheckpointTensor& tensor, int64_t first_row, int64_t num_rows, std::byte* staging,
                               float* dst) const {
  VAYU_RETURN_IF_ERROR(read_rows(tensor, first_row, num_rows, staging));
  dequantize_row(tensor.format, staging, dst, num_rows * tensor.cols());
  return {};
}

}  // namespace vayu::loader
