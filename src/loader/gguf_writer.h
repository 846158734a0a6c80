// Builds GGUF files in memory: tests, tools and tiny models. Everything is written in the order it was added, and
// nothing is checked, so that a test can also build files that contradict themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/data_format.h"
#include "base/result.h"
#include "loader/checkpoint_writer.h"

namespace vayu::loader {

class GgufWriter {
 public:
  explicit GgufWriter(uint32_t version = 3, uint32_t alignment = 32) : version_(version), alignment_(alignment) {}

  void add_u32(std::string_view key, uint32_t value);
  void add_u64(std::string_view key, uint64_t value);
  void add_i32(std::string_view key, int32_t value);
  void add_f32(std::string_view key, float value);
  void add_bool(std::string_view key, bool value);
  void add_string(std::string_view key, std::string_view value);
  void add_strings(std::string_view key, std::span<const std::string> values);
  void add_i32s(std::string_view key, std::span<const int32_t> values);
  void add_f32s(std::string_view key, std::span<const float> values);

  // Quantises `values` (row-major, outermost dimension first) to `format`.
  void add_tensor(std::string_view name, std::span<const int64_t> shape, DataFormat format,
                  std::span<const float> values);
  // The bytes as they are; ggml_type may be one that this build does not know.
  void add_raw_tensor(std::string_view name, std::span<const int64_t> shape, uint32_t ggml_type,
                      std::span<const std::byte> data);
  // Places the tensor added last at this offset of the data section, in place of the next free one.
  void set_last_offset(uint64_t offset) { tensors_.back().offset = offset; }

  std::vector<std::byte> bytes() const;
  Status write(const std::string& path) const;

  // For files too large for memory: a tensor whose rows come later, through the writer that begin() opens. Not to be
  // mixed with tensors that bring their data.
  void declare_tensor(std::string_view name, std::span<const int64_t> shape, DataFormat format);
  Result<std::unique_ptr<CheckpointWriter>> begin(const std::string& path) const;

 private:
  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;
    uint32_t ggml_type;
    uint64_t offset;
    std::vector<std::byte> data;
    int64_t row_bytes = 0;  // of a declared tensor
  };
  std::vector<std::byte> header() const;  // up to the data section
  void begin_value(std::string_view key, uint32_t type);

  uint32_t version_;
  uint32_t alignment_;
  uint64_t num_entries_ = 0;
  std::vector<std::byte> entries_;
  std::vector<Tensor> tensors_;
  uint64_t next_offset_ = 0;
};

}  // namespace vayu::loader
