// Files of a model folder. The folder may come from anywhere: names are held to a strict pattern and links must not
// lead out of it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace vayu::loader {

// Letters, digits, '.', '_' and '-', not beginning with '.', at most 255 bytes.
bool is_plain_file_name(std::string_view name);

// Names in the folder, sorted. kIo when it cannot be listed.
Result<std::vector<std::string>> list_folder(const std::string& folder);

// The path of a file that is there; empty when it is not. kCorrupt when the name is not plain or a link leads out of
// the folder. (In a Hugging Face cache, where snapshots/REVISION holds links to blobs/, that folder counts as inside.)
Result<std::string> find_in_folder(const std::string& folder, const std::string& name);

// The text of a file, at most max_bytes of it; empty when there is no such file.
Result<std::string> read_from_folder(const std::string& folder, const std::string& name, int64_t max_bytes);

}  // namespace vayu::loader
