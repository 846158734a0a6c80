#include "ops/cuda/device.h"

#include <cuda.h>

#include <array>

#include "ops/cuda/whole_device.h"
#include "ops/gemm/cuda_matrix.h"

namespace vayu::ops {
namespace {

// Else the first launch of a kernel takes memory in the middle of a step.
TEST(DeviceCuda, KernelsAreLoadedAtStart) {
  VAYU_NEEDS_DEVICE();
  const char* wanted = std::getenv("CUDA_MODULE_LOADING");
  ASSERT_NE(wanted, nullptr);
  if (std::string(wanted) != "EAGER") GTEST_SKIP() << "CUDA_MODULE_LOADING is " << wanted;
  void* symbol = nullptr;
  cudaDriverEntryPointQueryResult found;
  ASSERT_EQ(cudaGetDriverEntryPointByVersion("cuModuleGetLoadingMode", &symbol, 11070, cudaEnableDefault, &found),
            cudaSuccess);
  ASSERT_NE(symbol, nullptr);
  CUmoduleLoadingMode mode{};
  ASSERT_EQ(reinterpret_cast<CUresult (*)(CUmoduleLoadingMode*)>(symbol)(&mode), CUDA_SUCCESS);
  EXPECT_EQ(mode, CU_MODULE_EAGER_LOADING);
}

// Loading into a full device ends with an error, not with the process.
TEST(DeviceAlone, AMatrixThatDoesNotFitIsAnError) {
  VAYU_NEEDS_WHOLE_DEVICE();
  const std::array<PartShape, 1> parts = {PartShape{DataFormat::kBF16, 4096, "w"}};
  const CudaMatrixShape shape{WeightScale::kNone, 4096};  // 32 MiB
  const auto refused = [&](WeightStaging* staging) {
    const auto matrix = CudaMatrix::create(shape, parts, staging);
    if (matrix.ok()) return std::string("it fits");
    EXPECT_EQ(matrix.error().kind, ErrorKind::kResourceExhausted);
    return matrix.error().message;
  };
  const auto staging = std::move(WeightStaging::create(1)).value();
  {
    const Ballast ballast(WeightStaging::kPlaceBytes - 2 * Ballast::kPiece);
    const int64_t free = free_device_bytes().value();
    const std::string own = refused(nullptr), shared = refused(staging.get());
    EXPECT_NE(own.find("tensor w: cannot take 8388608 bytes of device memory"), std::string::npos) << own;
    EXPECT_NE(shared.find("tensor w: cannot take 33554432 bytes of device memory"), std::string::npos) << shared;
    EXPECT_EQ(free_device_bytes().value(), free);
  }
  EXPECT_EQ(refused(staging.get()), "it fits");
}

}  // namespace
}  // namespace vayu::ops
