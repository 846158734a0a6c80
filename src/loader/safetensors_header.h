// The header of one safetensors file: u64 length (little-endian), JSON, then data up to the end of the file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace vayu::loader {

constexpr int64_t kMaxSafetensorsHeader = 100'000'000;  // bytes; the format's own limit

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // as the file spells it
  std::vector<int64_t> shape;
  int64_t begin = 0;  // from the start of the file
  int64_t end = 0;
};

// Reads `bytes` bytes at `offset` of the file.
using ReadAt = std::function<Status(int64_t offset, int64_t bytes, std::byte* dst)>;

// Entries come sorted by offset and together cover the data without overlaps or holes. The JSON passes through in small
// pieces: a hostile header costs no more memory than the tensors it names, at most 65,536 with 8 MiB of names. Errors:
// those of `read`, and kCorrupt; all name `file`, and the tensor where there is one.
Result<std::vector<SafetensorsEntry>> parse_safetensors_header(const ReadAt& read, int64_t file_bytes,
                                                               const std::string& file);

// Bits of one element; 0 for a dtype that the format does not have.
int safetensors_dtype_bits(std::string_view dtype);

}  // namespace vayu::loader
