// Built-in model shapes for work without a checkpoint (--load-format dummy).
#pragma once

#include <span>
#include <string_view>

namespace vayu::model {

struct Geometry {
  std::string_view name;
  std::string_view about;        // one line for --help
  std::string_view config_json;  // as a checkpoint's config.json would have it
};

std::span<const Geometry> geometries();
const Geometry* find_geometry(std::string_view name);  // null when there is none

}  // namespace vayu::model
