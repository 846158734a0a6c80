// vayu eval: perplexity of texts, one configuration against another, and the load of experts.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>

#include "apps/commands.h"
#include "apps/eval/evaluator.h"
#include "apps/eval/plot.h"
#include "apps/eval/progress_bar.h"
#include "apps/eval/report.h"
#include "apps/model_files.h"
#include "apps/run_record.h"
#include "engine/cuda_executor.h"

namespace vayu {
namespace {

using nlohmann::ordered_json;

// One of the two configurations.
struct SideFlags {
  std::string path;
  ModelFileOptions files;
  std::string kv_cache_dtype = "auto";
  std::string backend = "cpu";
};

struct EvalFlags {
  SideFlags evaluated, reference;
  // Of the reference, where they are not simply those of the same model.
  std::optional<std::string> against_load_format, against_hf_overrides;
  std::optional<uint64_t> against_dummy_seed;
  bool compare = false;
  std::vector<std::string> texts;
  eval::WindowOptions windows;
  int64_t max_tokens = 0;  // of each text; 0: all
  int threads = 0;
  std::string json_path, plot_path;
};

const std::vector<std::string> kKvFormats = {"auto", "f16", "fp16", "bf16", "bfloat16", "f32", "fp32", "fp8"};
const std::vector<std::string> kBackends = {"cpu", "reference", "cuda"};

ops::KvFormat kv_format(const std::string& name) {
  if (name == "bf16" || name == "bfloat16") return ops::KvFormat::kBF16;
  if (name == "f32" || name == "fp32") return ops::KvFormat::kF32;
  return ops::KvFormat::kF16;
}

// A reference that is the same model has its shape and its weights; all else starts from the defaults.
void complete_reference(EvalFlags& flags) {
  SideFlags& reference = flags.reference;
  if (reference.path.empty()) reference.path = flags.evaluated.path;
  const ModelFileOptions base = reference.path == flags.evaluated.path ? flags.evaluated.files : ModelFileOptions();
  reference.files.load_format = flags.against_load_format.value_or(base.load_format);
  reference.files.dummy_seed = flags.against_dummy_seed.value_or(base.dummy_seed);
  reference.files.hf_overrides = flags.against_hf_overrides.value_or(base.hf_overrides);
}

Status check_flags(const EvalFlags& flags) {
  const eval::WindowOptions& windows = flags.windows;
  if (windows.stride >= windows.window) {
    return field_error("--stride", "--stride {} leaves no context in a --window of {}", windows.stride, windows.window);
  }
  for (const std::string& path : {flags.json_path, flags.plot_path}) {  // before an hour's work, not after
    const auto folder = std::filesystem::path(path).parent_path();
    std::error_code error;
    if (!folder.empty() && !std::filesystem::is_directory(folder, error)) {
      return make_error(ErrorKind::kIo, "{}: cannot be written: no folder {}", path, folder.string());
    }
  }
  return {};
}

Result<ModelFiles> open_side(const SideFlags& side, const EvalFlags& flags) {
  VAYU_ASSIGN_OR_RETURN(ModelFiles files, open_model_files(side.path, side.files));
  const int32_t context = files.recipe.config.max_context;
  if (flags.windows.window > context) {
    return field_error("--window", "--window {} is more than the context of {}: {} tokens", flags.windows.window,
                       side.path, context);
  }
  return files;
}

// Both sides must give every id the same meaning.
Result<std::vector<eval::EvalText>> encode_texts(const EvalFlags& flags, const ModelFiles& evaluated,
                                                 const ModelFiles* reference) {
  if (reference && reference->recipe.config.vocab_size != evaluated.recipe.config.vocab_size) {
    return field_error("--against", "--against: {} has a vocabulary of {}, {} one of {}: they cannot be compared",
                       flags.reference.path, reference->recipe.config.vocab_size, flags.evaluated.path,
                       evaluated.recipe.config.vocab_size);
  }
  std::vector<eval::EvalText> texts;
  for (const std::string& path : flags.texts) {
    VAYU_ASSIGN_OR_RETURN(const std::string text, eval::read_text_file(path));
    VAYU_ASSIGN_OR_RETURN(eval::EvalText encoded,
                          eval::encode_text(path, text, *evaluated.tokenizer, flags.max_tokens));
    if (reference) {
      VAYU_ASSIGN_OR_RETURN(const eval::EvalText other,
                            eval::encode_text(path, text, *reference->tokenizer, flags.max_tokens));
      if (other.ids != encoded.ids) {
        return field_error("--against", "--against: {} and {} cut {} into different tokens: they cannot be compared",
                           flags.reference.path, flags.evaluated.path, path);
      }
    }
    texts.push_back(std::move(encoded));
  }
  return texts;
}

Result<std::unique_ptr<model::LogitModel>> load_cuda_side(const SideFlags& side, ModelFiles files,
                                                          const model::ModelLoadOptions& plan) {
  const DataFormat weights = files.weight_format.value_or(DataFormat::kBF16);
  if (weights != DataFormat::kBF16 && weights != DataFormat::kF8E4M3) {
    return field_error("--quantization", "weights in {} do not run with --backend cuda: bfloat16 and fp8 do",
                       format_info(weights).name);
  }
  if (side.kv_cache_dtype != "auto" && side.kv_cache_dtype != "bf16" && side.kv_cache_dtype != "fp8") {
    return field_error("--kv-cache-dtype", "--kv-cache-dtype {}: with --backend cuda expected auto (bf16), bf16 or fp8",
                       side.kv_cache_dtype);
  }
  CudaExecutorOptions options;
  options.model.f8_weights = weights == DataFormat::kF8E4M3;
  options.model.widen_f8 = files.weight_format == DataFormat::kBF16;  // by --dtype
  options.model.quantization_ignore = side.files.quantization_ignore;
  options.model.kv_format = side.kv_cache_dtype == "fp8" ? ops::DeviceKvFormat::kF8E4M3 : ops::DeviceKvFormat::kBF16;
  options.model.num_pages = plan.num_pages;
  options.model.max_step_tokens = plan.max_step_tokens;
  options.model.max_rows = plan.max_rows;
  options.model.max_logits = plan.max_logits;
  options.model.max_context = plan.max_context;
  options.model.progress = plan.progress;
  return load_cuda_logits(std::move(files.recipe), *files.weights, options);
}

Result<std::unique_ptr<model::LogitModel>> load_side(const SideFlags& side, ModelFiles files, const EvalFlags& flags,
                                                     ThreadPool& pool) {
  model::ModelLoadOptions load;
  load.ops.backend = side.backend == "reference" ? ops::Backend::kReference : ops::Backend::kCpu;
  load.ops.pool = &pool;
  load.kv_format = kv_format(side.kv_cache_dtype);
  load.weight_format = files.weight_format;
  load.quantization_ignore = side.files.quantization_ignore;
  eval::plan_model(flags.windows, files.recipe.config.vocab_size, load);
  eval::ProgressBar bar("loading", "MiB");
  load.progress = [&bar](int64_t done, int64_t total) { bar.show(done, total, 1 << 20); };
  if (side.backend == "cuda") return load_cuda_side(side, std::move(files), load);
  if (files.weight_format == DataFormat::kF8E4M3 || side.kv_cache_dtype == "fp8") {
    return field_error("--backend", "fp8 needs --backend cuda");
  }
  VAYU_ASSIGN_OR_RETURN(auto model, model::Model::load(std::move(files.recipe), *files.weights, load));
  return std::unique_ptr<model::LogitModel>(std::move(model));
}

eval::SideInfo side_info(const SideFlags& side) {
  const ModelFileOptions& files = side.files;
  eval::SideInfo info;
  info.name = default_model_name(side.path);
  const bool quantised = !files.quantization.empty() && files.quantization != "none";
  const bool dummy = files.load_format == "dummy";
  const std::string weights = quantised               ? files.quantization
                              : files.dtype != "auto" ? files.dtype
                              : dummy                 ? "bfloat16"
                                                      : "as stored";
  info.description = fmt::format("{}: weights {}{}, KV cache {}, backend {}", info.name, weights,
                                 dummy ? fmt::format(" (random, seed {})", files.dummy_seed) : "",
                                 side.kv_cache_dtype != "auto" ? side.kv_cache_dtype
                                 : side.backend == "cuda"      ? "bf16"
                                                               : "f16",
                                 side.backend);
  info.config = {{"path", side.path},
                 {"name", info.name},
                 {"load_format", files.load_format},
                 {"dummy_seed", dummy ? ordered_json(files.dummy_seed) : ordered_json()},
                 {"dtype", files.dtype},
                 {"quantization", quantised ? ordered_json(files.quantization) : ordered_json()},
                 {"quantization_ignore", files.quantization_ignore},
                 {"hf_overrides", files.hf_overrides.empty() ? ordered_json() : ordered_json(files.hf_overrides)},
                 {"mla_attention", files.mla_attention},
                 {"kv_cache_dtype", side.kv_cache_dtype},
                 {"backend", side.backend}};
  return info;
}

Status write_file(const std::string& path, const std::string& text) {
  if (path == "-") {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return {};
  }
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return make_error(ErrorKind::kIo, "{}: cannot be written", path);
  return {};
}

Status write_report(const EvalFlags& flags, const eval::EvalReport& report, const std::string& started_at,
                    int num_threads) {
  if (flags.json_path != "-") std::fputs(eval::format_table(report).c_str(), stdout);
  if (!flags.json_path.empty()) {
    ordered_json out = {{"name", "eval"},
                        {"command", command_line()},
                        {"started_at", started_at},
                        {"hardware", hardware()},
                        {"threads", num_threads},
                        {"max_tokens", flags.max_tokens > 0 ? ordered_json(flags.max_tokens) : ordered_json()}};
    out.update(eval::to_json(report));
    VAYU_RETURN_IF_ERROR(
        write_file(flags.json_path, out.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n"));
  }
  if (!flags.plot_path.empty()) VAYU_RETURN_IF_ERROR(write_file(flags.plot_path, eval::plot_svg(report)));
  return {};
}

Status score_texts(const std::vector<eval::EvalText>& texts, eval::Evaluator& evaluator, eval::EvalReport& report) {
  int64_t total = 0, done = 0;
  for (const eval::EvalText& text : texts) total += static_cast<int64_t>(text.ids.size()) - 1;
  eval::ProgressBar bar("scoring", "tokens");
  for (const eval::EvalText& text : texts) {
    const auto progress = [&](int64_t tokens) { bar.show(done += tokens, total); };
    VAYU_ASSIGN_OR_RETURN(eval::TextScore score, evaluator.score(text, progress));
    report.total.add(score);
    report.texts.push_back(std::move(score));
  }
  report.total.path = "all";
  report.expert_load = evaluator.expert_load();
  return {};
}

Status run_eval(EvalFlags& flags) {
  const std::string started_at = utc_now();
  complete_reference(flags);
  VAYU_RETURN_IF_ERROR(check_flags(flags));
  eval::EvalReport report{.evaluated = side_info(flags.evaluated), .windows = flags.windows};
  VAYU_ASSIGN_OR_RETURN(ModelFiles evaluated_files, open_side(flags.evaluated, flags));
  std::optional<ModelFiles> reference_files;
  if (flags.compare) {
    report.reference = side_info(flags.reference);
    auto opened = open_side(flags.reference, flags);
    if (!opened.ok()) return make_error(opened.error().kind, "--against: {}", opened.error().message);
    reference_files = std::move(*opened);
  }
  VAYU_ASSIGN_OR_RETURN(const std::vector<eval::EvalText> texts,
                        encode_texts(flags, evaluated_files, reference_files ? &*reference_files : nullptr));

  ThreadPool pool(flags.threads);
  std::unique_ptr<model::LogitModel> evaluated, reference;
  VAYU_ASSIGN_OR_RETURN(evaluated, load_side(flags.evaluated, std::move(evaluated_files), flags, pool));
  if (reference_files) {
    VAYU_ASSIGN_OR_RETURN(reference, load_side(flags.reference, std::move(*reference_files), flags, pool));
  }
  VAYU_ASSIGN_OR_RETURN(const auto evaluator,
                        eval::Evaluator::create(flags.windows, *evaluated, reference.get(), pool));
  VAYU_RETURN_IF_ERROR(score_texts(texts, *evaluator, report));
  return write_report(flags, report, started_at, pool.num_threads());
}

void add_text_options(CLI::App& app, EvalFlags& flags) {
  app.add_option("--text", flags.texts, "A text file; may be given several times")
      ->required()
      ->type_size(1)
      ->allow_extra_args(false);
  app.add_option("--window", flags.windows.window, "Tokens of a window, each a sequence of its own")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("--stride", flags.windows.stride,
                 "Tokens from one window to the next; window - stride is the least context of a scored token")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--max-tokens", flags.max_tokens, "Only the first tokens of each text")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 40));
  app.add_option("--max-num-batched-tokens", flags.windows.max_step_tokens, "Tokens of all windows in one step")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--json", flags.json_path, "Write all figures to this file; - prints them in place of the table");
  app.add_option("--plot", flags.plot_path, "Draw perplexity and expert load into this file (SVG)");
}

void add_model_options(CLI::App& app, EvalFlags& flags) {
  SideFlags& side = flags.evaluated;
  app.add_option("MODEL", side.path, "A .gguf file, a folder, or with --load-format dummy a built-in geometry")
      ->required();
  add_model_file_flags(app, side.files);
  app.add_option("--kv-cache-dtype", side.kv_cache_dtype, "auto (cpu f16, cuda bf16), f16, bf16, f32; with cuda fp8")
      ->check(CLI::IsMember(kKvFormats));
  app.add_option("--backend", side.backend, "cpu, cuda, or reference: the slow plain definition, for comparison")
      ->check(CLI::IsMember(kBackends));
  app.add_option("--threads", flags.threads, "CPU threads for a step (default: the cores this process may use)")
      ->check(CLI::Range(0, 1024));
}

void add_reference_options(CLI::App& app, EvalFlags& flags) {
  SideFlags& side = flags.reference;
  std::vector<CLI::Option*> options = {
      app.add_option("--against", side.path,
                     "Compare with this model (default with any --against-...: MODEL). Flags of MODEL do not apply "
                     "to it, but for what weights MODEL has: load format, seed and overrides"),
      app.add_option("--against-load-format", flags.against_load_format, "auto or dummy")
          ->check(CLI::IsMember({"auto", "dummy"})),
      app.add_option("--against-dummy-seed", flags.against_dummy_seed, "Seed of its random weights"),
      app.add_option("--against-hf-overrides", flags.against_hf_overrides, "JSON object laid over its config.json"),
      app.add_option("--against-dtype", side.files.dtype, "What its weights are kept in"),
      app.add_option("--against-quantization", side.files.quantization, "What its weights are quantised to"),
      app.add_option("--against-quantization-ignore", side.files.quantization_ignore,
                     "Tensors that its quantisation leaves as stored")
          ->type_size(1)
          ->allow_extra_args(false),
      app.add_option("--against-mla-attention", side.files.mla_attention, "auto, absorbed or expanded"),
      app.add_option("--against-kv-cache-dtype", side.kv_cache_dtype,
                     "auto (cpu f16, cuda bf16), f16, bf16, f32; with cuda fp8")
          ->check(CLI::IsMember(kKvFormats)),
      app.add_option("--against-backend", side.backend, "cpu, cuda or reference")->check(CLI::IsMember(kBackends)),
  };
  for (CLI::Option* option : options)
    option->group("Comparison")->each([&flags](const std::string&) { flags.compare = true; });
}

}  // namespace

void add_eval_command(CLI::App& root, int& exit_code) {
  CLI::App* command = root.add_subcommand("eval", "Measure a model on texts: perplexity, comparison, expert load");
  auto flags = std::make_shared<EvalFlags>();
  add_model_options(*command, *flags);
  add_text_options(*command, *flags);
  add_reference_options(*command, *flags);
  command->callback([flags, &exit_code] {
    const Status status = run_eval(*flags);
    if (status.ok()) return;
    std::fprintf(stderr, "vayu eval: %s\n", status.error().message.c_str());
    exit_code = status.error().kind == ErrorKind::kInvalidArgument ? 2 : 1;
  });
}

}  // namespace vayu
