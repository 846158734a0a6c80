// The recipe makers, one file an architecture; registry.cc lists them by name.
#pragma once

#include <string_view>

#include "loader/gguf.h"
#include "loader/json_config.h"
#include "model/recipe.h"

namespace vayu::model {

// From config.json.
Result<Recipe> llama_recipe(const loader::JsonConfig& json);
Result<Recipe> qwen3_recipe(const loader::JsonConfig& json);
Result<Recipe> qwen3_moe_recipe(const loader::JsonConfig& json);
Result<Recipe> sarvam_moe_recipe(const loader::JsonConfig& json);
Result<Recipe> sarvam_mla_recipe(const loader::JsonConfig& json);

// From GGUF metadata.
Result<Recipe> llama_gguf_recipe(const loader::GgufFile& file);
Result<Recipe> sarvam_moe_gguf_recipe(const loader::GgufFile& file);

}  // namespace vayu::model
