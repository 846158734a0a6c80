#include "apps/local_model.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <random>
#include <sstream>

#include "apps/bench/step_batches.h"
#include "base/log.h"
#include "engine/cuda_executor.h"
#include "engine/engine.h"
#include "engine/model_executor.h"
#include "engine/profiled_executor.h"
#include "model/device_formats.h"
#include "ops/cuda/device_choice.h"

namespace vayu {
namespace {

constexpr double kMiB = 1 << 20;

Result<ops::KvFormat> parse_kv_format(const std::string& name) {
  if (name == "auto" || name == "f16" || name == "fp16") return ops::KvFormat::kF16;
  if (name == "bf16" || name == "bfloat16") return ops::KvFormat::kBF16;
  if (name == "f32" || name == "fp32") return ops::KvFormat::kF32;
  return field_error("--kv-cache-dtype", "--kv-cache-dtype {}: expected auto, f16, bf16 or f32", name);
}

Result<SchedulerPolicy> parse_policy(const std::string& name) {
  if (name == "mixed") return SchedulerPolicy::kMixed;
  if (name == "fixed-chunk") return SchedulerPolicy::kFixedChunk;
  if (name == "prefill-first") return SchedulerPolicy::kPrefillFirst;
  return field_error("--scheduler-policy", "--scheduler-policy {}: expected mixed, fixed-chunk or prefill-first", name);
}

// What the kernel says could be used without swapping.
int64_t available_memory_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  for (std::string line; std::getline(meminfo, line);) {
    std::istringstream words(line);
    if (words >> key >> kib && key == "MemAvailable:") return kib * 1024;
  }
  return int64_t{sysconf(_SC_AVPHYS_PAGES)} * sysconf(_SC_PAGESIZE);
}

// Tokens the KV pool holds when no flag says so: full contexts for every sequence, in at most an eighth of what memory
// is free. The pool is reserved, not touched: it takes real memory only as conversations fill it.
int64_t default_pool_tokens(const LocalModelOptions& options, int64_t context, int64_t bytes_per_token) {
  const int64_t wanted = options.max_num_seqs * context;
  const int64_t affordable = available_memory_bytes() / 8 / bytes_per_token;
  return std::max(std::min(wanted, affordable), std::min<int64_t>(context, 2048));
}

// The flags whose default depends on the device.
LocalModelOptions with_defaults(LocalModelOptions options, bool cuda) {
  if (options.max_num_seqs == 0) options.max_num_seqs = cuda ? 64 : 32;
  if (options.max_num_batched_tokens == 0) options.max_num_batched_tokens = cuda ? 4096 : 512;
  options.max_num_batched_tokens = std::max(options.max_num_batched_tokens, options.max_num_seqs);
  if (options.chunked_prefill_size == 0) options.chunked_prefill_size = options.max_num_batched_tokens;
  return options;
}

int32_t max_logits(const LocalModelOptions& options) { return std::max(64, options.max_num_seqs); }

Result<bool> use_cuda(const std::string& device) {
  if (device == "cpu") return false;
  if (device != "cuda" && device != "auto") {
    return field_error("--device", "--device {}: expected auto, cpu or cuda", device);
  }
  const Result<std::string> found = CudaExecutor::device_name();
  if (found.ok()) return true;
  if (device == "cuda") return found.error();
  const std::string sign = ops::find_device_sign();
  if (!CudaExecutor::built() && sign.empty()) return false;  // nobody misses anything
  const ops::CpuNotice notice = ops::cpu_notice(found.error(), sign);
  spdlog::log(notice.is_warning ? spdlog::level::warn : spdlog::level::info, "{}", notice.text);
  return false;
}

Result<ModelExecutorOptions> executor_options(const ModelFiles& files, const LocalModelOptions& options) {
  ModelExecutorOptions out;
  const model::Recipe& recipe = files.recipe;
  out.model.weight_format = files.weight_format;
  out.model.quantization_ignore = options.files.quantization_ignore;
  VAYU_ASSIGN_OR_RETURN(out.model.kv_format, parse_kv_format(options.kv_cache_dtype));
  if (options.backend != "cpu" && options.backend != "reference") {
    return field_error("--backend", "--backend {}: expected cpu or reference", options.backend);
  }
  if (files.weight_format == DataFormat::kF8E4M3) {
    return field_error("--quantization", "--quantization fp8 needs --device cuda");
  }
  out.num_threads = options.threads;
  out.model.ops.backend = options.backend == "cpu" ? ops::Backend::kCpu : ops::Backend::kReference;
  out.model.page_size = options.page_size;
  out.model.max_context =
      options.max_model_len > 0 ? static_cast<int32_t>(options.max_model_len) : recipe.config.max_context;
  const int64_t page_bytes = model::kv_bytes_per_page(recipe.config, out.model.kv_format, options.page_size);
  const int64_t pool_tokens =
      options.max_total_tokens > 0
          ? options.max_total_tokens
          : default_pool_tokens(options, out.model.max_context, std::max<int64_t>(1, page_bytes / options.page_size));
  out.model.num_pages = static_cast<int32_t>(std::max<int64_t>(1, pool_tokens / options.page_size));
  out.model.max_rows = options.max_num_seqs;
  out.model.max_step_tokens = options.max_num_batched_tokens;
  out.model.max_logits = max_logits(options);
  out.model.progress = options.progress;
  return out;
}

Result<CudaExecutorOptions> cuda_options(const ModelFiles& files, const LocalModelOptions& options) {
  CudaExecutorOptions out;
  const DataFormat weights = files.weight_format.value_or(DataFormat::kBF16);
  if (weights != DataFormat::kBF16 && weights != DataFormat::kF8E4M3) {
    return field_error(
        weights == DataFormat::kF16 || weights == DataFormat::kF32 ? "--dtype" : "--quantization",
        "weights in {} do not run with CUDA: bfloat16 (--dtype bfloat16) and fp8 (--quantization fp8) do",
        format_info(weights).name);
  }
  out.model.f8_weights = weights == DataFormat::kF8E4M3;
  out.model.widen_f8 = files.weight_format == DataFormat::kBF16;  // by --dtype
  out.model.quantization_ignore = options.files.quantization_ignore;
  const std::string& kv = options.kv_cache_dtype;
  if (kv == "fp8" || kv == "fp8_e4m3") {
    out.model.kv_format = ops::DeviceKvFormat::kF8E4M3;
  } else if (kv != "auto" && kv != "bf16" && kv != "bfloat16") {
    return field_error("--kv-cache-dtype", "--kv-cache-dtype {}: expected auto (bf16), bf16 or fp8 with CUDA", kv);
  }
  if (options.page_size != 16) {
    return field_error("--page-size", "--page-size {}: CUDA keeps 16 tokens a page", options.page_size);
  }
  if (options.max_total_tokens > 0) {  // 0 pages would be as many as fit
    out.model.num_pages = static_cast<int32_t>(std::max<int64_t>(1, options.max_total_tokens / options.page_size));
  }
  out.model.memory_fraction = options.memory_fraction;
  out.model.max_step_tokens = options.max_num_batched_tokens;
  out.model.max_rows = options.max_num_seqs;
  out.model.max_logits = max_logits(options);
  out.model.max_context = static_cast<int32_t>(options.max_model_len);
  out.graphs = options.cuda_graphs;
  out.overlap = options.overlap;
  out.num_threads = options.threads;
  out.model.progress = options.progress;
  return out;
}

void log_memory_plan(const ModelExecutor& executor) {
  const model::ModelMemory& memory = executor.model().memory();
  const ExecutorLimits& limits = executor.limits();
  spdlog::info(
      "memory: weights {:.0f} MiB, KV pool {:.0f} MiB for {} tokens in {} pages, workspace {:.0f} MiB (pool and "
      "workspace are reserved, and resident only where used)",
      memory.weight_bytes / kMiB, memory.kv_bytes / kMiB, int64_t{limits.num_pages} * limits.page_size,
      limits.num_pages, (memory.workspace_bytes + executor.logits_bytes()) / kMiB);
}

struct LoadedExecutor {
  std::unique_ptr<Executor> executor;
  StepProfiler* profiler = nullptr;  // the executor's
};

Result<LoadedExecutor> load_cuda_executor(ModelFiles& files, const LocalModelOptions& options) {
  VAYU_ASSIGN_OR_RETURN(const CudaExecutorOptions planned, cuda_options(files, options));
  VAYU_ASSIGN_OR_RETURN(const auto formats, model::DeviceFormats::plan(*files.weights, files.recipe, planned.model));
  spdlog::info("weights: {}", formats.summary());
  if (options.profiling) VAYU_RETURN_IF_ERROR(prepare_device_recorder());
  VAYU_ASSIGN_OR_RETURN(std::unique_ptr<CudaExecutor> executor,
                        CudaExecutor::load(std::move(files.recipe), *files.weights, planned));
  spdlog::info("memory: {}", executor->memory_plan());
  if (!options.profiling) return LoadedExecutor{std::move(executor)};
  VAYU_ASSIGN_OR_RETURN(auto recorder, open_device_recorder(executor->stream()));
  auto profiled = std::make_unique<ProfiledExecutor>(std::move(executor), std::move(recorder));
  StepProfiler* profiler = profiled.get();
  return LoadedExecutor{std::move(profiled), profiler};
}

Result<LoadedExecutor> load_executor(ModelFiles& files, const LocalModelOptions& options, bool cuda) {
  if (cuda) return load_cuda_executor(files, options);
  VAYU_ASSIGN_OR_RETURN(ModelExecutorOptions planned, executor_options(files, options));
  VAYU_ASSIGN_OR_RETURN(std::unique_ptr<ModelExecutor> executor,
                        ModelExecutor::load(std::move(files.recipe), *files.weights, std::move(planned)));
  log_memory_plan(*executor);
  return LoadedExecutor{std::move(executor)};
}

// One token through the whole path, so that the first user finds everything touched.
Status warm_up(EngineClient& engine, const Tokenizer& tokenizer) {
  Request request;
  request.prompt = tokenizer.encode("Hello", {});
  if (request.prompt.empty()) request.prompt = {0};
  request.sampling.max_tokens = 1;
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  request.cache_namespace = "warm-up";
  std::promise<Status> ended;
  auto submitted = engine.submit(std::move(request), [&](SequenceDelta&& delta) {
    if (delta.finish) ended.set_value(delta.error ? Status(*delta.error) : Status());
  });
  VAYU_RETURN_IF_ERROR(std::move(submitted));
  return ended.get_future().get();
}

}  // namespace

