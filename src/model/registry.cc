#include "model/registry.h"

#include <algorithm>
#include <string>
#include <vector>

#include "model/arch/architectures.h"

namespace vayu::model {
namespace {

// names: general.architecture, or the entries of architectures and the model_type, split by '|'
template <class Source>
struct Architecture {
  std::string_view names;
  Result<Recipe> (*recipe)(const Source&);
};

constexpr Architecture<loader::GgufFile> kGguf[] = {
    {"llama", llama_gguf_recipe},
    {"bailingmoe2|sarvam_moe|sarvam-moe", sarvam_moe_gguf_recipe},
};

constexpr Architecture<loader::JsonConfig> kConfigs[] = {
    {"LlamaForCausalLM|llama", llama_recipe},
    {"Qwen3ForCausalLM|qwen3", qwen3_recipe},
    {"Qwen3MoeForCausalLM|qwen3_moe", qwen3_moe_recipe},
    {"SarvamMoEForCausalLM|SarvamMoeForCausalLM|sarvam_moe", sarvam_moe_recipe},
    {"SarvamMLAForCausalLM|SarvamMlaForCausalLM|sarvam_mla", sarvam_mla_recipe},
};

bool is_one_of(std::string_view name, std::string_view names) {
  for (size_t at = 0; at <= names.size();) {
    const size_t end = std::min(names.find('|', at), names.size());
    if (names.substr(at, end - at) == name) return true;
    at = end + 1;
  }
  return false;
}

template <class Source>
std::string known_names(std::span<const Architecture<Source>> table) {
  std::string known;
  for (const Architecture<Source>& row : table) {
    known += known.empty() ? "" : ", ";
    known += row.names.substr(0, row.names.find('|'));
  }
  return known;
}

}  // namespace

Result<Recipe> recipe_of(const loader::GgufFile& file) {
  VAYU_ASSIGN_OR_RETURN(const std::string name, file.get_string("general.architecture"));
  for (const auto& row : kGguf) {
    if (is_one_of(name, row.names)) return row.recipe(file);
  }
  return make_error(ErrorKind::kUnsupported, "{}: general.architecture '{}' is not supported (known: {})", file.path(),
                    loader::printable(name), known_names<loader::GgufFile>(kGguf));
}

Result<Recipe> recipe_of(const loader::JsonConfig& json) {
  VAYU_ASSIGN_OR_RETURN(std::vector<std::string> names, json.texts_or_empty("architectures"));
  VAYU_ASSIGN_OR_RETURN(const std::string model_type, json.text_or("model_type", ""));
  const bool by_type = names.empty();
  if (by_type) names = {model_type};
  for (const auto& row : kConfigs) {
    if (!is_one_of(names.front(), row.names)) continue;
    if (!model_type.empty() && !is_one_of(model_type, row.names)) {
      return json.corrupt("model_type", fmt::format("'{}' does not belong to {}", loader::printable(model_type),
                                                    loader::printable(names.front())));
    }
    VAYU_ASSIGN_OR_RETURN(Recipe recipe, row.recipe(json));
    if (recipe.config.tied_head) recipe.ignored.push_back("lm_head.weight");
    return recipe;
  }
  return json.unsupported(by_type ? "model_type" : "architectures",
                          fmt::format("'{}' is not supported (known: {})", loader::printable(names.front()),
                                      known_names<loader::JsonConfig>(kConfigs)));
}

Result<Recipe> recipe_of(const loader::ModelSource& source) {
  return source.gguf ? recipe_of(*source.gguf) : recipe_of(*source.config);
}

}  // namespace vayu::model
