// vayu bench steps: whole steps of a model in device memory, through the executor a server uses: decode steps (a graph
// and greedy sampling) and single prompts. Wall time is launch() and wait() as the engine thread sees them; device time
// is the same work between two events behind a head start of the host.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/bench/step_batches.h"
#include "apps/bench_kernels.h"
#include "apps/bench_steps.h"
#include "apps/commands.h"
#include "apps/run_record.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/cuda_executor.h"

namespace vayu {
namespace {

using bench::MeasuredStep;
using nlohmann::ordered_json;

struct BenchStepsFlags {
  std::string model = "sarvam-30b";
  LocalModelOptions options;
  std::vector<int32_t> decode_rows;
  std::vector<int32_t> prompts;
  int32_t context = 3650;
  int32_t repeats = 20;
  std::string json_path;
};

struct StepFloor {
  double bytes = 0;
  double us = 0;  // the larger of memory and matrix units
};

// The least a step must do: experts touched as random choices touch them, every other weight read once.
StepFloor floor_of(const model::ModelConfig& c, bool f8, bool kv_f8, double rows, double tokens, double context,
                   double read_gb_s) {
  const double h = c.hidden, experts = c.moe.router.num_experts, k = c.moe.router.top_k;
  const double moe_layers = c.has_moe() ? c.num_layers - (c.ffn > 0 ? 1 : 0) : 0;
  const double latent = c.has_mla() ? c.num_q_heads * double(c.mla.nope_dim + c.mla.v_dim) * c.mla.latent_dim : 0;
  const double attention = c.num_layers * (h * double(c.qkv_width() + c.attention_width()) + latent);
  const double dense = (c.num_layers - moe_layers) * 3 * h * c.ffn + moe_layers * 3 * h * c.moe.shared_ffn;
  const double expert = 3 * h * c.moe.expert_ffn;
  const double touched = experts > 0 ? experts * (1 - std::pow(1 - k / experts, tokens)) : 0;
  const double head = h * c.vocab_size;
  const double kv_token =
      c.num_layers * (c.has_mla() ? 1.0 : 2.0) * static_cast<double>(c.kv_width()) * (kv_f8 ? 1 : 2);
  StepFloor floor;
  floor.bytes = (attention + dense + moe_layers * touched * expert + head) * (f8 ? 1 : 2) + rows * context * kv_token;
  const double linear = 2 * tokens * (attention + dense + moe_layers * k * expert) + 2 * rows * head;
  const double keys = rows == tokens ? rows * context : tokens * (tokens + 1) / 2;
  const double attend = 4 * c.num_layers * static_cast<double>(c.attention_width()) * keys;
  const double arithmetic_us =
      linear / ((f8 ? bench::kF8Tflops : bench::kBf16Tflops) * 1e6) + attend / (bench::kBf16Tflops * 1e6);
  floor.us = std::max(arithmetic_us, floor.bytes / (read_gb_s * 1e3));
  return floor;
}

struct StepReport {
  std::string name;
  int32_t tokens = 0;
  MeasuredStep time;
  StepFloor floor;
};

Result<std::vector<StepReport>> run_steps(BenchStepsFlags& flags, DeviceSetup& setup, double read_gb_s) {
  const ExecutorLimits& limits = setup.executor->limits();
  const int32_t longest = *std::max_element(flags.prompts.begin(), flags.prompts.end());
  const int32_t pages_each = (std::max(longest, flags.context) + limits.page_size - 1) / limits.page_size;
  const bool kv_f8 = flags.options.kv_cache_dtype.starts_with("fp8");
  std::vector<StepReport> reports;
  const auto measure = [&](std::string name, bench::StepBatch& batch, double context) -> Status {
    const int32_t tokens = batch.batch().num_tokens();
    VAYU_ASSIGN_OR_RETURN(const MeasuredStep time, bench::measure_step(*setup.executor, batch, flags.repeats));
    reports.push_back(
        {std::move(name), tokens, time,
         floor_of(setup.config, setup.f8_weights, kv_f8, batch.batch().num_rows(), tokens, context, read_gb_s)});
    return {};
  };
  for (const int32_t tokens : flags.prompts) {
    bench::StepBatch batch(limits.vocab_size, limits.page_size, pages_each);
    batch.add(0, 0, tokens);
    VAYU_RETURN_IF_ERROR(measure(fmt::format("prefill_{}", tokens), batch, tokens));
  }
  const int32_t most = *std::max_element(flags.decode_rows.begin(), flags.decode_rows.end());
  VAYU_RETURN_IF_ERROR(bench::fill_contexts(*setup.executor, most, flags.context, pages_each));
  for (const int32_t rows : flags.decode_rows) {
    bench::StepBatch batch(limits.vocab_size, limits.page_size, pages_each);
    for (int32_t row = 0; row < rows; ++row) batch.add(row, flags.context - 1, 1);
    VAYU_RETURN_IF_ERROR(measure(fmt::format("decode_{}", rows), batch, flags.context));
  }
  return reports;
}

ordered_json to_json(const StepReport& r) {
  return {{"tokens", r.tokens},
          {"wall_us", r.time.wall_us},
          {"device_us", r.time.device_us},
          {"host_share", 1 - r.time.device_us / r.time.wall_us},
          {"floor_us", r.floor.us},
          {"floor_bytes", r.floor.bytes},
          {"share_of_floor", r.floor.us / r.time.device_us},
          {"tokens_per_s", r.tokens / r.time.wall_us * 1e6}};
}

Status write_json(const BenchStepsFlags& flags, const std::vector<StepReport>& reports, const std::string& device,
                  const std::string& memory_plan, double load_s, double read_gb_s) {
  ordered_json steps;
  for (const StepReport& report : reports) steps[report.name] = to_json(report);
  const ordered_json out = {{"name", "bench_steps"}, {"command", command_line()}, {"hardware", device},
                            {"model", flags.model},  {"context", flags.context},  {"memory_plan", memory_plan},
                            {"load_s", load_s},      {"read_gb_s", read_gb_s},    {"steps", std::move(steps)}};
  if (flags.json_path == "-") {
    fmt::print("{}\n", out.dump(2));
    return {};
  }
  std::ofstream file(flags.json_path, std::ios::binary);
  file << out.dump(2) << "\n";
  file.close();
  if (!file) return make_error(ErrorKind::kIo, "cannot write {}", flags.json_path);
  return {};
}

Status bench_steps(BenchStepsFlags& flags) {
  if (flags.decode_rows.empty()) flags.decode_rows = {1, 32, 64};
  if (flags.prompts.empty()) flags.prompts = {3584};
  VAYU_ASSIGN_OR_RETURN(const std::string device, CudaExecutor::device_name());
  VAYU_ASSIGN_OR_RETURN(const double read_gb_s, bench::read_speed_gb_s());
  const SteadyClock clock;
  const int64_t start_us = clock.now_us();
  const int32_t most = *std::max_element(flags.decode_rows.begin(), flags.decode_rows.end());
  const int32_t longest = std::max(*std::max_element(flags.prompts.begin(), flags.prompts.end()), flags.context);
  VAYU_ASSIGN_OR_RETURN(DeviceSetup setup, bench::open_for_steps(flags.model, flags.options, most, longest, longest));
  const double load_s = (clock.now_us() - start_us) * 1e-6;
  const std::string plan = setup.executor->memory_plan();
  spdlog::info("loaded in {:.2f} s; {}", load_s, plan);
  VAYU_ASSIGN_OR_RETURN(const std::vector<StepReport> reports, run_steps(flags, setup, read_gb_s));
  if (flags.json_path != "-") {
    fmt::print("{:<14}{:>11}{:>11}{:>8}{:>11}{:>10}{:>12}\n", "step", "device us", "wall us", "host", "floor us",
               "of floor", "tokens/s");
    for (const StepReport& r : reports) {
      fmt::print("{:<14}{:>11.1f}{:>11.1f}{:>7.1f}%{:>11.1f}{:>9.0f}%{:>12.0f}\n", r.name, r.time.device_us,
                 r.time.wall_us, 100 * (1 - r.time.device_us / r.time.wall_us), r.floor.us,
                 100 * r.floor.us / r.time.device_us, r.tokens / r.time.wall_us * 1e6);
    }
  }
  return flags.json_path.empty() ? Status() : write_json(flags, reports, device, plan, load_s, read_gb_s);
}

}  // namespace

void add_bench_steps_command(CLI::App& bench, int& exit_code) {
  CLI::App* steps = bench.add_subcommand("steps", "Time whole decode steps and prompts on the GPU, without a server");
  auto flags = std::make_shared<BenchStepsFlags>();
  steps->add_option("--model,MODEL", flags->model, "As for serve")->capture_default_str();
  add_model_flags(*steps, flags->options);
  steps->add_option("--decode", flags->decode_rows, "Decode steps of that many rows (default: 1,32,64)")
      ->delimiter(',')
      ->check(CLI::Range(1, 128));
  steps->add_option("--context", flags->context, "Tokens of a decode row, the new one included")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  steps->add_option("--prefill", flags->prompts, "Prompts of that many tokens (default: 3584)")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 16));
  steps->add_option("--repeats", flags->repeats, "Steps behind each median")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  steps->add_option("--json", flags->json_path, "Write all figures to this file; - prints them in place of the table");
  steps->callback([flags, &exit_code] {
    const Status status = bench_steps(*flags);
    if (status.ok()) return;
    std::fprintf(stderr, "vayu bench steps: %s\n", status.error().message.c_str());
    exit_code = status.error().kind == ErrorKind::kInvalidArgument ? 2 : 1;
  });
}

}  // namespace vayu
