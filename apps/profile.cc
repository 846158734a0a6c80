// vayu profile: what the GPU does in a step of given make-up, kernel by kernel.
#include "apps/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "apps/commands.h"
#include "apps/run_record.h"

namespace vayu {
namespace {

using bench::StepProfile;
using nlohmann::ordered_json;

struct ProfileFlags {
  bench::ProfileOptions run;
  std::optional<int32_t> decode_rows;
  std::string trace_path;
  std::string json_path;
};

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

Status write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return make_error(ErrorKind::kIo, "cannot write {}", path);
  return {};
}

void print_profile(const StepProfile& profile, const std::vector<KernelTotal>& totals) {
  const auto steps = static_cast<double>(profile.step_us.size());
  const double step_us = mean(profile.step_us), busy_us = busy_ns(profile.records) * 1e-3 / steps;
  fmt::print("{}: {} tokens a step; {:.1f} us a step under CUPTI, of which {:.1f} us the device works ({:.1f}%)\n",
             profile.device, profile.tokens, step_us, busy_us, 100 * busy_us / step_us);
  fmt::print("{:>10}{:>12}{:>12}{:>9}  {}\n", "calls", "own us", "start-end", "share", "kernel (a step)");
  for (const KernelTotal& total : totals) {
    fmt::print("{:>10.1f}{:>12.1f}{:>12.1f}{:>8.1f}%  {}\n", total.calls / steps, total.own_us / steps,
               total.us / steps, 100 * total.own_us / steps / busy_us, total.name);
  }
}

std::string to_json(const ProfileFlags& flags, const StepProfile& profile, const std::vector<KernelTotal>& totals) {
  const auto steps = static_cast<double>(profile.step_us.size());
  ordered_json kernels = ordered_json::array();
  for (const KernelTotal& total : totals) {
    kernels.push_back({{"name", total.name},
                       {"calls", total.calls / steps},
                       {"own_us", total.own_us / steps},
                       {"us", total.us / steps}});
  }
  const ordered_json out = {{"name", "profile"},
                            {"command", command_line()},
                            {"hardware", profile.device},
                            {"model", flags.run.model},
                            {"tokens", profile.tokens},
                            {"step_us", mean(profile.step_us)},
                            {"busy_us", busy_ns(profile.records) * 1e-3 / steps},
                            {"kernels", std::move(kernels)}};
  return out.dump(2) + "\n";
}

Status profile(ProfileFlags& flags) {
  flags.run.decode_rows = flags.decode_rows.value_or(flags.run.prompts.empty() ? 32 : 0);
  if (flags.run.decode_rows == 0 && flags.run.prompts.empty()) {
    return field_error("--decode", "--decode 0 without --prompts: a step of nothing");
  }
  VAYU_ASSIGN_OR_RETURN(const StepProfile profile, bench::profile_steps(flags.run));
  const std::vector<KernelTotal> totals = kernel_totals(profile.records);
  print_profile(profile, totals);
  if (!flags.trace_path.empty()) {
    VAYU_RETURN_IF_ERROR(write_file(flags.trace_path, chrome_trace(profile.records, profile.spans)));
  }
  return flags.json_path.empty() ? Status() : write_file(flags.json_path, to_json(flags, profile, totals));
}

}  // namespace

void add_profile_command(CLI::App& root, int& exit_code) {
  CLI::App* command = root.add_subcommand("profile", "Kernels of a step on the GPU: calls, time and share, by CUPTI");
  auto flags = std::make_shared<ProfileFlags>();
  flags->run.model = "sarvam-30b";
  command->add_option("--model,MODEL", flags->run.model, "As for serve")->capture_default_str();
  add_model_flags(*command, flags->run.options);
  command->add_option("--decode", flags->decode_rows, "Decode rows of a step (default: 32, beside --prompts none)")
      ->check(CLI::Range(0, 128));
  command->add_option("--context", flags->run.context, "Tokens of a decode row, the new one included")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_option("--prompts", flags->run.prompts, "Tokens of each prompt in a step, beside the decode rows")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 16));
  command->add_option("--steps", flags->run.steps, "Steps to record")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--trace", flags->trace_path, "Write a timeline for chrome://tracing or Perfetto to this file");
  command->add_option("--json", flags->json_path, "Write the totals to this file");
  command->callback([flags, &exit_code] {
    const Status status = profile(*flags);
    if (status.ok()) return;
    std::fprintf(stderr, "vayu profile: %s\n", status.error().message.c_str());
    exit_code = status.error().kind == ErrorKind::kInvalidArgument ? 2 : 1;
  });
}

}  // namespace vayu
