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

using Upload = WeightStaging::Place;

// Rows of `stored` bytes to rows of `width`, zeros behind.
void widen_rows(const std::byte* source, int64_t count, int64_t stored, int64_t width, std::byte* out) {
  for (int64_t r = 0; r < count; ++r) {
    std::memcpy(out + r * width, source + r * stored, stored);
    std::memset(out + r * width + stored, 0, width - stored);
  }
}

class CudaMatrixImpl final : public CudaMatrix {
 public:
  CudaMatrixImpl(const CudaMatrixShape& shape, int64_t rows, WeightStaging* staging)
      : CudaMatrix(rows, shape.cols),
        staging_(staging),
        places_{rows, shape.gate_up_ffn},
        view_(device_matrix_shape(shape, rows)),
        unit_rows_(shape.scale == WeightScale::kBlock ? kScaleBlockRows : 1),
        unit_scales_(shape.scale == WeightScale::kBlock ? shape.cols / kScaleGroup : 1) {}

  Status allocate(std::span<const PartShape> parts) {
    int64_t first = 0;
    for (const PartShape& part : parts) {
      first_rows_.push_back(first);
      first += part.rows;
    }
    if (staging_ == nullptr) {
      VAYU_ASSIGN_OR_RETURN(own_staging_, WeightStaging::create(1));
      staging_ = own_staging_.get();
    }
    VAYU_ASSIGN_OR_RETURN(data_, DeviceMemory::create(view_.rows * view_.row_bytes()));
    view_.data = data_.data();
    if (!view_.is_f8()) return {};
    VAYU_ASSIGN_OR_RETURN(scales_, DeviceMemory::create(view_.num_scales() * int64_t{sizeof(float)}));
    view_.scales = scales();
    return {};
  }

  int64_t bytes() const override { return data_.bytes() + scales_.bytes(); }
  const DeviceMatrix& view() const override { return view_; }

  void fill(size_t part, int64_t first_row, int64_t num_rows, const void* data) override {
    const WeightStaging::Lease lease(*staging_);
    const Upload& upload = *lease;
    const int64_t width = view_.cols * int64_t{sizeof(Bf16)}, stored = cols_ * int64_t{sizeof(Bf16)};
    for_pieces(num_rows, width, [&](int64_t done, int64_t count) {
      widen_rows(static_cast<const std::byte*>(data) + done * stored, count, stored, width, upload.host.data());
      const int64_t row = first_rows_[part] + first_row + done;
      if (view_.is_f8()) {
        keep(copy_to_device(upload.device.data(), upload.host.data(), count * width, upload.stream));
        for_runs(row, count, [&](int64_t at, int64_t place, int64_t run) {
          quantize(upload.stream, upload.device.data() + at * width, place, run);
        });
      } else {
        for_runs(row, count, [&](int64_t at, int64_t place, int64_t run) {
          keep(copy_to_device(rows_at(place), upload.host.data() + at * width, run * width, upload.stream));
        });
      }
      land(upload);
    });
  }

  void fill_scaled(size_t part, int64_t first_row, int64_t num_rows, const void* codes, const float* scales) override {
    const WeightStaging::Lease lease(*staging_);
    const Upload& upload = *lease;
    const int64_t width = view_.cols;
    for_pieces(num_rows, width + unit_scales_ * int64_t{sizeof(float)}, [&](int64_t done, int64_t count) {
      widen_rows(static_cast<const std::byte*>(codes) + done * cols_, count, cols_, width, upload.host.data());
      auto* staged = reinterpret_cast<float*>(upload.host.data() + count * width);
      for_runs(first_rows_[part] + first_row + done, count, [&](int64_t at, int64_t place, int64_t run) {
        keep(copy_to_device(rows_at(place), upload.host.data() + at * width, run * width, upload.stream));
        staged = put_scales(upload.stream, scales + (done + at) * unit_scales_, place, run, staged);
      });
      land(upload);
    });
  }

  bool fill_seeded(size_t part, int64_t first_row, int64_t num_rows, const SeededRows& source,
                   uint64_t first_element) override {
    const WeightStaging::Lease lease(*staging_);
    const Upload& upload = *lease;
    for_pieces(num_rows, view_.cols * int64_t{sizeof(Bf16)}, [&](int64_t done, int64_t count) {
      for_runs(first_rows_[part] + first_row + done, count, [&](int64_t at, int64_t place, int64_t run) {
        std::byte* made = view_.is_f8() ? upload.device.data() : rows_at(place);
        seeded_fill_cuda(upload.stream, {.source = source,
                                         .first = first_element + (done + at) * cols_,
                                         .num_rows = run,
                                         .cols = cols_,
                                         .stride = view_.cols,
                                         .y = reinterpret_cast<Bf16*>(made)});
        if (view_.is_f8()) quantize(upload.stream, made, place, run);
      });
    });
    land(upload);
    return true;
  }

 private:
  // Cuts rows in pieces that fit into the staging memory: call(first of them, how many).
  template <class Call>
  static void for_pieces(int64_t num_rows, int64_t row_bytes, const Call& call) {
    const int64_t fitting = std::max<int64_t>(1, WeightStaging::kPlaceBytes / row_bytes);
    for (int64_t done = 0; done < num_rows; done += fitting) call(done, std::min(fitting, num_rows - done));
  }

