// What evaluates batches to logits in host memory, on whatever device: for measuring models rather than serving them.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "core/batch.h"
#include "model/blocks/step.h"
#include "model/config.h"

namespace vayu::model {

struct LogitLimits {
  int32_t max_logits = 0;  // rows of a batch that may ask for logits
  int32_t max_rows = 0;
  int32_t page_size = 16;  // tokens
};

class LogitModel {
 public:
  virtual ~LogitModel() = default;
  virtual const ModelConfig& config() const = 0;
  virtual LogitLimits logit_limits() const = 0;
  // logits: (num_logits, vocab_size). observer may be null, and is not called where the router's choices stay on a
  // device. An error is the device's.
  virtual Status compute_logits(const Batch& batch, float* logits, const RouterObserver* observer) = 0;
};

}  // namespace vayu::model
