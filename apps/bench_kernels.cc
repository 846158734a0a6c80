// vayu bench kernels: every operator of a layer beside its ceiling, and with --baseline beside what PyTorch takes for
// the same.
#include "apps/bench_kernels.h"

#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/bench/kernel_baseline.h"
#include "apps/commands.h"
#include "apps/model_files.h"
#include "apps/run_record.h"
#include "model/geometries.h"

namespace vayu {
namespace {

using bench::Baseline;
using bench::KernelBaselines;
using bench::KernelBenchResult;
using bench::OperatorTime;
using bench::ShapeResult;
using nlohmann::ordered_json;

struct BenchKernelsFlags {
  bench::KernelBenchOptions run;
  std::string dtype = "fp8";
  std::string kv_cache_dtype = "auto";
  std::string json_path;
  std::string baseline_path;
};

// Where one launch of ours does the routed experts and the shared one, so does the sum.
std::optional<Baseline> baseline_of(const KernelBaselines& baselines, const ShapeResult& shape, const std::string& op) {
  auto found = baselines.find(shape.name, op);
  bool shared_apart = false;
  for (const OperatorTime& other : shape.operators) shared_apart |= other.name == "shared_expert";
  if (!found || op != "routed_experts" || shared_apart) return found;
  if (const auto shared = baselines.find(shape.name, "shared_expert")) {
    found->eager_us += shared->eager_us;
    found->best_us += shared->best_us;
  }
  return found;
}

double floor_us(const OperatorTime& op, const KernelBenchResult& result) {
  return std::max(op.cost.bytes / (result.memory.read_gb_s * 1e3), op.cost.flops / (op.cost.peak_tflops * 1e6));
}

bool by_arithmetic(const OperatorTime& op, const KernelBenchResult& result) {
  return op.cost.flops / (op.cost.peak_tflops * 1e6) > op.cost.bytes / (result.memory.read_gb_s * 1e3);
}

std::string baseline_columns(const std::optional<Baseline>& baseline, double us) {
  if (!baseline || us <= 0) return "";
  return fmt::format("{:>11.1f}{:>9.1f}{:>7.1f}x{:>7.1f}x", baseline->eager_us, baseline->best_us,
                     baseline->eager_us / us, baseline->best_us / us);
}

void print_shape(const ShapeResult& shape, const KernelBenchResult& result, const KernelBaselines& baselines) {
  fmt::print("\n{}: {} tokens{}, {:.1f} experts touched a layer\n", shape.name, shape.tokens,
             shape.context > 0 ? fmt::format(" at context {}", shape.context) : "", shape.experts_touched);
  fmt::print("{:<16}{:>9}{:>10}{:>10}{:>14}{:>9}{}\n", "operator", "us", "MB", "GFLOP", "rate", "of peak",
             baselines.empty() ? "" : "  eager us  best us   over eager/best");
  bool outside = false;
  for (const OperatorTime& op : shape.operators) {
    if (!op.in_layer && !outside) {
      outside = true;
      const auto layer = baselines.find(shape.name, "layer");
      fmt::print("{:<16}{:>9.1f}\n", "sum", shape.sum_us);
      fmt::print("{:<16}{:>9.1f}{:43}{}\n", "layer", shape.layer_us, "", baseline_columns(layer, shape.layer_us));
    }
    const std::string rate = by_arithmetic(op, result) ? fmt::format("{:.0f} TFLOP/s", op.cost.flops / op.us * 1e-6)
                                                       : fmt::format("{:.0f} GB/s", op.cost.bytes / op.us * 1e-3);
    fmt::print("{:<16}{:>9.1f}{:>10.1f}{:>10.1f}{:>14}{:>8.0f}%{}\n", op.name, op.us, op.cost.bytes * 1e-6,
               op.cost.flops * 1e-9, rate, 100 * floor_us(op, result) / op.us,
               baseline_columns(baseline_of(baselines, shape, op.name), op.us));
  }
}

void put_baseline(ordered_json& out, const std::optional<Baseline>& baseline, double us) {
  if (!baseline) return;
  out["baseline_eager_us"] = baseline->eager_us;
  out["baseline_us"] = baseline->best_us;
  out["speedup"] = us > 0 ? baseline->best_us / us : 0;
}

ordered_json shape_json(const ShapeResult& shape, const KernelBenchResult& result, const KernelBaselines& baselines) {
  ordered_json operators;
  for (const OperatorTime& op : shape.operators) {
    ordered_json& out = operators[op.name];
    out = {{"us", op.us},
           {"bytes", op.cost.bytes},
           {"flops", op.cost.flops},
           {"share_of_ceiling", op.us > 0 ? floor_us(op, result) / op.us : 0}};
    put_baseline(out, baseline_of(baselines, shape, op.name), op.us);
  }
  ordered_json layer = {{"us", shape.layer_us}};
  put_baseline(layer, baselines.find(shape.name, "layer"), shape.layer_us);
  return {{"tokens", shape.tokens},
          {"context", shape.context},
          {"experts_touched", std::round(shape.experts_touched * 100) / 100},
          {"operators", std::move(operators)},
          {"sum_us", shape.sum_us},
          {"layer", std::move(layer)}};
}

Status write_json(const BenchKernelsFlags& flags, const KernelBenchResult& result, const KernelBaselines& baselines) {
  ordered_json shapes;
  for (const ShapeResult& shape : result.shapes) shapes[shape.name] = shape_json(shape, result, baselines);
  const ordered_json out = {{"name", "bench_kernels"},
                            {"command", command_line()},
                            {"hardware", result.device},
                            {"model", flags.run.model},
                            {"dtype", flags.dtype},
                            {"kv_cache_dtype", flags.run.kv_f8 ? "fp8" : "bf16"},
                            {"ceilings",
                             {{"read_gb_s", result.memory.read_gb_s},
                              {"copy_gb_s", result.memory.copy_gb_s},
                              {"bf16_tflops", bench::kBf16Tflops},
                              {"fp8_tflops", bench::kF8Tflops}}},
                            {"shapes", std::move(shapes)}};
  std::ofstream file(flags.json_path, std::ios::binary);
  file << out.dump(2) << "\n";
  file.close();
  if (!file) return make_error(ErrorKind::kIo, "cannot write {}", flags.json_path);
  return {};
}

Result<KernelBaselines> read_baselines(const BenchKernelsFlags& flags) {
  if (flags.baseline_path.empty()) return KernelBaselines();
  VAYU_ASSIGN_OR_RETURN(const ModelFiles files, open_model_files(flags.run.model, {.load_format = "dummy"}));
  return KernelBaselines::read(flags.baseline_path, flags.run.model, files.recipe.config,
                               flags.run.decode_rows.empty() ? 0 : flags.run.context);
}

Status bench_kernels(BenchKernelsFlags& flags) {
  if (!model::find_geometry(flags.run.model)) {
    return field_error("--model", "--model {}: not a built-in geometry", flags.run.model);
  }
  if (flags.run.prompts.empty() && flags.run.decode_rows.empty()) flags.run.prompts = {3584};
  flags.run.f8 = flags.dtype == "fp8";
  flags.run.kv_f8 = flags.kv_cache_dtype == "auto" ? flags.run.f8 : flags.kv_cache_dtype == "fp8";
  VAYU_ASSIGN_OR_RETURN(const KernelBaselines baselines, read_baselines(flags));
  VAYU_ASSIGN_OR_RETURN(const KernelBenchResult result, bench::measure_kernels(flags.run));
  fmt::print("{}: read {:.0f} GB/s, copy {:.0f} GB/s; {} {} weights, {} KV; medians, cold second-level cache\n",
             result.device, result.memory.read_gb_s, result.memory.copy_gb_s, flags.run.model, flags.dtype,
             flags.run.kv_f8 ? "fp8" : "bf16");
  for (const ShapeResult& shape : result.shapes) print_shape(shape, result, baselines);
  return flags.json_path.empty() ? Status() : write_json(flags, result, baselines);
}

}  // namespace

void add_bench_kernels_command(CLI::App& bench, int& exit_code) {
  CLI::App* kernels = bench.add_subcommand("kernels", "Time every operator of a layer on the GPU, beside its ceiling");
  auto flags = std::make_shared<BenchKernelsFlags>();
  kernels->add_option("--model", flags->run.model, "A built-in geometry; weights are seeded")->capture_default_str();
  kernels->add_option("--tokens", flags->run.prompts, "Prompts of that many tokens (default: 3584)")
      ->delimiter(',')
      ->check(CLI::Range(1, 65536));
  kernels->add_option("--decode", flags->run.decode_rows, "Decode steps of that many rows")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  kernels->add_option("--context", flags->run.context, "Tokens of a decode row, the new one included")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  kernels->add_option("--dtype", flags->dtype, "Weights and activations: fp8 or bf16")
      ->check(CLI::IsMember({"fp8", "bf16"}))
      ->capture_default_str();
  kernels->add_option("--kv-cache-dtype", flags->kv_cache_dtype, "auto (as --dtype), fp8 or bf16")
      ->check(CLI::IsMember({"auto", "fp8", "bf16"}));
  kernels->add_option("--seed", flags->run.seed, "Of the weights");
  kernels->add_option("--json", flags->json_path, "Write all figures to this file");
  kernels->add_option(
      "--baseline", flags->baseline_path,
      "What tools/bench_layer_baseline.py wrote on this machine for the same model and context: adds its columns");
  kernels->callback([flags, &exit_code] {
    const Status status = bench_kernels(*flags);
    if (status.ok()) return;
    std::fprintf(stderr, "vayu bench kernels: %s\n", status.error().message.c_str());
    exit_code = status.error().kind == ErrorKind::kInvalidArgument ? 2 : 1;
  });
}

}  // namespace vayu
