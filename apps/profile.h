// `vayu profile`: steps under CUPTI (profile_cuda.cc) and what is printed of them (profile.cc).
#pragma once

#include <string>
#include <vector>

#include "apps/local_model.h"
#include "base/result.h"
#include "telemetry/kernel_trace.h"

namespace vayu::bench {

struct ProfileOptions {
  std::string model;
  LocalModelOptions options;
  int32_t decode_rows = 0;
  int32_t context = 3650;        // of a decode row, the new token included
  std::vector<int32_t> prompts;  // tokens of each prompt in a step
  int32_t steps = 4;
};

struct StepProfile {
  std::string device;
  int32_t tokens = 0;                 // of a step
  std::vector<KernelRecord> records;  // of all steps
  std::vector<HostSpan> spans;        // launch and wait of each
  std::vector<double> step_us;        // of the host, one a step
};

Result<StepProfile> profile_steps(const ProfileOptions& options);

}  // namespace vayu::bench
