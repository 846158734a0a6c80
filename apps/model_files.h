// A MODEL argument made ready to load: files opened and checked, recipe, tokenizer and chat template.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "loader/model_source.h"
#include "model/recipe.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace CLI {
class App;
}

namespace vayu {

struct ModelFileOptions {
  std::string load_format = "auto";  // auto, or dummy: seeded random weights in place of a checkpoint's
  uint64_t dummy_seed = 0;           // of those weights
  std::string hf_overrides;          // JSON object laid over config.json
  std::string dtype = "auto";        // auto, float32, float16, bfloat16
  std::string quantization;          // q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k, fp8: converted while loading
  std::vector<std::string> quantization_ignore;  // name patterns of tensors that stay as stored
  std::string mla_attention = "auto";            // auto, absorbed or expanded
  std::string chat_template_file;                // empty: the model's own
};

// Adds the flags of ModelFileOptions to a subcommand.
void add_model_file_flags(CLI::App& command, ModelFileOptions& options);

struct ModelFiles {
  loader::ModelSource source;
  model::Recipe recipe;
  std::shared_ptr<const loader::Checkpoint> weights;
  std::optional<DataFormat> weight_format;  // of matrices; none: as stored
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;  // null when the model brings none
  std::string bos_token, eos_token;                   // texts the template may print; empty when none is named
};

// The name a model goes by when no flag gives one: of its file without ending, of its folder, or of its geometry.
std::string default_model_name(const std::string& path);

// MODEL: a .gguf file, a folder with config.json and safetensors, or with load_format dummy the name of a built-in
// geometry (model/geometries.h) or a folder whose weights are not read. Errors name the file and the field, or the
// flag.
Result<ModelFiles> open_model_files(const std::string& path, const ModelFileOptions& options);

}  // namespace vayu
