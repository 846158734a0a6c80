#include "loader/model_source.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <vector>

#include "loader/input_file.h"
#include "loader/safetensors.h"

namespace vayu::loader {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxTextBytes = 64 << 20;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// Empty when there is no such file.
Result<std::string> read_text(const fs::path& path) {
  if (!is_there(path)) return std::string();
  VAYU_ASSIGN_OR_RETURN(const InputFile file, InputFile::open(path.string()));
  if (file.size() > kMaxTextBytes) return make_error(ErrorKind::kCorrupt, "{}: over 64 MiB", path.string());
  std::string text(file.size(), '\0');
  const Status status = file.read(0, file.size(), reinterpret_cast<std::byte*>(text.data()));
  if (!status.ok()) return make_error(status.error().kind, "{}: {}", path.string(), status.error().message);
  return text;
}

// The one GGUF file of a folder that holds nothing else to load.
Result<std::string> single_gguf(const fs::path& folder) {
  std::vector<std::string> found;
  bool pickles = false;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".gguf")) found.push_back(entry.path().string());
    pickles |= name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth");
  }
  if (found.size() == 1) return found.front();
  return make_error(ErrorKind::kIo, "{}: holds no config.json{}{}", folder.string(),
                    found.empty() ? "" : ", and more than one .gguf: name one of them",
                    pickles ? " (pickle files are never read: they can carry code)" : "");
}

Result<ScaleBlocks> scale_blocks(const JsonConfig& config) {
  ScaleBlocks blocks;
  VAYU_ASSIGN_OR_RETURN(const auto quantization, config.object_or_null("quantization_config"));
  if (!quantization) return blocks;
  VAYU_ASSIGN_OR_RETURN(const std::vector<int32_t> size, quantization->integers_or_empty("weight_block_size"));
  if (size.empty()) return blocks;
  if (size.size() != 2 || size[0] < 1 || size[1] < 1) {
    return quantization->corrupt("weight_block_size", "is no pair of sizes");
  }
  blocks.rows = size[0];
  blocks.cols = size[1];
  return blocks;
}

// chat_template: a string, or a list of named ones, of which "default" is meant.
Result<std::string> template_entry(const JsonConfig& json) {
  const auto found = json.json().find("chat_template");
  if (found == json.json().end() || found->is_null()) return std::string();
  if (found->is_string()) return found->get<std::string>();
  if (found->is_array()) {
    for (const auto& entry : *found) {
      if (!entry.is_object() || !entry.contains("template") || !entry["template"].is_string()) break;
      if (entry.value("name", "") == "default") return entry["template"].get<std::string>();
    }
    if (found->empty()) return std::string();
  }
  return json.corrupt("chat_template", "is neither a template nor a list with one named 'default'");
}

Status read_chat_template(const fs::path& folder, ModelSource& source) {
  VAYU_ASSIGN_OR_RETURN(source.chat_template, read_text(folder / "chat_template.jinja"));
  if (!source.chat_template.empty()) return {};
  VAYU_ASSIGN_OR_RETURN(const std::string older, read_text(folder / "chat_template.json"));
  const std::pair<const std::string&, const char*> places[] = {{older, "chat_template.json"},
                                                               {source.tokenizer_config, "tokenizer_config.json"}};
  for (const auto& [text, name] : places) {
    if (text.empty() || !source.chat_template.empty()) continue;
    VAYU_ASSIGN_OR_RETURN(const auto json, JsonConfig::parse(text, (folder / name).string()));
    VAYU_ASSIGN_OR_RETURN(source.chat_template, template_entry(*json));
  }
  return {};
}

Result<ModelSource> open_folder(const fs::path& folder, const OpenOptions& options) {
  if (!is_there(folder / "config.json")) {
    VAYU_ASSIGN_OR_RETURN(const std::string file, single_gguf(folder));
    return open_model(file, options);
  }
  ModelSource source;
  source.path = folder.string();
  VAYU_ASSIGN_OR_RETURN(source.config_text, read_text(folder / "config.json"));
  VAYU_ASSIGN_OR_RETURN(source.config, JsonConfig::parse(source.config_text, (folder / "config.json").string()));
  if (source.config->json().contains("weight_map")) {
    return source.config->corrupt("weight_map", "this is a checkpoint's index, not its configuration");
  }
  VAYU_ASSIGN_OR_RETURN(source.generation_config, read_text(folder / "generation_config.json"));
  VAYU_ASSIGN_OR_RETURN(source.tokenizer_config, read_text(folder / "tokenizer_config.json"));
  VAYU_RETURN_IF_ERROR(read_chat_template(folder, source));
  if (is_there(folder / "tokenizer.json")) source.tokenizer_json = (folder / "tokenizer.json").string();
  if (!options.weights) return source;
  VAYU_ASSIGN_OR_RETURN(const ScaleBlocks blocks, scale_blocks(*source.config));
  VAYU_ASSIGN_OR_RETURN(source.weights, open_safetensors(source.path, blocks));
  return source;
}

// "name-00001-of-00003.gguf"
bool is_split_gguf(std::string_view name) {
  const size_t of = name.rfind("-of-");
  return of != std::string_view::npos && name.ends_with(".gguf") && name.size() - of == 4 + 5 + 5;
}

}  // namespace

Result<ModelSource> open_model(const std::string& path, const OpenOptions& options) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return open_folder(path, options);
  if (!is_there(path)) return make_error(ErrorKind::kIo, "{}: no such file or folder", path);
  if (is_split_gguf(path)) {
    return make_error(ErrorKind::kUnsupported, "{}: split GGUF files are not read; merge the parts first", path);
  }
  if (!path.ends_with(".gguf")) {
    const bool pickle = path.ends_with(".bin") || path.ends_with(".pt") || path.ends_with(".pth");
    const bool part = path.ends_with(".safetensors");
    if (pickle)
      return make_error(ErrorKind::kUnsupported, "{}: pickle files are never read: they can carry code", path);
    if (part) return make_error(ErrorKind::kInvalidArgument, "{}: name the folder that holds it", path);
  }
  ModelSource source;
  source.path = path;
  VAYU_ASSIGN_OR_RETURN(source.gguf, GgufFile::open(path));
  source.weights = source.gguf;
  return source;
}

}  // namespace vayu::loader
