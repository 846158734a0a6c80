// A GGUF file, versions 2 and 3: metadata and tensor table checked against the file's size before anything is
// allocated. Metadata is held in memory; tensor data is read on demand. Immutable after open; thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "loader/checkpoint.h"

namespace vayu::loader {

class GgufFile : public Checkpoint {
 public:
  // Errors: kIo, kCorrupt, kUnsupported; the message names the file and the field or tensor.
  static Result<std::shared_ptr<const GgufFile>> open(const std::string& path);
  // The same over bytes in memory, which must outlive the object (tests, fuzzing).
  static Result<std::shared_ptr<const GgufFile>> parse(std::span<const std::byte> bytes, std::string name);
  virtual std::vector<std::string_view> keys() const = 0;  // of all metadata, in order of name

  // Metadata. Missing keys and wrong types are errors that name the key; integers of any width are accepted where they
  // fit. The *_or forms return the fallback only when the key is absent.
  virtual bool has(std::string_view key) const = 0;
  virtual Result<std::string> get_string(std::string_view key) const = 0;
  virtual Result<int64_t> get_int(std::string_view key) const = 0;
  virtual Result<double> get_float(std::string_view key) const = 0;
  virtual Result<bool> get_bool(std::string_view key) const = 0;
  virtual Result<std::vector<std::string_view>> get_strings(std::string_view key) const = 0;  // views into this object
  virtual Result<std::vector<int64_t>> get_ints(std::string_view key) const = 0;
  virtual Result<std::vector<float>> get_floats(std::string_view key) const = 0;
  Result<int64_t> get_int_or(std::string_view key, int64_t fallback) const;
  Result<double> get_float_or(std::string_view key, double fallback) const;
  Result<bool> get_bool_or(std::string_view key, bool fallback) const;
  Result<std::string> get_string_or(std::string_view key, std::string fallback) const;
};

// Text from a file made fit for a message: at most 80 bytes, control and non-ASCII bytes as \xNN.
std::string printable(std::string_view text);

}  // namespace vayu::loader
