// Steps whose kernels were recorded, and the table that is made of them. On any machine: the records come from
// kernel_trace.h where there is a device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "telemetry/kernel_trace.h"

namespace vayu {

struct ProfiledStep {
  int32_t tokens = 0;
  int32_t rows = 0;
};

struct StepProfile {
  std::string device;
  std::vector<ProfiledStep> steps;
  double host_us = 0;                 // from the first launch to the last result
  std::vector<KernelRecord> records;  // of all steps, by start
  std::vector<HostSpan> spans;        // launches and waits
};

// A kernel's part of the mean step.
struct KernelShare {
  std::string name;
  double calls = 0;
  double own_us = 0;  // see KernelTotal
  double us = 0;      // from start to end
};

struct ProfileTable {
  std::string device;
  size_t num_steps = 0;
  // Of the mean step:
  double tokens = 0;
  double rows = 0;
  double step_us = 0;                // of the host's time
  double busy_us = 0;                // in which the device works
  std::vector<KernelShare> kernels;  // largest own time first
};

// Zeros and no kernels for a profile without steps.
ProfileTable profile_table(const StepProfile& profile);
// For people: a line about the steps, a line a kernel.
std::string to_text(const ProfileTable& table);

}  // namespace vayu
