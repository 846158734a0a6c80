// What the device did while steps ran: kernels and copies by name, through NVIDIA's CUPTI, which is looked for when it
// is asked for. One trace at a time in a process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace vayu {

struct KernelRecord {
  std::string name;  // without its parameters
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  uint32_t stream = 0;
};

// A stretch of the host's time, on the clock of the records.
struct HostSpan {
  std::string name;
  int64_t start_ns = 0;
  int64_t end_ns = 0;
};

class KernelTrace {
 public:
  // To be called before graphs are captured, so that their kernels are seen one by one; again after a stop(), from any
  // thread. Errors: kUnsupported without CUPTI, with where it was looked for; kUnavailable with CUPTI's reason.
  static Status start();
  static Status discard();  // what has been recorded so far
  // Everything since the last discard(), by start. The device must be idle. Nothing is recorded any more, even where
  // this fails (kUnavailable, with CUPTI's reason), as where start() does.
  static Result<std::vector<KernelRecord>> stop();
  static int64_t now_ns();
};

// A kernel that starts early waits inside for the one before it; its own time begins where all earlier ones have ended,
// so that own times add up to the time in which anything ran.
struct KernelTotal {
  std::string name;
  int64_t calls = 0;
  double us = 0;  // from start to end
  double own_us = 0;
};

// Largest own time first. All of these take records by start.
std::vector<KernelTotal> kernel_totals(const std::vector<KernelRecord>& records);
// Nanoseconds in which at least one record ran.
int64_t busy_ns(const std::vector<KernelRecord>& records);
// For chrome://tracing and Perfetto: device streams and the host's spans as rows.
std::string chrome_trace(const std::vector<KernelRecord>& records, const std::vector<HostSpan>& spans);
// "void vayu::ops::(anonymous namespace)::f<int, 3>(Args)" becomes "f<int, 3>".
std::string short_kernel_name(const std::string& demangled);

}  // namespace vayu
