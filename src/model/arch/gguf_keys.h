// Reads the metadata keys of one architecture ("llama.…") with range checks; every error names file and key.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "loader/gguf.h"
#include "model/arch/limits.h"
#include "model/config.h"

namespace vayu::model {

class GgufKeys {
 public:
  GgufKeys(const loader::GgufFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}

  bool has(std::string_view key) const { return file_.has(prefix_ + std::string(key)); }
  Result<int32_t> integer(std::string_view key, int32_t low, int32_t high) const;
  Result<int32_t> integer_or(std::string_view key, int32_t fallback, int32_t low, int32_t high) const;
  Result<double> number(std::string_view key) const;  // finite
  Result<double> number_or(std::string_view key, double fallback) const;
  Result<bool> boolean_or(std::string_view key, bool fallback) const;
  Result<std::string> text_or(std::string_view key, std::string fallback) const;

  // kUnsupported for the first key under the prefix that is not in the list: an unknown key may change the mathematics.
  Status refuse_unknown(std::span<const std::string_view> known) const;

  Error corrupt(std::string_view key, std::string_view what) const;
  Error unsupported(std::string_view key, std::string_view what) const;
  const loader::GgufFile& file() const { return file_; }

 private:
  const loader::GgufFile& file_;
  std::string prefix_;
};

// rope.freq_base and rope.scaling.*, the same in all architectures. context_length: tokens as the file states them; the
// original length where the file gives none (as transformers does). The result has passed check_rope.
Status read_rope_scaling(const GgufKeys& keys, int32_t context_length, RopeConfig& rope);

}  // namespace vayu::model
