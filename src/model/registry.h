// From a checkpoint to its recipe: which architectures this build knows.
#pragma once

#include "loader/model_source.h"
#include "model/recipe.h"

namespace vayu::model {

// A GGUF file goes by general.architecture, a folder by config.json's architectures, else its model_type. Errors name
// the file and the field: kUnsupported for architectures and features this build does not know, kCorrupt for values
// that contradict each other.
Result<Recipe> recipe_of(const loader::ModelSource& source);
Result<Recipe> recipe_of(const loader::GgufFile& file);
Result<Recipe> recipe_of(const loader::JsonConfig& json);

}  // namespace vayu::model
