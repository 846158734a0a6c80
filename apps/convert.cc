// vayu convert MODEL OUT: a checkpoint in another format. safetensors keep their names; GGUF is for llama.cpp and for
// one-file models here. With --load-format dummy it writes random checkpoints of any size.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "apps/commands.h"
#include "apps/convert/gguf_vocabulary.h"
#include "apps/model_files.h"
#include "apps/placeholder_tokenizer.h"
#include "base/log.h"
#include "loader/gguf_writer.h"
#include "loader/safetensors_writer.h"
#include "model/export.h"

namespace vayu {
namespace {

namespace fs = std::filesystem;

struct ConvertOptions {
  std::string model;
  std::string out;
  ModelFileOptions files;
  double max_shard_gb = 5;
};

class Progress {
 public:
  void operator()(int64_t done, int64_t total) {
    const auto percent = static_cast<int>(done * 100 / std::max<int64_t>(total, 1));
    if (!show_ || percent == last_) return;
    last_ = percent;
    std::fprintf(stderr, "\r\x1b[Kwriting %d %% of %.2f GB", percent, static_cast<double>(total) * 1e-9);
    if (percent == 100) std::fputs("\r\x1b[K", stderr);
    std::fflush(stderr);
  }

 private:
  bool show_ = ::isatty(2) != 0;
  int last_ = -1;
};

Status write_text(const fs::path& path, const std::string& text) {
  if (text.empty()) return {};
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  return out ? Status() : make_error(ErrorKind::kIo, "{}: cannot write", path.string());
}

// config.json as it fits the new weights, which carry no scales.
std::string config_text(const ModelFiles& files) {
  nlohmann::json config = files.source.config->json();
  config.erase("quantization_config");
  constexpr std::pair<DataFormat, const char*> kDtypes[] = {
      {DataFormat::kF32, "float32"}, {DataFormat::kF16, "float16"}, {DataFormat::kBF16, "bfloat16"}};
  for (const auto& [format, name] : kDtypes) {
    if (files.weight_format == format) config["torch_dtype"] = name;
  }
  return config.dump(2) + "\n";
}

// What stands beside the weights.
Status copy_texts(const ModelFiles& files, const fs::path& folder) {
  VAYU_RETURN_IF_ERROR(write_text(folder / "config.json", config_text(files)));
  VAYU_RETURN_IF_ERROR(write_text(folder / "generation_config.json", files.source.generation_config));
  VAYU_RETURN_IF_ERROR(write_text(folder / "tokenizer_config.json", files.source.tokenizer_config));
  VAYU_RETURN_IF_ERROR(write_text(folder / "chat_template.jinja", files.source.chat_template));
  if (files.source.tokenizer_json.empty()) {  // random weights: text of some kind for them
    VAYU_ASSIGN_OR_RETURN(const std::string json, placeholder_tokenizer_json(files.recipe.config.vocab_size));
    return write_text(folder / "tokenizer.json", json);
  }
  std::error_code failure;
  fs::copy_file(files.source.tokenizer_json, folder / "tokenizer.json", failure);
  return failure ? make_error(ErrorKind::kIo, "{}: {}", (folder / "tokenizer.json").string(), failure.message())
                 : Status();
}

Status to_safetensors(const ModelFiles& files, const ConvertOptions& o) {
  if (files.source.gguf) return field_error("MODEL", "{}: GGUF to safetensors is not supported", o.model);
  VAYU_ASSIGN_OR_RETURN(const auto plan, model::plan_export(*files.weights, files.recipe, files.weight_format,
                                                            o.files.quantization_ignore));
  std::error_code failure;
  fs::create_directories(o.out, failure);
  if (failure) return make_error(ErrorKind::kIo, "{}: {}", o.out, failure.message());
  std::vector<loader::CheckpointTensor> tensors;
  for (const model::ExportTensor& out : plan) tensors.push_back(out.tensor);
  VAYU_ASSIGN_OR_RETURN(
      loader::SafetensorsWriter writer,
      loader::SafetensorsWriter::create(o.out, std::move(tensors), static_cast<int64_t>(o.max_shard_gb * 1e9)));
  VAYU_RETURN_IF_ERROR(copy_texts(files, o.out));
  return model::write_export(*files.weights, plan, writer, Progress());
}

Status to_gguf(const ModelFiles& files, const ConvertOptions& o) {
  const model::GgufExport* gguf = files.recipe.gguf;
  if (!gguf) {
    return make_error(ErrorKind::kUnsupported, "{}: no GGUF form is known for architecture {}", o.model,
                      files.recipe.config.architecture);
  }
  VAYU_ASSIGN_OR_RETURN(const auto plan, model::plan_export_as(*files.weights, files.recipe, gguf->slots,
                                                               files.weight_format, o.files.quantization_ignore));
  loader::GgufWriter writer;
  writer.add_string("general.architecture", gguf->architecture);
  writer.add_string("general.name", default_model_name(o.model));
  gguf->write_keys(files.recipe, writer);
  VAYU_RETURN_IF_ERROR(write_gguf_vocabulary(files, writer));
  for (const model::ExportTensor& out : plan)
    writer.declare_tensor(out.tensor.name, out.tensor.shape, out.tensor.format);
  VAYU_ASSIGN_OR_RETURN(const auto rows, writer.begin(o.out));
  return model::write_export(*files.weights, plan, *rows, Progress());
}

int convert(const ConvertOptions& o) {
  init_logging("info", /*json=*/false);
  const Result<ModelFiles> files = open_model_files(o.model, o.files);
  const bool gguf = o.out.ends_with(".gguf");
  const Status status = !files.ok() ? Status(files.error()) : gguf ? to_gguf(*files, o) : to_safetensors(*files, o);
  if (status.ok()) return 0;
  std::fprintf(stderr, "vayu convert: %s\n", status.error().message.c_str());
  return 1;
}

}  // namespace

void add_convert_command(CLI::App& root, int& exit_code) {
  auto options = std::make_shared<ConvertOptions>();
  ConvertOptions& o = *options;
  CLI::App& c = *root.add_subcommand("convert", "Write a checkpoint in another format or precision");
  c.add_option("MODEL", o.model, "A folder with safetensors, or a built-in geometry (--load-format dummy)")->required();
  c.add_option("OUT", o.out, "A new folder for safetensors, or a new file ending in .gguf")->required();
  c.add_option("--max-shard-gb", o.max_shard_gb, "Largest file of a sharded checkpoint, in GB")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  add_model_file_flags(c, o.files);
  c.callback([options, &exit_code] { exit_code = convert(*options); });
}

}  // namespace vayu
