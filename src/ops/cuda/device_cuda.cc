#include "ops/cuda/device.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include "base/check.h"
#include "ops/cuda/num_sms.h"
#include "ops/cuda/tensor_map.h"

namespace vayu::ops {
namespace {

Status to_status(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  return make_error(ErrorKind::kUnavailable, "CUDA: {}: {}", what, cudaGetErrorString(error));
}

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                 const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                 CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// Through the runtime, so that a machine without a driver can still start the binary.
EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* symbol = nullptr;
    cudaDriverEntryPointQueryResult found;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &symbol, 12000, cudaEnableDefault, &found);
    return reinterpret_cast<EncodeTiled>(symbol);
  }();
  return function;
}

}  // namespace

Result<DeviceInfo> open_device() {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
    return make_error(ErrorKind::kUnavailable, "no CUDA device ({}); --device cpu runs without one",
                      error != cudaSuccess ? cudaGetErrorString(error) : "the driver lists none");
  }
  VAYU_RETURN_IF_ERROR(to_status(cudaSetDevice(0), "cudaSetDevice"));
  cudaDeviceProp properties;
  VAYU_RETURN_IF_ERROR(to_status(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties"));
  DeviceInfo info{.name = properties.name,
                  .compute_major = properties.major,
                  .compute_minor = properties.minor,
                  .num_sms = properties.multiProcessorCount,
                  .total_bytes = static_cast<int64_t>(properties.totalGlobalMem),
                  .l2_bytes = properties.l2CacheSize};
  if (info.compute_major != 9 || info.compute_minor != 0) {
    return make_error(ErrorKind::kUnsupported,
                      "{} has compute capability {}.{}; the CUDA backend is built for Hopper (9.0). Use --device cpu",
                      info.name, info.compute_major, info.compute_minor);
  }
  size_t free = 0, total = 0;
  VAYU_RETURN_IF_ERROR(to_status(cudaMemGetInfo(&free, &total), "cudaMemGetInfo"));
  info.free_bytes = static_cast<int64_t>(free);
  return info;
}

Result<DeviceMemory> DeviceMemory::create(int64_t bytes) {
  DeviceMemory memory;
  if (bytes == 0) return std::move(memory);
  void* p = nullptr;
  if (const cudaError_t error = cudaMalloc(&p, static_cast<size_t>(bytes)); error != cudaSuccess) {
    cudaGetLastError();
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    return make_error(ErrorKind::kResourceExhausted, "cannot take {} bytes of device memory ({} of {} are free): {}",
                      bytes, free, total, cudaGetErrorString(error));
  }
  memory.data_ = static_cast<std::byte*>(p);
  memory.bytes_ = bytes;
  // The fill is on its way when cudaMemset returns, and streams of ours do not wait for it: it would wipe what they
  // write.
  VAYU_RETURN_IF_ERROR(to_status(cudaMemset(p, 0, static_cast<size_t>(bytes)), "cudaMemset"));
  VAYU_RETURN_IF_ERROR(to_status(cudaStreamSynchronize(nullptr), "cudaMemset"));
  return std::move(memory);
}

Result<DeviceMemory> DeviceMemory::create_pinned(int64_t bytes) {
  DeviceMemory memory;
  if (bytes == 0) return std::move(memory);
  void* p = nullptr;
  VAYU_RETURN_IF_ERROR(to_status(cudaMallocHost(&p, static_cast<size_t>(bytes)), "pinned host memory"));
  memory.data_ = static_cast<std::byte*>(p);
  memory.bytes_ = bytes;
  memory.pinned_ = true;
  return std::move(memory);
}

DeviceMemory::~DeviceMemory() {
  if (data_ == nullptr) return;
  if (pinned_) {
    cudaFreeHost(data_);
  } else {
    cudaFree(data_);
  }
}

int num_sms() {
  static const int count = [] {
    int device = 0, value = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device);
    return value;
  }();
  return count;
}

Result<StreamEvent> StreamEvent::create() {
  StreamEvent event;
  VAYU_RETURN_IF_ERROR(to_status(cudaEventCreateWithFlags(&event.event_, cudaEventDisableTiming), "event"));
  return std::move(event);
}
StreamEvent::~StreamEvent() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}
void StreamEvent::record(CudaStream stream) const { cudaEventRecord(event_, stream); }
void StreamEvent::hold_back(CudaStream stream) const { cudaStreamWaitEvent(stream, event_, 0); }

Result<CudaStream> create_stream() {
  cudaStream_t stream = nullptr;
  VAYU_RETURN_IF_ERROR(to_status(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate"));
  return stream;
}
void destroy_stream(CudaStream stream) { cudaStreamDestroy(stream); }

Status copy_to_device(void* device, const void* host, int64_t bytes, CudaStream stream) {
  return to_status(cudaMemcpyAsync(device, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream),
                   "copy to the device");
}
Status copy_to_host(void* host, const void* device, int64_t bytes, CudaStream stream) {
  return to_status(cudaMemcpyAsync(host, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream),
                   "copy from the device");
}
Status fill_device(void* device, uint8_t byte, int64_t bytes, CudaStream stream) {
  return to_status(cudaMemsetAsync(device, byte, static_cast<size_t>(bytes), stream), "fill of device memory");
}
Status synchronize(CudaStream stream) { return to_status(cudaStreamSynchronize(stream), "wait for the device"); }
Status last_launch(const char* what) { return to_status(cudaGetLastError(), what); }

CUtensorMap byte_rows_map(const void* data, int64_t num_rows, int64_t row_bytes, int32_t box_rows) {
  CUtensorMap map;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(row_bytes), static_cast<cuuint64_t>(num_rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(row_bytes)};
  const cuuint32_t box[2] = {128, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  const CUresult result = encode_tiled()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(data), sizes,
                                         strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  VAYU_CHECK(result == CUDA_SUCCESS, "tensor map of {} rows of {} bytes: error {}", num_rows, row_bytes,
             static_cast<int>(result));
  return map;
}

CUtensorMap head_rows_map(const void* data, int64_t cols, int64_t num_rows, int64_t row_stride, int64_t num_heads,
                          int64_t head_stride, int32_t box_rows) {
  CUtensorMap map;
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(num_rows),
                               static_cast<cuuint64_t>(num_heads)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(row_stride) * sizeof(Bf16),
                                 static_cast<cuuint64_t>(head_stride) * sizeof(Bf16)};
  const cuuint32_t box[3] = {64, static_cast<cuuint32_t>(box_rows), 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  const CUresult result = encode_tiled()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(data), sizes,
                                         strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  VAYU_CHECK(result == CUDA_SUCCESS, "tensor map of {} heads, {} rows of {}: error {}", num_heads, num_rows, cols,
             static_cast<int>(result));
  return map;
}

}  // namespace vayu::ops
