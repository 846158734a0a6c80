// A named stretch of the calling thread's time, shown by NVIDIA's profilers. Without a profiler attached it costs a
// test of a pointer; in builds without CUDA, nothing.
#pragma once

#ifdef VAYU_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace vayu {

class NvtxRange {
 public:
#ifdef VAYU_NVTX
  explicit NvtxRange(const char* name) { nvtxRangePushA(name); }
  ~NvtxRange() { nvtxRangePop(); }
#else
  explicit NvtxRange(const char*) {}
#endif
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

}  // namespace vayu
