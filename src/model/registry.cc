#include "model/registry.h"

#include "model/arch/architectures.h"

namespace vayu::model {
namespace {

struct Architecture {
  std::string_view name;  // general.architecture
  Result<Recipe> (*recipe)(const loader::GgufFile&);
};

constexpr Architecture kArchitectures[] = {
    {"llama", llama_recipe},
};

}  // namespace

Result<Recipe> recipe_of(const loader::GgufFile& file) {
  VAYU_ASSIGN_OR_RETURN(const std::string name, file.get_string("general.architecture"));
  std::string known;
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name == name) return architecture.recipe(file);
    known += known.empty() ? "" : ", ";
    known += architecture.name;
  }
  return make_error(ErrorKind::kUnsupported, "{}: general.architecture '{}' is not supported (known: {})", file.path(),
                    loader::printable(name), known);
}

}  // namespace vayu::model
