#include "loader/model_source.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "loader/folder.h"
#include "loader/quantization_config.h"
#include "loader/safetensors.h"

namespace vayu::loader {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxTextBytes = 64 << 20;

std::string path_in(const std::string& folder, std::string_view name) { return (fs::path(folder) / name).string(); }

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(), [&](std::string_view ending) { return name.ends_with(ending); });
}

bool is_pickle(std::string_view name) { return ends_with_any(name, {".bin", ".pt", ".pth", ".ckpt", ".pkl"}); }

// What a folder offers to load, by its file names.
struct FolderContents {
  bool has_config = false;
  bool has_safetensors = false;
  bool has_pickle = false;
  std::vector<std::string> gguf;
};

Result<FolderContents> look_into(const std::string& folder) {
  FolderContents out;
  VAYU_ASSIGN_OR_RETURN(const std::vector<std::string> names, list_folder(folder));
  for (const std::string& name : names) {
    out.has_config |= name == "config.json";
    out.has_safetensors |= ends_with_any(name, {".safetensors", ".safetensors.index.json"});
    out.has_pickle |= is_pickle(name);
    if (name.ends_with(".gguf")) out.gguf.push_back(name);
  }
  return out;
}

// Said of a folder that cannot be opened, by what else it holds.
std::string_view hint(const FolderContents& contents) {
  if (contents.gguf.size() > 1) return "; it holds more than one .gguf: name one of them";
  if (contents.has_pickle) return "; its pickle files (.bin, .pt) are never read: they can carry code";
  return "";
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

Status read_chat_template(const std::string& folder, ModelSource& source) {
  VAYU_ASSIGN_OR_RETURN(source.chat_template, read_from_folder(folder, "chat_template.jinja", kMaxTextBytes));
  if (!source.chat_template.empty()) return {};
  VAYU_ASSIGN_OR_RETURN(const std::string older, read_from_folder(folder, "chat_template.json", kMaxTextBytes));
  const std::pair<const std::string&, const char*> places[] = {{older, "chat_template.json"},
                                                               {source.tokenizer_config, "tokenizer_config.json"}};
  for (const auto& [text, name] : places) {
    if (text.empty() || !source.chat_template.empty()) continue;
    VAYU_ASSIGN_OR_RETURN(const auto json, JsonConfig::parse(text, path_in(folder, name)));
    VAYU_ASSIGN_OR_RETURN(source.chat_template, template_entry(*json));
  }
  return {};
}

// A JSON object or nothing, kept as text.
Result<std::string> read_json_text(const std::string& folder, const char* name) {
  VAYU_ASSIGN_OR_RETURN(std::string text, read_from_folder(folder, name, kMaxTextBytes));
  if (!text.empty()) VAYU_RETURN_IF_ERROR(JsonConfig::parse(text, path_in(folder, name)));
  return text;
}

// config.json and not another of the folder's JSON files under its name.
Status check_config(const JsonConfig& config) {
  if (config.has("weight_map")) {
    return config.corrupt("weight_map", "this is the index of a checkpoint, not the configuration of a model");
  }
  if (config.has("model_type") || config.has("architectures")) return {};
  return config.corrupt("model_type", "is missing, and so is 'architectures': not the configuration of a model");
}

Result<ModelSource> open_folder(const std::string& folder, const OpenOptions& options) {
  VAYU_ASSIGN_OR_RETURN(const FolderContents contents, look_into(folder));
  if (!contents.has_safetensors && contents.gguf.size() == 1 && (options.weights || !contents.has_config)) {
    VAYU_ASSIGN_OR_RETURN(const std::string file, find_in_folder(folder, contents.gguf.front()));
    return open_model(file, options);
  }
  if (!contents.has_config) return make_error(ErrorKind::kIo, "{}: holds no config.json{}", folder, hint(contents));
  ModelSource source;
  source.path = folder;
  VAYU_ASSIGN_OR_RETURN(source.config_text, read_from_folder(folder, "config.json", kMaxTextBytes));
  VAYU_ASSIGN_OR_RETURN(source.config, JsonConfig::parse(source.config_text, path_in(folder, "config.json")));
  VAYU_RETURN_IF_ERROR(check_config(*source.config));
  VAYU_ASSIGN_OR_RETURN(source.generation_config, read_json_text(folder, "generation_config.json"));
  VAYU_ASSIGN_OR_RETURN(source.tokenizer_config, read_json_text(folder, "tokenizer_config.json"));
  VAYU_RETURN_IF_ERROR(read_chat_template(folder, source));
  VAYU_ASSIGN_OR_RETURN(source.tokenizer_json, find_in_folder(folder, "tokenizer.json"));
  if (!options.weights) return source;
  if (!contents.has_safetensors) {
    return make_error(ErrorKind::kIo, "{}: holds no safetensors{}", folder, hint(contents));
  }
  VAYU_ASSIGN_OR_RETURN(const ScaleBlocks blocks, scale_blocks(*source.config));
  VAYU_ASSIGN_OR_RETURN(source.weights, open_safetensors(folder, blocks));
  return source;
}

// "name-00001-of-00003.gguf"; the one part of one is whole.
bool is_split_gguf(std::string_view name) {
  const size_t of = name.rfind("-of-");
  return of != std::string_view::npos && name.ends_with(".gguf") && name.size() - of == 4 + 5 + 5 &&
         !name.ends_with("-of-00001.gguf");
}

}  // namespace

Result<ModelSource> open_model(const std::string& path, const OpenOptions& options) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return open_folder(path, options);
  if (is_split_gguf(path)) {
    return make_error(ErrorKind::kUnsupported, "{}: split GGUF files are not read; merge the parts first", path);
  }
  if (is_pickle(path)) {
    return make_error(ErrorKind::kUnsupported, "{}: pickle files are never read: they can carry code", path);
  }
  if (path.ends_with(".safetensors")) {
    return make_error(ErrorKind::kInvalidArgument, "{}: name the folder that holds it", path);
  }
  ModelSource source;
  source.path = path;
  VAYU_ASSIGN_OR_RETURN(source.gguf, GgufFile::open(path));
  VAYU_ASSIGN_OR_RETURN(const int64_t parts, source.gguf->get_int_or("split.count", 1));
  if (parts > 1) {
    return make_error(ErrorKind::kUnsupported, "{}: part of a split GGUF file ('split.count' is {}); merge them first",
                      path, parts);
  }
  if (options.weights) source.weights = source.gguf;
  return source;
}

}  // namespace vayu::loader
