// The recipe makers, one a checkpoint family; registry.cc lists them by name.
#pragma once

#include "loader/gguf.h"
#include "model/recipe.h"

namespace vayu::model {

Result<Recipe> llama_recipe(const loader::GgufFile& file);  // llama.cc

}  // namespace vayu::model
