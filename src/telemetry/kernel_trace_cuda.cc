// CUPTI's activity records. The library is opened at run time: a binary that never traces needs none, and one built
// here runs beside whatever minor version the machine has.
#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include "telemetry/kernel_trace.h"

namespace vayu {
namespace {

constexpr size_t kBufferBytes = size_t{4} << 20;
constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                         CUPTI_ACTIVITY_KIND_MEMSET};
constexpr const char* kLibraries[] = {"libcupti.so.13", "libcupti.so", "/usr/local/cuda/lib64/libcupti.so.13",
                                      "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13",
                                      "/usr/local/cuda/lib64/libcupti.so"};

struct Cupti {
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush_all = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&cuptiGetTimestamp) timestamp = nullptr;
  decltype(&cuptiGetResultString) result_string = nullptr;

  bool open() {
    void* library = nullptr;
    for (const char* name : kLibraries) {
      if (!library) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    return library && find(library, "cuptiActivityRegisterCallbacks", register_callbacks) &&
           find(library, "cuptiActivityEnable", enable) && find(library, "cuptiActivityDisable", disable) &&
           find(library, "cuptiActivityFlushAll", flush_all) &&
           find(library, "cuptiActivityGetNextRecord", next_record) && find(library, "cuptiGetTimestamp", timestamp) &&
           find(library, "cuptiGetResultString", result_string);
  }

 private:
  template <class Function>
  static bool find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    return function != nullptr;
  }
};

Cupti cupti;
std::mutex records_mutex;  // CUPTI hands buffers over on a thread of its own
std::vector<KernelRecord> records;

Status check(CUptiResult result, const char* what) {
  if (result == CUPTI_SUCCESS) return {};
  const char* reason = "unknown";
  cupti.result_string(result, &reason);
  return make_error(ErrorKind::kUnavailable, "CUPTI: {}: {}", what, reason);
}

std::string demangled(const char* name) {
  int failed = 0;
  char* text = abi::__cxa_demangle(name, nullptr, nullptr, &failed);
  std::string out = failed == 0 && text ? short_kernel_name(text) : name;
  std::free(text);
  return out;
}

const char* copy_name(uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return "copy to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return "copy to host";
    default:
      return "copy";
  }
}

// The leading fields of a kind's record stay where they are from version to version: CUPTI only appends.
void take(const CUpti_Activity* activity) {
  if (activity->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
    const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(activity);
    records.push_back({demangled(kernel->name), static_cast<int64_t>(kernel->start), static_cast<int64_t>(kernel->end),
                       kernel->streamId});
  } else if (activity->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
    const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy6*>(activity);
    records.push_back({copy_name(copy->copyKind), static_cast<int64_t>(copy->start), static_cast<int64_t>(copy->end),
                       copy->streamId});
  } else if (activity->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
    const auto* set = reinterpret_cast<const CUpti_ActivityMemset4*>(activity);
    records.push_back({"memset", static_cast<int64_t>(set->start), static_cast<int64_t>(set->end), set->streamId});
  }
}

void CUPTIAPI buffer_wanted(uint8_t** buffer, size_t* size, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *size = *buffer ? kBufferBytes : 0;
  *max_records = 0;  // as many as fit
}

void CUPTIAPI buffer_full(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  {
    const std::lock_guard lock(records_mutex);
    CUpti_Activity* activity = nullptr;
    while (cupti.next_record(buffer, valid, &activity) == CUPTI_SUCCESS) take(activity);
  }
  std::free(buffer);
}

// All kinds, whatever becomes of one of them: records that stay on go on taking memory. The first error.
Status disable_all() {
  Status outcome;
  for (const CUpti_ActivityKind kind : kKinds) {
    Status disabled = check(cupti.disable(kind), "end of records");
    if (outcome.ok()) outcome = std::move(disabled);
  }
  return outcome;
}

}  // namespace

Status KernelTrace::start() {
  if (!cupti.next_record && !cupti.open()) {
    return make_error(
        ErrorKind::kUnsupported,
        "no CUPTI: libcupti.so.13 is neither on the library path nor under /usr/local/cuda; it comes with "
        "the CUDA toolkit");
  }
  static bool registered = false;
  if (!registered) VAYU_RETURN_IF_ERROR(check(cupti.register_callbacks(buffer_wanted, buffer_full), "callbacks"));
  registered = true;
  for (const CUpti_ActivityKind kind : kKinds) {
    Status enabled = check(cupti.enable(kind), "activity records");
    if (enabled.ok()) continue;
    static_cast<void>(disable_all());
    return enabled;
  }
  return {};
}

Status KernelTrace::discard() {
  VAYU_RETURN_IF_ERROR(check(cupti.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "flush"));
  const std::lock_guard lock(records_mutex);
  records.clear();
  return {};
}

Result<std::vector<KernelRecord>> KernelTrace::stop() {
  const Status flushed = check(cupti.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "flush");
  const Status disabled = disable_all();
  std::vector<KernelRecord> out;
  {
    const std::lock_guard lock(records_mutex);
    out.swap(records);
  }
  VAYU_RETURN_IF_ERROR(flushed);
  VAYU_RETURN_IF_ERROR(disabled);
  std::sort(out.begin(), out.end(),
            [](const KernelRecord& a, const KernelRecord& b) { return a.start_ns < b.start_ns; });
  return out;
}

int64_t KernelTrace::now_ns() {
  uint64_t ns = 0;
  cupti.timestamp(&ns);
  return static_cast<int64_t>(ns);
}

}  // namespace vayu
