#include "ops/gemm/cuda_matrix.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "ops/cuda/device.h"
#include "ops/gemm/seeded_rows.h"
#include "ops/norm/quantize_rows.h"

namespace vayu::ops {
namespace {

constexpr int64_t kStagingBytes = int64_t{8} << 20;

// What a loading thread moves rows through: pinned memory, and a place for BF16 rows before they are quantised.
struct Upload {
  Upload() {
    stream = create_stream().value();
    host = std::move(DeviceMemory::create_pinned(kStagingBytes)).value();
    device = std::move(DeviceMemory::create(kStagingBytes)).value();
  }
  ~Upload() { destroy_stream(stream); }
  CudaStream stream;
  DeviceMemory host, device;
};

Upload& upload_of_thread() {
  thread_local Upload upload;
  return upload;
}

class CudaMatrixImpl final : public CudaMatrix {
 public:
  CudaMatrixImpl(const CudaMatrixShape& shape, int64_t rows, int64_t padded_cols)
      : CudaMatrix(rows, shape.cols), shape_(shape) {
    const int64_t ffn = shape.gate_up_ffn;
    view_.rows = ffn == 0 ? rows : rows / ffn * padded_ffn(ffn);
    view_.cols = padded_cols;
    view_.scale = shape.f8 ? WeightScale::kRow : WeightScale::kNone;
  }

  Status allocate(std::span<const PartShape> parts) {
    int64_t first = 0;
    for (const PartShape& part : parts) {
      first_rows_.push_back(first);
      first += part.rows;
    }
    VAYU_ASSIGN_OR_RETURN(data_, DeviceMemory::create(view_.rows * view_.row_bytes()));
    view_.data = data_.data();
    if (!shape_.f8) return {};
    VAYU_ASSIGN_OR_RETURN(scales_, DeviceMemory::create(view_.rows * int64_t{sizeof(float)}));
    view_.scales = reinterpret_cast<const float*>(scales_.data());
    return {};
  }

  int64_t bytes() const override { return data_.bytes() + scales_.bytes(); }
  const DeviceMatrix& view() const override { return view_; }

  void fill(size_t part, int64_t first_row, int64_t num_rows, const void* data) override {
    Upload& upload = upload_of_thread();
    const int64_t row_bytes = view_.cols * int64_t{sizeof(Bf16)};
    const int64_t stored_bytes = cols_ * int64_t{sizeof(Bf16)};
    const int64_t fitting = std::max<int64_t>(1, kStagingBytes / row_bytes);
    for (int64_t done = 0; done < num_rows;) {
      const int64_t row = first_rows_[part] + first_row + done;
      const int64_t count = std::min({num_rows - done, fitting, run_length(row)});
      std::byte* staged = upload.host.data();
      for (int64_t r = 0; r < count; ++r) {
        const auto* source = static_cast<const std::byte*>(data) + (done + r) * stored_bytes;
        std::memcpy(staged + r * row_bytes, source, stored_bytes);
        std::memset(staged + r * row_bytes + stored_bytes, 0, row_bytes - stored_bytes);
      }
      put(upload, place_of(row), count, row_bytes);
      done += count;
    }
  }

  bool fill_seeded(size_t part, int64_t first_row, int64_t num_rows, const SeededRows& source,
                   uint64_t first_element) override {
    Upload& upload = upload_of_thread();
    const int64_t fitting = std::max<int64_t>(1, kStagingBytes / (view_.cols * int64_t{sizeof(Bf16)}));
    for (int64_t done = 0; done < num_rows;) {
      const int64_t row = first_rows_[part] + first_row + done;
      const int64_t count = std::min({num_rows - done, fitting, run_length(row)});
      const int64_t place = place_of(row);
      std::byte* made = shape_.f8 ? upload.device.data() : rows_at(place);
      seeded_fill_cuda(upload.stream, {.source = source,
                                       .first = first_element + done * cols_,
                                       .num_rows = count,
                                       .cols = cols_,
                                       .stride = view_.cols,
                                       .y = reinterpret_cast<Bf16*>(made)});
      if (shape_.f8) quantize(upload, place, count);
      done += count;
    }
    Status status = last_launch("seeded weights");
    if (status.ok()) status = synchronize(upload.stream);
    VAYU_CHECK(status.ok(), "weights: {}", status.error().message);
    return true;
  }

