// Launching kernels: errors are found by last_launch() after a whole step, so a launch costs no check of its own.
//
// Programmatic dependent launch: a kernel started by launch_overlapped() may begin while the one before it on the
// stream still runs. It must call wait_for_inputs() before it touches anything an earlier kernel writes (weights and
// other constants may be read before), and every kernel on the path calls let_next_start() as soon as it may.
#pragma once

#include <cuda_runtime.h>

#include "ops/cuda/types.h"

namespace vayu::ops {

__device__ __forceinline__ void wait_for_inputs() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void let_next_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  unsigned cluster = 1;  // blocks of a cluster, along x
};

// The limit of dynamic shared memory is raised on every call (48 KiB hold for static and dynamic together); that is a
// host-side write.
template <class... Params, class... Args>
inline void launch_overlapped(void (*kernel)(Params...), const LaunchShape& shape, CudaStream stream, Args... args) {
  if (shape.shared_bytes > 0) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape.shared_bytes));
  }
  cudaLaunchAttribute attributes[2];
  unsigned count = 0;
  attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {shape.cluster, 1, 1};
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

}  // namespace vayu::ops
