#include "apps/model_files.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "apps/placeholder_tokenizer.h"
#include "base/log.h"
#include "model/dummy_checkpoint.h"
#include "model/geometries.h"
#include "model/registry.h"
#include "model/weight_plan.h"
#include "tokenizer/tokenizer_json.h"

namespace vayu {
namespace {

Result<std::string> read_text_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (!in || !(text << in.rdbuf())) return make_error(ErrorKind::kIo, "{}: cannot be read", path);
  return text.str();
}

Result<std::optional<DataFormat>> weight_format(const ModelFileOptions& options) {
  constexpr std::pair<std::string_view, DataFormat> kDtypes[] = {
      {"float32", DataFormat::kF32}, {"float16", DataFormat::kF16}, {"bfloat16", DataFormat::kBF16},
      {"fp32", DataFormat::kF32},    {"half", DataFormat::kF16},    {"bf16", DataFormat::kBF16},
  };
  constexpr std::pair<std::string_view, DataFormat> kQuantized[] = {
      {"q8_0", DataFormat::kQ8_0}, {"q4_0", DataFormat::kQ4_0}, {"q4_1", DataFormat::kQ4_1},
      {"q5_0", DataFormat::kQ5_0}, {"q5_1", DataFormat::kQ5_1}, {"q4_k", DataFormat::kQ4_K},
      {"q5_k", DataFormat::kQ5_K}, {"q6_k", DataFormat::kQ6_K}, {"fp8", DataFormat::kF8E4M3},
  };
  std::optional<DataFormat> format;
  for (const auto& [name, value] : kDtypes) {
    if (options.dtype == name) format = value;
  }
  if (!format && options.dtype != "auto") {
    return field_error("--dtype", "--dtype {}: expected auto, float32, float16 or bfloat16", options.dtype);
  }
  if (options.quantization.empty() || options.quantization == "none") return format;
  for (const auto& [name, value] : kQuantized) {
    if (options.quantization == name) return std::optional(value);
  }
  return field_error("--quantization",
                     "--quantization {}: expected fp8 (CUDA), q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k or q6_k (CPU)",
                     options.quantization);
}

Status check_ignored(const ModelFileOptions& options, const loader::Checkpoint& weights, const model::Recipe& recipe) {
  if (options.quantization_ignore.empty()) return {};
  if (options.quantization.empty() || options.quantization == "none") {
    return field_error("--quantization-ignore", "--quantization-ignore needs --quantization: what is it exempt from?");
  }
  const Status checked = model::check_patterns(options.quantization_ignore, weights, recipe);
  if (checked.ok() || checked.error().kind != ErrorKind::kInvalidArgument) return checked;
  return field_error("--quantization-ignore", "--quantization-ignore {}", checked.error().message);
}

Result<loader::ModelSource> open_source(const std::string& path, bool dummy) {
  const model::Geometry* geometry = model::find_geometry(path);
  if (!geometry) return loader::open_model(path, {.weights = !dummy});
  if (!dummy) {
    return field_error("--load-format", "{} is a built-in geometry without weights: add --load-format dummy", path);
  }
  loader::ModelSource source;
  source.path = path;
  source.config_text = geometry->config_json;
  VAYU_ASSIGN_OR_RETURN(source.config, loader::JsonConfig::parse(source.config_text, path));
  return source;
}

// --hf-overrides as a merge patch (RFC 7396) over config.json.
Status override_config(const std::string& overrides, loader::ModelSource& source) {
  if (overrides.empty()) return {};
  if (!source.config) return field_error("--hf-overrides", "--hf-overrides: {} has no config.json", source.path);
  const auto patch = nlohmann::json::parse(overrides, nullptr, false);
  if (!patch.is_object()) return field_error("--hf-overrides", "--hf-overrides: not a JSON object");
  nlohmann::json merged = source.config->json();
  merged.merge_patch(patch);
  source.config_text = merged.dump();
  VAYU_ASSIGN_OR_RETURN(source.config, loader::JsonConfig::parse(source.config_text, source.config->file()));
  return {};
}

Status set_mla_form(const std::string& name, model::Recipe& recipe) {
  model::MlaForm& form = recipe.config.mla.form;
  if (name == "auto") {
    form = model::MlaForm::kAuto;
  } else if (name == "absorbed") {
    form = model::MlaForm::kAbsorbed;
  } else if (name == "expanded") {
    form = model::MlaForm::kExpanded;
  } else {
    return field_error("--mla-attention", "--mla-attention {}: expected auto, absorbed or expanded", name);
  }
  return {};
}

// Text of the token that `key` names; empty when the file has no such key.
std::string token_text(const loader::GgufFile& file, std::string_view key, const Tokenizer& tokenizer) {
  const auto id = file.get_int_or(key, kNoToken);
  return id.ok() ? std::string(tokenizer.token_bytes(static_cast<TokenId>(*id))) : std::string();
}

// A special token of tokenizer_config.json: text, or an object with its content.
std::string token_entry(const nlohmann::json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end()) return {};
  if (found->is_string()) return found->get<std::string>();
  return found->is_object() ? found->value("content", "") : "";
}

