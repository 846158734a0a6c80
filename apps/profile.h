// `vayu profile`: steps of its own under CUPTI (profile_cuda.cc) or those of a running server (profile_live.cc), and
// what is printed of them (profile.cc).
#pragma once

#include <string>
#include <vector>

#include "apps/local_model.h"
#include "base/result.h"
#include "telemetry/step_profile.h"

namespace vayu::bench {

struct ProfileOptions {
  std::string model;
  LocalModelOptions options;
  int32_t decode_rows = 0;
  int32_t context = 3650;        // of a decode row, the new token included
  std::vector<int32_t> prompts;  // tokens of each prompt in a step
  int32_t steps = 4;
};

Result<StepProfile> profile_steps(const ProfileOptions& options);

struct LiveProfileOptions {
  std::string url;
  std::string api_key;
  int32_t steps = 4;
  double timeout_s = 30;
  bool trace = false;
};

struct LiveProfile {
  std::string model;
  ProfileTable table;
  std::string message;  // what is missing of the steps; empty: nothing
  std::string trace;    // a JSON text
};

// The next steps of a server that was started with --enable-profiling. Errors: the server's own, and those of reaching
// it.
Result<LiveProfile> profile_server(const LiveProfileOptions& options);

}  // namespace vayu::bench
