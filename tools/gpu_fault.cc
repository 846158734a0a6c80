// A device that fails while it works, for tools/gpu_fault.py: preloaded into a process, this library lets its N-th
// graph launch (VAYU_FAULT_AT, from 1) fail in one of two ways (VAYU_FAULT):
//   trap   a kernel that traps runs first, so that the context is lost as after an illegal instruction of our own
//   gone   the launch and all calls behind it answer that the device is unavailable, as where it fell off the bus
// Programs with the CUDA runtime linked in find the driver by dlsym("cuGetProcAddress_v2"), and through that the rest:
// both are stood in for here. No kernel of the server is changed, and nothing outside of the process is touched.
#include <cuda.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr char kTrap[] =
    ".version 7.8\n.target sm_90\n.address_size 64\n"
    ".visible .entry vayu_fault()\n{\n  trap;\n  ret;\n}\n";

using GetProcAddress = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
using Launch = CUresult (*)(CUgraphExec, CUstream);
using Sync = CUresult (*)(CUstream);

void* next_dlsym(void* handle, const char* name) {
  using Dlsym = void* (*)(void*, const char*);
  static const auto real = reinterpret_cast<Dlsym>(dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34"));
  static const auto old = reinterpret_cast<Dlsym>(dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5"));
  return (real ? real : old)(handle, name);
}

GetProcAddress get_proc_address = nullptr;
Launch launch = nullptr;
Sync sync_stream = nullptr, query_stream = nullptr;
std::atomic<long> launches{0};
std::atomic<bool> gone{false};

void* driver(const char* name) {
  void* found = nullptr;
  get_proc_address(name, &found, 12000, 0, nullptr);
  return found;
}

CUresult run_trap(CUstream stream) {
  const auto load = reinterpret_cast<CUresult (*)(CUmodule*, const void*)>(driver("cuModuleLoadData"));
  const auto find = reinterpret_cast<CUresult (*)(CUfunction*, CUmodule, const char*)>(driver("cuModuleGetFunction"));
  const auto run = reinterpret_cast<CUresult (*)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                                 unsigned, CUstream, void**, void**)>(driver("cuLaunchKernel"));
  CUmodule module = nullptr;
  CUfunction trap = nullptr;
  CUresult result = load(&module, kTrap);
  if (result == CUDA_SUCCESS) result = find(&trap, module, "vayu_fault");
  if (result == CUDA_SUCCESS) result = run(trap, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr);
  std::fprintf(stderr, "gpu_fault: a kernel that traps (%d)\n", static_cast<int>(result));
  return result;
}

CUresult graph_launch(CUgraphExec graph, CUstream stream) {
  static const long at = std::atol(std::getenv("VAYU_FAULT_AT") ? std::getenv("VAYU_FAULT_AT") : "1");
  static const char* const kind = std::getenv("VAYU_FAULT");
  if (kind && ++launches == at) {
    if (std::strcmp(kind, "trap") == 0) {
      run_trap(stream);
    } else {
      std::fprintf(stderr, "gpu_fault: the device is gone\n");
      gone = true;
    }
  }
  return gone ? CUDA_ERROR_DEVICE_UNAVAILABLE : launch(graph, stream);
}
CUresult stream_synchronize(CUstream stream) { return gone ? CUDA_ERROR_DEVICE_UNAVAILABLE : sync_stream(stream); }
CUresult stream_query(CUstream stream) { return gone ? CUDA_ERROR_DEVICE_UNAVAILABLE : query_stream(stream); }

template <class F>
void stand_in(void** found, F& real, F ours) {
  real = reinterpret_cast<F>(*found);
  *found = reinterpret_cast<void*>(ours);
}

CUresult proc_address(const char* name, void** found, int version, cuuint64_t flags,
                      CUdriverProcAddressQueryResult* status) {
  const CUresult result = get_proc_address(name, found, version, flags, status);
  if (result != CUDA_SUCCESS || *found == nullptr) return result;
  if (std::strcmp(name, "cuGraphLaunch") == 0) stand_in(found, launch, graph_launch);
  if (std::strcmp(name, "cuStreamSynchronize") == 0) stand_in(found, sync_stream, stream_synchronize);
  if (std::strcmp(name, "cuStreamQuery") == 0) stand_in(found, query_stream, stream_query);
  if (std::strcmp(name, "cuGetProcAddress") == 0) *found = reinterpret_cast<void*>(proc_address);
  return result;
}

}  // namespace

extern "C" void* dlsym(void* handle, const char* name) noexcept {
  void* found = next_dlsym(handle, name);
  if (found != nullptr && std::strcmp(name, "cuGetProcAddress_v2") == 0) {
    get_proc_address = reinterpret_cast<GetProcAddress>(found);
    return reinterpret_cast<void*>(proc_address);
  }
  return found;
}
