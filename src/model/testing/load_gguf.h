// A model straight from a GGUF file, for tests.
#pragma once

#include "model/model.h"
#include "model/registry.h"

namespace vayu::model::testing {

inline Result<std::unique_ptr<Model>> load_gguf(const loader::GgufFile& file, const ModelLoadOptions& options) {
  VAYU_ASSIGN_OR_RETURN(Recipe recipe, recipe_of(file));
  return Model::load(std::move(recipe), file, options);
}

}  // namespace vayu::model::testing