void add_model_flags(CLI::App& command, LocalModelOptions& o) {
  command.add_option("--served-model-name", o.served_model_name, "Name in the API (default: the file's name)");
  add_model_file_flags(command, o.files);
  command.add_option("--threads", o.threads, "CPU threads for a step (default: the cores this process may use)")
      ->check(CLI::Range(0, 1024));
  command.add_option("--device", o.device, "auto (CUDA where there is a Hopper GPU), cpu or cuda")
      ->capture_default_str();
  command.add_option("--backend", o.backend,
                     "On the CPU: cpu, or reference: the slow plain definition, for comparison");
  command.add_option("--kv-cache-dtype", o.kv_cache_dtype,
                     "auto, bf16; on the CPU also f16 (auto) and f32; with CUDA also fp8 (auto is bf16)");
  command
      .add_option("--mem-fraction-static,--gpu-memory-utilization", o.memory_fraction,
                  "With CUDA: share of the device's memory for weights, KV pages and workspace together")
      ->check(CLI::Range(0.05, 0.98))
      ->capture_default_str();
  command.add_flag_callback(
      "--disable-cuda-graph,--enforce-eager", [&o] { o.cuda_graphs = false; }, "Launch decode steps kernel by kernel");
  command.add_flag_callback(
      "--disable-overlap-schedule,--no-async-scheduling", [&o] { o.overlap = false; },
      "With CUDA: plan a step only when the one before it has landed");
  command.add_option("--page-size,--block-size", o.page_size, "Tokens a KV page")->check(CLI::Range(1, 1024));
  command
      .add_option("--max-model-len,--context-length", o.max_model_len,
                  "Longest prompt and answer together, in tokens (default: what the model declares)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
  command
      .add_option("--max-total-tokens", o.max_total_tokens,
                  "Tokens the KV pool holds (default: from --max-num-seqs and free memory)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 31));
  command
      .add_option("--max-num-seqs,--max-running-requests", o.max_num_seqs,
                  "Answers that run at once (default: 32, with CUDA 64)")
      ->check(CLI::Range(1, 65536));
  command
      .add_option("--max-num-batched-tokens", o.max_num_batched_tokens,
                  "Tokens in one step (default: 512, with CUDA 4096)")
      ->check(CLI::Range(1, 1 << 20));
  command
      .add_option("--chunked-prefill-size", o.chunked_prefill_size,
                  "Prompt tokens in one step (default: all of --max-num-batched-tokens)")
      ->check(CLI::Range(1, 1 << 20));
  command
      .add_option("--max-queued-requests", o.max_queued_requests, "Answers that may wait; more are refused with 429")
      ->check(CLI::Range(1, 1 << 20));
  command.add_option("--scheduler-policy", o.scheduler_policy, "mixed, fixed-chunk or prefill-first");
  command.add_flag_callback(
      "--disable-prefix-cache,--disable-radix-cache", [&o] { o.prefix_cache = false; }, "Compute every prompt afresh");
}

Result<DeviceSetup> open_device_model(const std::string& path, const LocalModelOptions& wanted) {
  VAYU_ASSIGN_OR_RETURN([[maybe_unused]] const std::string device, CudaExecutor::device_name());
  const LocalModelOptions options = with_defaults(wanted, true);
  VAYU_ASSIGN_OR_RETURN(ModelFiles files, open_model_files(path, options.files));
  VAYU_ASSIGN_OR_RETURN(const CudaExecutorOptions planned, cuda_options(files, options));
  if (options.files.load_format == "dummy") files.weights = bench::even_routing(std::move(files.weights));
  VAYU_ASSIGN_OR_RETURN(const auto formats, model::DeviceFormats::plan(*files.weights, files.recipe, planned.model));
  DeviceSetup setup{files.recipe.config, formats.mostly_f8(), nullptr};
  VAYU_ASSIGN_OR_RETURN(setup.executor, CudaExecutor::load(std::move(files.recipe), *files.weights, planned));
  return setup;
}

Result<LocalModel> open_local_model(const std::string& path, const LocalModelOptions& wanted, const Clock& clock) {
  VAYU_ASSIGN_OR_RETURN(const SchedulerPolicy policy, parse_policy(wanted.scheduler_policy));
  VAYU_ASSIGN_OR_RETURN(const bool cuda, use_cuda(wanted.device));
  const LocalModelOptions options = with_defaults(wanted, cuda);
  if (options.profiling && !cuda) spdlog::warn("--enable-profiling: steps are recorded with --device cuda alone");
  VAYU_ASSIGN_OR_RETURN(ModelFiles files, open_model_files(path, options.files));
  LocalModel local;
  local.name = options.served_model_name.empty() ? default_model_name(path) : options.served_model_name;
  local.tokenizer = files.tokenizer;
  local.chat_template = files.chat_template;
  local.bos_token = files.bos_token;
  local.eos_token = files.eos_token;
  const int64_t start_us = clock.now_us();
  VAYU_ASSIGN_OR_RETURN(LoadedExecutor loaded, load_executor(files, options, cuda));
  std::unique_ptr<Executor>& executor = loaded.executor;
  local.profiler = loaded.profiler;
  spdlog::info("weights: loaded in {:.2f} s", (clock.now_us() - start_us) * 1e-6);

  EngineConfig config{.model_name = local.name,
                      .max_open_requests = options.max_queued_requests + options.max_num_seqs};
  config.scheduler.policy = policy;
  config.scheduler.end_ids.assign(local.tokenizer->end_ids().begin(), local.tokenizer->end_ids().end());
  config.scheduler.max_num_batched_tokens = executor->limits().max_step_tokens;
  config.scheduler.chunked_prefill_size = options.chunked_prefill_size;
  config.scheduler.max_num_seqs = options.max_num_seqs;
  config.scheduler.max_queued = options.max_queued_requests;
  config.scheduler.max_logits_per_step = max_logits(options);
  config.scheduler.prefix_cache = options.prefix_cache;
  config.scheduler.tree.hash_seed = std::random_device()();  // so that nobody can aim at one bucket
  local.engine = std::make_shared<Engine>(std::move(config), std::move(executor), clock);
  VAYU_RETURN_IF_ERROR(warm_up(*local.engine, *local.tokenizer));
  return local;
}

}  // namespace vayu
