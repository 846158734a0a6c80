#include "loader/gguf_writer.h"

#include <cstring>
#include <fstream>

#include "loader/gguf_header.h"

namespace vayu::loader {
namespace {

void append(std::vector<std::byte>& out, const void* data, size_t bytes) {
  const auto* p = static_cast<const std::byte*>(data);
  out.insert(out.end(), p, p + bytes);
}

template <class T>
void append_number(std::vector<std::byte>& out, T value) {
  append(out, &value, sizeof(value));
}

void append_string(std::vector<std::byte>& out, std::string_view text) {
  append_number<uint64_t>(out, text.size());
  append(out, text.data(), text.size());
}

uint32_t number_of(GgufType type) { return static_cast<uint32_t>(type); }

}  // namespace

void GgufWriter::begin_value(std::string_view key, uint32_t type) {
  append_string(entries_, key);
  append_number(entries_, type);
  ++num_entries_;
}

void GgufWriter::add_u32(std::string_view key, uint32_t value) {
  begin_value(key, number_of(GgufType::kU32));
  append_number(entries_, value);
}

void GgufWriter::add_u64(std::string_view key, uint64_t value) {
  begin_value(key, number_of(GgufType::kU64));
  append_number(entries_, value);
}

void GgufWriter::add_i32(std::string_view key, int32_t value) {
  begin_value(key, number_of(GgufType::kI32));
  append_number(entries_, value);
}

void GgufWriter::add_f32(std::string_view key, float value) {
  begin_value(key, number_of(GgufType::kF32));
  append_number(entries_, value);
}

void GgufWriter::add_bool(std::string_view key, bool value) {
  begin_value(key, number_of(GgufType::kBool));
  append_number<uint8_t>(entries_, value ? 1 : 0);
}

void GgufWriter::add_string(std::string_view key, std::string_view value) {
  begin_value(key, number_of(GgufType::kString));
  append_string(entries_, value);
}

void GgufWriter::add_strings(std::string_view key, std::span<const std::string> values) {
  begin_value(key, number_of(GgufType::kArray));
  append_number(entries_, number_of(GgufType::kString));
  append_number<uint64_t>(entries_, values.size());
  for (const std::string& value : values) append_string(entries_, value);
}

void GgufWriter::add_i32s(std::string_view key, std::span<const int32_t> values) {
  begin_value(key, number_of(GgufType::kArray));
  append_number(entries_, number_of(GgufType::kI32));
  append_number<uint64_t>(entries_, values.size());
  append(entries_, values.data(), values.size_bytes());
}

void GgufWriter::add_f32s(std::string_view key, std::span<const float> values) {
  begin_value(key, number_of(GgufType::kArray));
  append_number(entries_, number_of(GgufType::kF32));
  append_number<uint64_t>(entries_, values.size());
  append(entries_, values.data(), values.size_bytes());
}

void GgufWriter::add_tensor(std::string_view name, std::span<const int64_t> shape, DataFormat format,
                            std::span<const float> values) {
  const int64_t cols = shape.back();
  const int64_t bytes_a_row = row_bytes(format, cols);
  std::vector<std::byte> data(values.size() / cols * bytes_a_row);
  for (size_t row = 0; row < values.size() / cols; ++row) {
    quantize_row(format, values.data() + row * cols, data.data() + row * bytes_a_row, cols);
  }
  add_raw_tensor(name, shape, static_cast<uint32_t>(format_info(format).ggml_type), data);
}

void GgufWriter::add_raw_tensor(std::string_view name, std::span<const int64_t> shape, uint32_t ggml_type,
                                std::span<const std::byte> data) {
  tensors_.push_back(
      {std::string(name), {shape.begin(), shape.end()}, ggml_type, next_offset_, {data.begin(), data.end()}});
  next_offset_ += (data.size() + alignment_ - 1) / alignment_ * alignment_;
}

std::vector<std::byte> GgufWriter::bytes() const {
  std::vector<std::byte> out;
  append(out, "GGUF", 4);
  append_number(out, version_);
  append_number<uint64_t>(out, tensors_.size());
  const bool default_alignment = alignment_ == 32;
  append_number<uint64_t>(out, num_entries_ + (default_alignment ? 0 : 1));
  if (!default_alignment) {
    append_string(out, "general.alignment");
    append_number(out, number_of(GgufType::kU32));
    append_number(out, alignment_);
  }
  append(out, entries_.data(), entries_.size());
  for (const Tensor& tensor : tensors_) {
    append_string(out, tensor.name);
    append_number(out, static_cast<uint32_t>(tensor.shape.size()));
    for (size_t d = tensor.shape.size(); d-- > 0;) append_number<uint64_t>(out, tensor.shape[d]);
    append_number(out, tensor.ggml_type);
    append_number(out, tensor.offset);
  }
  out.resize((out.size() + alignment_ - 1) / alignment_ * alignment_);
  for (const Tensor& tensor : tensors_) {
    append(out, tensor.data.data(), tensor.data.size());
    out.resize((out.size() + alignment_ - 1) / alignment_ * alignment_);
  }
  return out;
}

Status GgufWriter::write(const std::string& path) const {
  const std::vector<std::byte> data = bytes();
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(data.data()), static_cast<std::streamsize>(data.size()));
  out.close();
  if (!out) return make_error(ErrorKind::kIo, "{}: cannot write", path);
  return {};
}

}  // namespace vayu::loader
