// What a MODEL argument names, opened and checked: a GGUF file, or a folder with config.json, safetensors and
// tokenizer files. Knows no architecture.
#pragma once

#include <memory>
#include <string>

#include "loader/checkpoint.h"
#include "loader/gguf.h"
#include "loader/json_config.h"

namespace vayu::loader {

struct ModelSource {
  std::string path;
  std::shared_ptr<const Checkpoint> weights;  // null when opened without weights
  std::shared_ptr<const GgufFile> gguf;       // the same object as `weights` for a GGUF file, else null
  std::shared_ptr<const JsonConfig> config;   // config.json; null for a GGUF file
  // Texts of the folder's other files; empty when there is none.
  std::string config_text;
  std::string generation_config;
  std::string tokenizer_config;
  std::string chat_template;   // chat_template.jinja; else chat_template.json's or tokenizer_config.json's entry
  std::string tokenizer_json;  // path
};

struct OpenOptions {
  bool weights = true;  // false: seeded random weights take their place; the folder needs none
};

// path: a .gguf file, or a folder. A folder without safetensors that holds one .gguf opens that file; any other needs
// config.json and, unless options.weights is false, safetensors. Pickle files are never read. Links may not lead out of
// the folder (loader/folder.h). Errors: kIo, kCorrupt, kUnsupported, naming the file and the field or tensor.
Result<ModelSource> open_model(const std::string& path, const OpenOptions& options = {});

}  // namespace vayu::loader
