// Header of a GGUF file (magic, counts, metadata, tensor table), parsed and checked. Internal to the loader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "loader/gguf.h"

namespace vayu::loader {

// Numbers as in the file.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};
std::string_view to_string(GgufType type);
int64_t scalar_bytes(GgufType type);  // 0 for strings and arrays

// Caps on what a header may ask for, far above any real model. Together with the check of each count against the bytes
// left they bound the memory a hostile file can cost to a few times kMaxHeaderBytes at the very most.
constexpr int64_t kMaxHeaderBytes = int64_t{48} << 20;
constexpr uint64_t kMaxTensors = 1 << 16;
constexpr uint64_t kMaxKeys = 1 << 14;
constexpr uint64_t kMaxNameBytes = 1 << 10;      // keys and tensor names
constexpr uint64_t kMaxArrayElements = 1 << 21;  // vocabularies reach 2^18, merge tables 2^19
constexpr uint32_t kMaxDims = 4;

// The leading bytes of a file at a stable address, made resident as the parser asks for them.
class HeaderSource {
 public:
  virtual ~HeaderSource() = default;
  virtual int64_t file_bytes() const = 0;
  // Pointer to byte 0 with at least `end` bytes valid. Errors: kIo, or kCorrupt past kMaxHeaderBytes.
  // The caller has checked end <= file_bytes().
  virtual Result<const std::byte*> at_least(int64_t end) = 0;
};

struct GgufEntry {
  std::string_view key;  // into the source
  GgufType type = GgufType::kU8;
  GgufType element = GgufType::kU8;  // of an array
  uint64_t count = 1;                // of an array
  const std::byte* value = nullptr;  // first element; strings keep their length prefix
};

struct GgufTensor : CheckpointTensor {
  int64_t offset = 0;  // of the first byte, from the start of the file
};

struct GgufHeader {
  uint32_t version = 0;
  int64_t alignment = 32;
  std::vector<GgufEntry> entries;   // sorted by key
  std::vector<GgufTensor> tensors;  // in file order
};

// `name` is the file's name for messages.
Result<GgufHeader> parse_gguf_header(HeaderSource& source, const std::string& name);

// The string at p (u64 length, bytes), which the parser has checked.
std::string_view string_at(const std::byte* p);

}  // namespace vayu::loader
