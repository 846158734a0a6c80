#include "ops/cuda/device.h"

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <utility>

#include "base/check.h"
#include "ops/cuda/device_choice.h"
#include "ops/cuda/num_sms.h"
#include "ops/cuda/tensor_map.h"

namespace vayu::ops {
namespace {

// The driver reads this when it is first called. Left alone it loads a kernel at its first launch, which in the middle
// of a step takes memory and waits for the device; EAGER loads all of them with the context. Set before main(): the
// server has threads before it opens a device, and setenv() must not meet their getenv(). What the user has set stays.
[[maybe_unused]] const bool kLoadsKernelsAtStart = setenv("CUDA_MODULE_LOADING", "EAGER", 0) == 0;

Status to_status(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  return make_error(ErrorKind::kUnavailable, "CUDA: {}: {}", what, cudaGetErrorString(error));
}

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                 const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                 CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// Through the runtime, so that a machine without a driver can still start the binary. Null where that says no, as it
// does to everything once the device has failed; what it gave is kept.
EncodeTiled encode_tiled() {
  static std::atomic<EncodeTiled> kept{nullptr};
  if (const EncodeTiled function = kept.load(std::memory_order_relaxed)) return function;
  void* symbol = nullptr;
  cudaDriverEntryPointQueryResult found;
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &symbol, 12000, cudaEnableDefault, &found) !=
      cudaSuccess) {
    return nullptr;
  }
  kept.store(reinterpret_cast<EncodeTiled>(symbol), std::memory_order_relaxed);
  return reinterpret_cast<EncodeTiled>(symbol);
}

// Of the first tensor map on this thread that the driver did not make since last_launch() was asked: launchers return
// nothing, and a kernel that gets the empty map does no more harm where the driver has failed.
thread_local CUresult map_failure = CUDA_SUCCESS;

// A map of `rank` dimensions; `strides`, in bytes, are those behind the first dimension. Empty when the driver fails.
CUtensorMap encode_map(CUtensorMapDataType type, int rank, const void* data, const cuuint64_t* sizes,
                       const cuuint64_t* strides, const cuuint32_t* box) {
  CUtensorMap map = {};
  const cuuint32_t steps[3] = {1, 1, 1};
  const EncodeTiled encode = encode_tiled();
  const CUresult result =
      encode == nullptr
          ? CUDA_ERROR_NOT_INITIALIZED
          : encode(&map, type, rank, const_cast<void*>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                   CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  VAYU_CHECK(result != CUDA_ERROR_INVALID_VALUE, "no tensor map has {} x {} elements in boxes of {} x {}", sizes[1],
             sizes[0], box[1], box[0]);
  if (map_failure == CUDA_SUCCESS) map_failure = result;
  return map;
}

DriverAnswer ask_driver() {
  DriverAnswer answer;
  cudaDriverGetVersion(&answer.driver_version);
  cudaRuntimeGetVersion(&answer.runtime_version);
  const cudaError_t error = cudaGetDeviceCount(&answer.num_devices);
  answer.no_device = error == cudaErrorNoDevice;
  if (error != cudaSuccess) answer.error = cudaGetErrorString(error);
  return answer;
}

}  // namespace

Result<DeviceInfo> open_device() {
  VAYU_RETURN_IF_ERROR(check_driver(ask_driver()));
  VAYU_RETURN_IF_ERROR(to_status(cudaSetDevice(0), "cudaSetDevice"));
  cudaDeviceProp properties;
  VAYU_RETURN_IF_ERROR(to_status(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties"));
  DeviceInfo info{.name = properties.name,
                  .compute_major = properties.major,
                  .compute_minor = properties.minor,
                  .num_sms = properties.multiProcessorCount,
                  .total_bytes = static_cast<int64_t>(properties.totalGlobalMem),
                  .l2_bytes = properties.l2CacheSize};
  VAYU_RETURN_IF_ERROR(check_device(info));
  // What a step would otherwise ask for first, perhaps after the device has failed.
  static_cast<void>(num_sms());
  if (encode_tiled() == nullptr) {
    return make_error(ErrorKind::kUnavailable, "CUDA: the driver makes no tensor maps: {}",
                      cudaGetErrorString(cudaGetLastError()));
  }
  VAYU_ASSIGN_OR_RETURN(info.free_bytes, free_device_bytes());
  return info;
}

Result<int64_t> free_device_bytes() {
  size_t free = 0, total = 0;
  VAYU_RETURN_IF_ERROR(to_status(cudaMemGetInfo(&free, &total), "cudaMemGetInfo"));
  return static_cast<int64_t>(free);
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
  if (const cudaError_t error = cudaMallocHost(&p, static_cast<size_t>(bytes)); error != cudaSuccess) {
    cudaGetLastError();
    return make_error(ErrorKind::kResourceExhausted, "cannot take {} bytes of pinned host memory: {}", bytes,
                      cudaGetErrorString(error));
  }
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

// At least one, for those who divide by it; only an answer is kept.
int num_sms() {
  static std::atomic<int> kept{0};
  if (const int count = kept.load(std::memory_order_relaxed); count > 0) return count;
  int device = 0, count = 0;
  if (cudaGetDevice(&device) == cudaSuccess) {
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  }
  kept.store(count, std::memory_order_relaxed);
  return std::max(count, 1);
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
Status last_launch(const char* what) {
  const CUresult map = std::exchange(map_failure, CUDA_SUCCESS);
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess && map != CUDA_SUCCESS) {
    return make_error(ErrorKind::kUnavailable, "CUDA: {}: the driver made no tensor map (error {})", what,
                      static_cast<int>(map));
  }
  return to_status(error, what);
}

CUtensorMap byte_rows_map(const void* data, int64_t num_rows, int64_t row_bytes, int32_t box_rows) {
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(row_bytes), static_cast<cuuint64_t>(num_rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(row_bytes)};
  const cuuint32_t box[2] = {128, static_cast<cuuint32_t>(box_rows)};
  return encode_map(CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, data, sizes, strides, box);
}

CUtensorMap head_rows_map(const void* data, int64_t cols, int64_t num_rows, int64_t row_stride, int64_t num_heads,
                          int64_t head_stride, int32_t box_rows) {
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(num_rows),
                               static_cast<cuuint64_t>(num_heads)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(row_stride) * sizeof(Bf16),
                                 static_cast<cuuint64_t>(head_stride) * sizeof(Bf16)};
  const cuuint32_t box[3] = {64, static_cast<cuuint32_t>(box_rows), 1};
  return encode_map(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, data, sizes, strides, box);
}

}  // namespace vayu::ops