Status open_tokenizer(const loader::ModelSource& source, bool dummy, ModelFiles& files) {
  if (source.gguf) {
    VAYU_ASSIGN_OR_RETURN(const std::string kind, source.gguf->get_string_or("tokenizer.ggml.model", ""));
    if (kind == "none") {  // a file for token ids alone
      VAYU_ASSIGN_OR_RETURN(files.tokenizer, placeholder_tokenizer(files.recipe.config.vocab_size));
      return {};
    }
    VAYU_ASSIGN_OR_RETURN(files.tokenizer, load_tokenizer(*source.gguf));
    files.bos_token = token_text(*source.gguf, "tokenizer.ggml.bos_token_id", *files.tokenizer);
    files.eos_token = token_text(*source.gguf, "tokenizer.ggml.eos_token_id", *files.tokenizer);
    return {};
  }
  if (source.tokenizer_json.empty()) {
    if (!dummy) return make_error(ErrorKind::kIo, "{}: holds no tokenizer.json", source.path);
    VAYU_ASSIGN_OR_RETURN(files.tokenizer, placeholder_tokenizer(files.recipe.config.vocab_size));
    return {};
  }
  const ModelFolderTexts texts{.tokenizer_config = source.tokenizer_config,
                               .generation_config = source.generation_config,
                               .config = source.config_text};
  VAYU_ASSIGN_OR_RETURN(files.tokenizer, load_tokenizer_json(source.tokenizer_json, texts));
  const auto config = nlohmann::json::parse(source.tokenizer_config, nullptr, false);
  if (!config.is_object()) return {};
  files.bos_token = token_entry(config, "bos_token");
  files.eos_token = token_entry(config, "eos_token");
  return {};
}

Status open_chat_template(const loader::ModelSource& source, const ModelFileOptions& options, ModelFiles& files) {
  std::string text = source.chat_template;
  if (!options.chat_template_file.empty()) {
    VAYU_ASSIGN_OR_RETURN(text, read_text_file(options.chat_template_file));
  } else if (source.gguf && source.gguf->has("tokenizer.chat_template")) {
    VAYU_ASSIGN_OR_RETURN(text, source.gguf->get_string("tokenizer.chat_template"));
  }
  if (text.empty()) return {};
  VAYU_ASSIGN_OR_RETURN(files.chat_template, ChatTemplate::parse(std::move(text)));
  return {};
}

// Embeddings may be padded past the tokenizer's last id, never short of it.
Status check_vocabulary(const std::string& path, const ModelFiles& files) {
  const int32_t rows = files.recipe.config.vocab_size;
  if (files.tokenizer->vocab_size() <= rows) return {};
  return make_error(ErrorKind::kCorrupt, "{}: the tokenizer has {} tokens, the embedding {} rows", path,
                    files.tokenizer->vocab_size(), rows);
}

}  // namespace

void add_model_file_flags(CLI::App& command, ModelFileOptions& o) {
  command
      .add_option("--load-format", o.load_format,
                  "auto; dummy: seeded random weights made in place (for a built-in geometry, or a folder's shape)")
      ->check(CLI::IsMember({"auto", "dummy"}))
      ->capture_default_str();
  command.add_option("--dummy-seed", o.dummy_seed, "Seed of the weights of --load-format dummy")->capture_default_str();
  command.add_option("--dtype", o.dtype,
                     "What weights are kept in: auto (as stored; FP8 becomes bfloat16 on the CPU), float32, float16, "
                     "bfloat16");
  command.add_option("--quantization", o.quantization,
                     "Quantise weights while they load: with CUDA fp8, on the CPU q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, "
                     "q5_k or q6_k");
  command
      .add_option("--quantization-ignore", o.quantization_ignore,
                  "Tensors that --quantization leaves as stored, '*' for any text, for example lm_head or "
                  "'model.layers.0.*'; may be given several times")
      ->type_size(1)
      ->allow_extra_args(false);
  command.add_option("--hf-overrides", o.hf_overrides,
                     "JSON object laid over config.json, for example '{\"n_group\":16,\"topk_group\":2}'");
  command.add_option("--mla-attention", o.mla_attention,
                     "How multi-head latent attention is computed: absorbed, expanded (with CUDA that of prompts "
                     "alone), or auto (the cheaper; on the CPU absorbed)");
  command.add_option("--chat-template", o.chat_template_file, "Jinja file instead of the model's own template");
}

std::string default_model_name(const std::string& path) {
  std::filesystem::path name(path);
  if (!name.has_filename()) name = name.parent_path();  // a folder named with its slash
  return (name.extension() == ".gguf" ? name.stem() : name.filename()).string();
}

Result<ModelFiles> open_model_files(const std::string& path, const ModelFileOptions& options) {
  const bool dummy = options.load_format == "dummy";
  VAYU_ASSIGN_OR_RETURN(loader::ModelSource source, open_source(path, dummy));
  if (dummy && source.gguf) {
    return field_error("--load-format", "--load-format dummy needs a geometry or a config.json, not a GGUF file");
  }
  VAYU_RETURN_IF_ERROR(override_config(options.hf_overrides, source));
  ModelFiles files;
  VAYU_ASSIGN_OR_RETURN(files.recipe, model::recipe_of(source));
  VAYU_RETURN_IF_ERROR(set_mla_form(options.mla_attention, files.recipe));
  VAYU_ASSIGN_OR_RETURN(files.weight_format, weight_format(options));
  files.weights = source.weights;
  if (dummy) {
    files.weights = model::dummy_checkpoint(files.recipe, options.dummy_seed, path);
    if (!files.weight_format) files.weight_format = DataFormat::kBF16;
  }
  VAYU_RETURN_IF_ERROR(check_ignored(options, *files.weights, files.recipe));
  VAYU_RETURN_IF_ERROR(open_tokenizer(source, dummy, files));
  VAYU_RETURN_IF_ERROR(open_chat_template(source, options, files));
  VAYU_RETURN_IF_ERROR(check_vocabulary(path, files));
  files.source = std::move(source);
  return files;
}

}  // namespace vayu
