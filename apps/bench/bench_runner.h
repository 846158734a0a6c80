// Sends requests to a server and notes when tokens arrive. One thread: every stream is a coroutine, so thousands fit.
//
// Clocks: all times are taken when bytes leave the socket, before they are parsed. A request starts when it is due
// (open loop) or when its turn comes (closed loop), before a connection is opened where one is needed.
//   TTFT  start to the first event with a token
//   ITL   each gap between two events with tokens of one answer
//   TPOT  (last token - first token) / (output tokens - 1), of one answer
//   E2E   start to the end of the answer
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/bench/prompt_maker.h"
#include "apps/client/http_client.h"
#include "base/result.h"

namespace vayu::bench {

struct RunOptions {
  std::string model;
  bool chat = false;  // /v1/chat/completions, else /v1/completions
  int64_t num_requests = 100;
  int64_t num_warmup = 0;    // sent first, with prompts of their own, and not counted
  int64_t concurrency = 1;   // closed loop: that many at any time
  double request_rate = 0;   // > 0: open loop, Poisson arrivals a second; concurrency then bounds the warm-up only
  int64_t output_len = 128;  // max_tokens
  bool ignore_eos = true;    // answers of exactly output_len tokens
  double temperature = 0;
  uint64_t seed = 0;
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  // of one request
  bool show_progress = false;                                    // a line on stderr
};

struct RequestRecord {
  double start_s = 0;   // since the start of the run
  double ttft_ms = -1;  // -1: no token came
  double tpot_ms = -1;  // -1: fewer than two tokens
  double e2e_ms = 0;
  std::vector<double> itl_ms;
  int64_t num_events = 0;               // with tokens
  int64_t expected_prompt_tokens = -1;  // -1: not known
  int64_t prompt_tokens = -1;           // from usage; -1: the server sent none
  int64_t output_tokens = -1;           // the same
  int64_t cached_tokens = 0;
  std::string finish_reason;
  std::string error_label;  // empty: the answer is complete
  std::string error_message;
};

struct RunResult {
  std::vector<RequestRecord> records;  // of requests that were started
  double duration_s = 0;               // first start to last end
  int64_t max_in_flight = 0;
  bool interrupted = false;  // SIGINT: the rest was not sent, running requests were cut
};

RunResult run_requests(std::shared_ptr<const client::HttpTarget> target, const PromptSource& prompts,
                       const RunOptions& options);

}  // namespace vayu::bench
