// Which backend an op runs on, and what it needs to run there. Passed by hand to every op.
#pragma once

#include <cstdint>

namespace vayu {
class ThreadPool;
}

namespace vayu::ops {

enum class Backend : uint8_t {
  kReference,  // the plain loop that defines the op (x_ref.cc); slow, obvious, single-threaded
  kCpu,        // Highway, run-time dispatch, thread pool (x_cpu.cc)
};

struct OpContext {
  Backend backend = Backend::kCpu;
  ThreadPool* pool = nullptr;  // kCpu: not null
};

}  // namespace vayu::ops
