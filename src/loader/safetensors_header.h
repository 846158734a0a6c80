// The header of one safetensors file: u64 length (little-endian), JSON, then data up to the end of the file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace vayu::loader {

constexpr int64_t kMaxSafetensorsHeader = 100'000'000;  // bytes, as the format says

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // as the file spells it
  std::vector<int64_t> shape;
  int64_t begin = 0;  // from the start of the file
  int64_t end = 0;
};

// header: the JSON. Entries come sorted by offset and together cover the data without overlaps or holes. Errors are
// kCorrupt and name `file` and the tensor.
Result<std::vector<SafetensorsEntry>> parse_safetensors_header(std::string_view header, int64_t file_bytes,
                                                               const std::string& file);

// Bits of one element; 0 for a dtype that the format does not have.
int safetensors_dtype_bits(std::string_view dtype);

}  // namespace vayu::loader
