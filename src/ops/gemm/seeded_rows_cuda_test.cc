#include <array>

#include "ops/cuda/cuda_test_util.h"
#include "ops/gemm/cuda_matrix.h"
#include "ops/gemm/seeded_rows.h"

namespace vayu::ops {
namespace {

std::vector<Bf16> host_rows(const SeededFillArgs& args) {
  std::vector<Bf16> out(args.num_rows * args.stride, Bf16{0});
  for (int64_t r = 0; r < args.num_rows; ++r) {
    for (int64_t c = 0; c < args.cols; ++c) {
      const float v = seeded_value(args.source, args.first + r * args.cols + c);
      quantize_row(DataFormat::kBF16, &v, &out[r * args.stride + c], 1);
    }
  }
  return out;
}

TEST(SeededRowsCuda, EqualsTheHostToTheBit) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  const struct {
    int64_t rows, cols, stride;
  } shapes[] = {{1, 8, 8}, {3, 13, 16}, {17, 4096, 4096}, {65, 100, 128}, {300, 1024, 1024}, {1, 5, 64}};
  for (const auto& shape : shapes) {
    SeededFillArgs args{.source = {seed_mix(shape.cols + 77), 0.2, 0.3 / 37837.22659},
                        .first = static_cast<uint64_t>(shape.cols) * 1000003,
                        .num_rows = shape.rows,
                        .cols = shape.cols,
                        .stride = shape.stride};
    DeviceArray<Bf16> y(shape.rows * shape.stride);
    args.y = y.get();
    seeded_fill_cuda(nullptr, args);
    const std::vector<Bf16> got = y.host(), want = host_rows(args);
    int64_t different = 0;
    for (size_t i = 0; i < want.size(); ++i) different += got[i].bits != want[i].bits;
    EXPECT_EQ(different, 0) << shape.rows << " x " << shape.cols << " in " << shape.stride;
  }
}

// A matrix filled in place holds the bytes of one filled from the host.
void expect_same_matrix(bool f8, int32_t ffn, int64_t cols) {
  const int64_t rows = ffn > 0 ? 4 * ffn : 96;
  const std::array<PartShape, 1> parts = {PartShape{DataFormat::kBF16, rows, "w"}};
  const CudaMatrixShape shape{f8 ? WeightScale::kRow : WeightScale::kNone, cols, ffn, true};
  auto made = std::move(CudaMatrix::create(shape, parts)).value();
  auto uploaded = std::move(CudaMatrix::create(shape, parts)).value();
  const SeededRows source{seed_mix(rows), 0, 1e-6};
  ASSERT_TRUE(made->fill_seeded(0, 0, rows, source, 0));
  const SeededFillArgs args{.source = source, .num_rows = rows, .cols = cols, .stride = cols};
  uploaded->fill(0, 0, rows, host_rows(args).data());
  const DeviceMatrix a = device_view(*made), b = device_view(*uploaded);
  std::vector<uint8_t> bytes_a(a.rows * a.row_bytes()), bytes_b(bytes_a.size());
  ASSERT_TRUE(copy_to_host(bytes_a.data(), a.data, bytes_a.size(), nullptr).ok());
  ASSERT_TRUE(copy_to_host(bytes_b.data(), b.data, bytes_b.size(), nullptr).ok());
  ASSERT_TRUE(synchronize(nullptr).ok());
  EXPECT_EQ(bytes_a, bytes_b) << "f8 " << f8 << " ffn " << ffn;
  if (!f8) return;
  std::vector<float> scales_a(a.rows), scales_b(a.rows);
  ASSERT_TRUE(copy_to_host(scales_a.data(), a.scales, a.rows * 4, nullptr).ok());
  ASSERT_TRUE(copy_to_host(scales_b.data(), b.scales, a.rows * 4, nullptr).ok());
  ASSERT_TRUE(synchronize(nullptr).ok());
  EXPECT_EQ(scales_a, scales_b);
}

TEST(SeededRowsCuda, MatricesEqualUploadedOnes) {
  VAYU_NEEDS_DEVICE();
  for (const bool f8 : {false, true}) {
    expect_same_matrix(f8, 0, 256);
    expect_same_matrix(f8, 0, 200);
    expect_same_matrix(f8, 128, 384);
    expect_same_matrix(f8, 96, 256);
  }
}

}  // namespace
}  // namespace vayu::ops
