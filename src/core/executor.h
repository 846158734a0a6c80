// Runs one batch: CPU, CUDA and simulated executors implement this. The engine thread is the only caller.
#pragma once

#include <cstdint>

#include "core/batch.h"

namespace vayu {

struct ExecutorLimits {
  int32_t vocab_size = 0;
  int32_t page_size = 16;  // tokens a KV page
  int32_t num_pages = 0;
  int32_t max_step_tokens = 0;  // most tokens one batch may hold
  int32_t max_rows = 0;
  int32_t max_context = 0;  // longest sequence, prompt and output, in tokens
};

class Executor {
 public:
  virtual ~Executor() = default;
  virtual const ExecutorLimits& limits() const = 0;
  // Starts a step. The batch must stay unchanged until wait() returns. A step already running is a programming error.
  virtual void launch(const Batch& batch) = 0;
  // Waits for the running step and fills `output` (resized to batch.samples). After a failure nothing more is launched.
  virtual void wait(StepOutput& output) = 0;
};

}  // namespace vayu
