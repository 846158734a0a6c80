#include "telemetry/step_profile.h"

#include <fmt/format.h>

#include <cmath>

namespace vayu {
namespace {

// One decimal, and none where it is 0.
std::string short_number(double value) {
  const double rounded = std::round(value * 10) / 10;
  return rounded == std::floor(rounded) ? fmt::format("{:.0f}", rounded) : fmt::format("{:.1f}", rounded);
}

double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

}  // namespace

ProfileTable profile_table(const StepProfile& profile) {
  ProfileTable table{.device = profile.device, .num_steps = profile.steps.size()};
  if (profile.steps.empty()) return table;
  const auto steps = static_cast<double>(profile.steps.size());
  for (const ProfiledStep& step : profile.steps) {
    table.tokens += step.tokens / steps;
    table.rows += step.rows / steps;
  }
  table.step_us = profile.host_us / steps;
  table.busy_us = static_cast<double>(busy_ns(profile.records)) * 1e-3 / steps;
  for (const KernelTotal& total : kernel_totals(profile.records)) {
    table.kernels.push_back(
        {total.name, static_cast<double>(total.calls) / steps, total.own_us / steps, total.us / steps});
  }
  return table;
}

std::string to_text(const ProfileTable& table) {
  std::string text = fmt::format(
      "{}: {} tokens in {} rows a step, {} steps; {:.1f} us a step under CUPTI, of which {:.1f} us the device works "
      "({:.1f}%)\n",
      table.device, short_number(table.tokens), short_number(table.rows), table.num_steps, table.step_us, table.busy_us,
      percent(table.busy_us, table.step_us));
  text += fmt::format("{:>10}{:>12}{:>12}{:>9}  {}\n", "calls", "own us", "start-end", "share", "kernel (a step)");
  for (const KernelShare& k : table.kernels) {
    text += fmt::format("{:>10.1f}{:>12.1f}{:>12.1f}{:>8.1f}%  {}\n", k.calls, k.own_us, k.us,
                        percent(k.own_us, table.busy_us), k.name);
  }
  return text;
}

}  // namespace vayu
