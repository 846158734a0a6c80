// vayu profile: what the GPU does in a step, kernel by kernel: in steps of given make-up, or in those of a running
// server.
#include "apps/profile.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/commands.h"
#include "apps/run_record.h"

namespace vayu {
namespace {

using bench::LiveProfile;
using nlohmann::ordered_json;

struct ProfileFlags {
  bench::ProfileOptions run;
  std::optional<int32_t> decode_rows;
  bench::LiveProfileOptions live;             // url empty: steps of our own
  std::vector<const CLI::Option*> own_steps;  // what describes those
  std::string trace_path;
  std::string json_path;
};

Status write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return make_error(ErrorKind::kIo, "cannot write {}", path);
  return {};
}

std::string to_json(const std::string& model, const ProfileTable& table) {
  ordered_json kernels = ordered_json::array();
  for (const KernelShare& k : table.kernels) {
    kernels.push_back({{"name", k.name}, {"calls", k.calls}, {"own_us", k.own_us}, {"us", k.us}});
  }
  const ordered_json out = {{"name", "profile"},        {"command", command_line()},
                            {"hardware", table.device}, {"model", model},
                            {"steps", table.num_steps}, {"tokens", table.tokens},
                            {"rows", table.rows},       {"step_us", table.step_us},
                            {"busy_us", table.busy_us}, {"kernels", std::move(kernels)}};
  return out.dump(2) + "\n";
}

Status report(const ProfileFlags& flags, const std::string& model, const ProfileTable& table,
              const std::string& trace) {
  std::fputs(to_text(table).c_str(), stdout);
  if (!flags.trace_path.empty()) VAYU_RETURN_IF_ERROR(write_file(flags.trace_path, trace));
  return flags.json_path.empty() ? Status() : write_file(flags.json_path, to_json(model, table));
}

Status profile_live(ProfileFlags& flags) {
  for (const CLI::Option* option : flags.own_steps) {
    if (option->count() > 0) {
      return field_error("--url", "--url records the steps a server takes anyway: {} does not go with it",
                         option->get_name());
    }
  }
  flags.live.steps = flags.run.steps;
  flags.live.trace = !flags.trace_path.empty();
  VAYU_ASSIGN_OR_RETURN(const LiveProfile live, bench::profile_server(flags.live));
  if (live.table.num_steps == 0) return make_error(ErrorKind::kUnavailable, "{}", live.message);
  if (!live.message.empty()) std::fprintf(stderr, "vayu profile: %s\n", live.message.c_str());
  return report(flags, live.model, live.table, live.trace);
}

Status profile(ProfileFlags& flags) {
  if (!flags.live.url.empty()) return profile_live(flags);
  flags.run.decode_rows = flags.decode_rows.value_or(flags.run.prompts.empty() ? 32 : 0);
  if (flags.run.decode_rows == 0 && flags.run.prompts.empty()) {
    return field_error("--decode", "--decode 0 without --prompts: a step of nothing");
  }
  VAYU_ASSIGN_OR_RETURN(const StepProfile profile, bench::profile_steps(flags.run));
  return report(flags, flags.run.model, profile_table(profile),
                flags.trace_path.empty() ? "" : chrome_trace(profile.records, profile.spans));
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
  for (const CLI::Option* option : command->get_options()) {
    if (option != command->get_help_ptr()) flags->own_steps.push_back(option);
  }
  CLI::Option* url = command->add_option("--url", flags->live.url,
                                         "Record the next steps of this server (`vayu serve --enable-profiling`) "
                                         "in place of all that: goes with what stands below alone");
  command->add_option("--api-key", flags->live.api_key, "With --url: sent as a bearer token")->envname("VAYU_API_KEY");
  command->add_option("--timeout", flags->live.timeout_s, "With --url: seconds in which the steps must run")
      ->check(CLI::Range(0.01, 120.0))
      ->capture_default_str()
      ->needs(url);
  command->add_option("--steps", flags->run.steps, "Steps to record (of a server up to 200)")
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
