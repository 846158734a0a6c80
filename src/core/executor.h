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
  // Whether a second step may be launched while one is under way: steps then run one after the other, the second with
  // the tokens that the first samples (Batch::prev_samples).
  virtual bool overlaps() const { return false; }
  // Starts a step. The batch must stay unchanged until its wait() returns. More steps under way than allowed, one or
  // two, is a programming error.
  virtual void launch(const Batch& batch) = 0;
  // Waits for the oldest step under way and fills `output` (resized to batch.samples). After a failure nothing more is
  // launched.
  virtual void wait(StepOutput& output) = 0;
};

}  // namespace vayu
