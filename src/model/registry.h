// From a checkpoint to its recipe: which architectures this build knows.
#pragma once

#include "loader/gguf.h"
#include "model/recipe.h"

namespace vayu::model {

// Reads general.architecture and the keys that architecture defines. Errors name the file and the key: kUnsupported for
// architectures and features this build does not know, kCorrupt for values that contradict each other.
Result<Recipe> recipe_of(const loader::GgufFile& file);

}  // namespace vayu::model