  // Rows [row, row + count) of the stack in runs that stay together: call(first of them, its place, how many).
  template <class Call>
  void for_runs(int64_t row, int64_t count, const Call& call) const {
    for (int64_t at = 0; at < count;) {
      const int64_t run = std::min(count - at, places_.run(row + at));
      call(at, places_.of(row + at), run);
      at += run;
    }
  }

  std::byte* rows_at(int64_t place) const { return data_.data() + place * view_.row_bytes(); }
  float* scales() const { return reinterpret_cast<float*>(scales_.data()); }

  // BF16 rows in device memory to their place.
  void quantize(CudaStream stream, const std::byte* rows, int64_t place, int64_t count) const {
    VAYU_CHECK(view_.scale == WeightScale::kRow, "only scales of rows are made here");
    quantize_rows_cuda(stream, {.x = reinterpret_cast<const Bf16*>(rows),
                                .x_stride = view_.cols,
                                .num_rows = count,
                                .y = {.data = rows_at(place), .scales = scales() + place, .cols = view_.cols},
                                .scale_steps = kScaleSteps});
  }

  // The scales of the rows at [place, place + run), given a row: those of each row, or of the first row of each block.
  // Returns where the next may be staged.
  float* put_scales(CudaStream stream, const float* given, int64_t place, int64_t run, float* staged) const {
    const int64_t first_unit = (place + unit_rows_ - 1) / unit_rows_;
    int64_t count = 0;
    for (int64_t row = first_unit * unit_rows_ - place; row < run; row += unit_rows_, ++count) {
      std::copy_n(given + row * unit_scales_, unit_scales_, staged + count * unit_scales_);
    }
    if (count == 0) return staged;
    keep(copy_to_device(scales() + first_unit * unit_scales_, staged, count * unit_scales_ * int64_t{sizeof(float)},
                        stream));
    return staged + count * unit_scales_;
  }

  void keep(Status outcome) const {
    VAYU_CHECK(outcome.ok() || !own_staging_, "weights: {}", outcome.error().message);
    staging_->keep(std::move(outcome));
  }

  // Waits until what was staged is in place.
  void land(const Upload& upload) const {
    keep(last_launch("weights"));
    keep(synchronize(upload.stream));
  }

  WeightStaging* staging_;
  std::unique_ptr<WeightStaging> own_staging_;
  MatrixPlaces places_;
  DeviceMatrix view_;
  int64_t unit_rows_;    // rows that share their scales
  int64_t unit_scales_;  // scales along a row
  DeviceMemory data_, scales_;
  std::vector<int64_t> first_rows_;  // of each part
};

}  // namespace

Result<std::unique_ptr<WeightStaging>> WeightStaging::create(int32_t num_places) {
  auto staging = std::make_unique<WeightStaging>();
  staging->places_.resize(num_places);
  for (Place& place : staging->places_) {
    VAYU_ASSIGN_OR_RETURN(place.device, DeviceMemory::create(kPlaceBytes));
    VAYU_ASSIGN_OR_RETURN(place.host, DeviceMemory::create_pinned(kPlaceBytes));
    VAYU_ASSIGN_OR_RETURN(place.stream, create_stream());
    staging->free_.push_back(&place);
  }
  return staging;
}

WeightStaging::~WeightStaging() {
  for (const Place& place : places_) {
    if (place.stream != nullptr) destroy_stream(place.stream);
  }
}

void WeightStaging::keep(Status outcome) {
  if (outcome.ok()) return;
  const std::lock_guard lock(mutex_);
  if (failure_.ok()) failure_ = std::move(outcome);
}

Status WeightStaging::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

const WeightStaging::Place* WeightStaging::take() {
  std::unique_lock lock(mutex_);
  freed_.wait(lock, [this] { return !free_.empty(); });
  const Place* place = free_.back();
  free_.pop_back();
  return place;
}

void WeightStaging::give_back(const Place* place) {
  {
    const std::lock_guard lock(mutex_);
    free_.push_back(place);
  }
  freed_.notify_one();
}

Result<std::unique_ptr<Matrix>> CudaMatrix::create(const CudaMatrixShape& shape, std::span<const PartShape> parts,
                                                   WeightStaging* staging) {
  int64_t rows = 0;
  for (const PartShape& part : parts) {
    const bool codes = part.format == DataFormat::kF8E4M3 && shape.scale != WeightScale::kNone;
    const bool plain = part.format == DataFormat::kBF16 && shape.scale != WeightScale::kBlock;
    VAYU_CHECK(codes || plain, "{} in {} does not go into this matrix", part.name, format_info(part.format).name);
    rows += part.rows;
  }
  VAYU_CHECK(shape.gate_up_ffn == 0 || rows % (2 * shape.gate_up_ffn) == 0, "{} rows are not gate over up", rows);
  VAYU_CHECK(shape.scale != WeightScale::kBlock || shape.cols % kScaleGroup == 0, "{} columns in blocks", shape.cols);
  auto matrix = std::make_unique<CudaMatrixImpl>(shape, rows, staging);
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