 private:
  std::byte* rows_at(int64_t place) const {
    return const_cast<std::byte*>(static_cast<const std::byte*>(view_.data)) + place * view_.row_bytes();
  }

  // The rows in upload.device to their place.
  void quantize(Upload& upload, int64_t place, int64_t count) {
    ActRows out{.data = rows_at(place), .scales = const_cast<float*>(view_.scales) + place, .cols = view_.cols};
    quantize_rows_cuda(upload.stream, {.x = reinterpret_cast<const Bf16*>(upload.device.data()),
                                       .x_stride = view_.cols,
                                       .num_rows = count,
                                       .y = out});
  }

  // Where row `row` of the stack lies, and how many behind it lie behind it there too.
  int64_t place_of(int64_t row) const {
    const int64_t ffn = shape_.gate_up_ffn;
    if (ffn == 0) return row;
    const int64_t pair = row / (2 * ffn), inner = row % (2 * ffn);
    const int64_t output = inner % ffn;
    return pair * 2 * padded_ffn(ffn) + output / kGateUpInterleave * 2 * kGateUpInterleave +
           output % kGateUpInterleave + (inner >= ffn ? kGateUpInterleave : 0);
  }
  int64_t run_length(int64_t row) const {
    const int64_t ffn = shape_.gate_up_ffn;
    if (ffn == 0) return rows_ - row;
    const int64_t output = row % ffn;
    return std::min<int64_t>(kGateUpInterleave - output % kGateUpInterleave, ffn - output);
  }

  void put(Upload& upload, int64_t place, int64_t count, int64_t row_bytes) {
    Status status;
    if (!shape_.f8) {
      status = copy_to_device(rows_at(place), upload.host.data(), count * row_bytes, upload.stream);
    } else {
      status = copy_to_device(upload.device.data(), upload.host.data(), count * row_bytes, upload.stream);
      quantize(upload, place, count);
    }
    if (status.ok()) status = synchronize(upload.stream);
    VAYU_CHECK(status.ok(), "weights: {}", status.error().message);
  }

  CudaMatrixShape shape_;
  DeviceMatrix view_;
  DeviceMemory data_, scales_;
  std::vector<int64_t> first_rows_;  // of each part
};

}  // namespace

Result<std::unique_ptr<Matrix>> CudaMatrix::create(const CudaMatrixShape& shape, bool pad_cols,
                                                   std::span<const PartShape> parts) {
  int64_t rows = 0;
  for (const PartShape& part : parts) {
    VAYU_CHECK(part.format == DataFormat::kBF16, "{} is not filled in BF16", part.name);
    rows += part.rows;
  }
  VAYU_CHECK(shape.gate_up_ffn == 0 || rows % (2 * shape.gate_up_ffn) == 0, "{} rows are not gate over up", rows);
  const int64_t unit = pad_cols ? kScaleGroup : 16;
  auto matrix = std::make_unique<CudaMatrixImpl>(shape, rows, (shape.cols + unit - 1) / unit * unit);
  if (const Status taken = matrix->allocate(parts); !taken.ok()) {
    return Error{taken.error().kind, fmt::format("tensor {}: {}", parts.front().name, taken.error().message), {}};
  }
  return std::unique_ptr<Matrix>(std::move(matrix));
}

const DeviceMatrix& device_view(const Matrix& matrix) {
  const auto* device = dynamic_cast<const CudaMatrix*>(&matrix);
  VAYU_CHECK(device != nullptr, "a matrix of another backend");
  return device->view();
}

}  // namespace vayu::ops
