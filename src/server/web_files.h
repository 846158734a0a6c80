// Files of src/server/web/, built into the binary (embed_web.cmake).
#pragma once

#include <string_view>

namespace vayu::server {

struct WebFile {
  std::string_view name;  // relative to web/
  std::string_view content;
};

// Null when there is no such file.
const WebFile* find_web_file(std::string_view name);

}  // namespace vayu::server
