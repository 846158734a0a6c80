// The border between a front (server, chat, bench) and whatever runs requests: one engine or a fleet.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "core/request.h"

namespace vayu {

// News of one answer. Every answer of an accepted request ends in exactly one delta with `finish` set.
struct SequenceDelta {
  RequestId request_id = 0;
  int32_t choice = 0;               // 0 .. n-1
  std::vector<OutputToken> tokens;  // new since the last delta, normally one
  std::vector<OutputToken> prompt;  // once, before the first token, when prompt_logprobs was asked for:
                                    // one entry a prompt token, the first without a value (logprob is NaN)
  int32_t cached_tokens = 0;        // prompt tokens taken from the prefix cache
  std::optional<FinishReason> finish;
  TokenId stop_token = kNoToken;  // the end id that stopped the answer; it is the last of `tokens`
  std::optional<Error> error;     // with finish == kError
  int64_t time_us = 0;            // Clock time of the step's end
  int64_t scheduled_us = 0;       // Clock time the answer first got pages; 0: not known
};

// Called on the engine thread: must not block nor call back into the client (cancel excepted).
using DeltaSink = std::function<void(SequenceDelta&&)>;

struct EngineStats {
  int32_t running = 0;  // answers with pages
  int32_t waiting = 0;  // answers without
  int32_t total_pages = 0;
  int32_t free_pages = 0;    // on the free list
  int32_t cached_pages = 0;  // held by the radix tree alone: evictable
  int32_t page_size = 0;
  uint64_t steps = 0;
  uint64_t prompt_tokens = 0;  // computed or cached
  uint64_t cached_tokens = 0;  // of these, from the prefix cache
  uint64_t generated_tokens = 0;
  uint64_t preemptions = 0;
  uint64_t non_finite_rows = 0;       // answers failed because their logits were not finite
  int64_t last_step_end_us = 0;       // Clock time
  int64_t step_running_since_us = 0;  // 0: idle; otherwise since when work is there without a step ending
  int32_t last_batch_tokens = 0;
  int32_t last_batch_rows = 0;
  std::string failed;  // why no more steps can run, for good; empty: they can
};

struct EngineInfo {
  std::string model_name;
  int32_t vocab_size = 0;
  int32_t max_context = 0;        // tokens, prompt and output together
  int32_t max_request_pages = 0;  // a request that needs more pages can never run
  int32_t page_size = 0;
};

class EngineClient {
 public:
  virtual ~EngineClient() = default;
  virtual const EngineInfo& info() const = 0;
  // Thread-safe. On success the sink gets deltas until every answer has finished. An error is final: nothing was
  // queued. kResourceExhausted: the queue is full; kInvalidArgument: can never fit; kUnavailable: shutting down, or
  // failed.
  virtual Result<RequestId> submit(Request request, DeltaSink sink) = 0;
  // Thread-safe, any number of times, also for unknown or finished ids. `choice` < 0 cancels all answers. The answer's
  // final delta carries `reason` (kStop when the front matched a stop string). Pages are free within one step.
  virtual void cancel(RequestId id, int32_t choice = -1, FinishReason reason = FinishReason::kCancelled) = 0;
  virtual EngineStats stats() const = 0;  // thread-safe
  // Stops taking requests, lets running ones finish until the Clock says deadline_us, then cancels the rest.
  virtual void drain(int64_t deadline_us) = 0;
};

}  // namespace vayu
