// In place of cuda_executor_cuda.cc where the binary is built without CUDA.
#include "engine/cuda_executor.h"

namespace vayu {
namespace {

Error absent() {
  return make_error(ErrorKind::kUnsupported,
                    "this binary is built without CUDA: install the CUDA toolkit (nvcc) and build again, or use "
                    "--device cpu");
}

}  // namespace

bool CudaExecutor::built() { return false; }
Result<std::string> CudaExecutor::device_name() { return absent(); }
Result<std::unique_ptr<CudaExecutor>> CudaExecutor::load(model::Recipe, const loader::Checkpoint&,
                                                         const CudaExecutorOptions&) {
  return absent();
}

Result<std::unique_ptr<model::LogitModel>> load_cuda_logits(model::Recipe, const loader::Checkpoint&,
                                                            const CudaExecutorOptions&) {
  return absent();
}

}  // namespace vayu
