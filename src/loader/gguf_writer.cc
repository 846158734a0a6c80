#include "loader/gguf_writer.h"

#include <cstring>
#include <fstream>

#include "loader/gguf_header.h"
#include "loader/output_file.h"

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

// The data section of a file whose header is written.
class RowsWriter final : public CheckpointWriter {
 public:
  struct Place {
    int64_t offset;  // in the file
    int64_t row_bytes;
  };
  RowsWriter(OutputFile file, std::vector<Place> places) : file_(std::move(file)), places_(std::move(places)) {}

  Status write_rows(size_t index, int64_t first_row, int64_t num_rows, const void* data) override {
    const Place& place = places_[index];
    return file_.write(place.offset + first_row * place.row_bytes, data, num_rows * place.row_bytes);
  }
  Status finish() override { return file_.finish(); }

 private:
  OutputFile file_;
  std::vector<Place> places_;
};

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

std::vector<std::byte> GgufWriter::header() const {
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
  return out;
}

std::vector<std::byte> GgufWriter::bytes() const {
  std::vector<std::byte> out = header();
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

void GgufWriter::declare_tensor(std::string_view name, std::span<const int64_t> shape, DataFormat format) {
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
  const int64_t stride = row_bytes(format, shape.back());
  const auto ggml_type = static_cast<uint32_t>(format_info(format).ggml_type);
  tensors_.push_back({std::string(name), {shape.begin(), shape.end()}, ggml_type, next_offset_, {}, stride});
  next_offset_ += (rows * stride + alignment_ - 1) / alignment_ * alignment_;
}

Result<std::unique_ptr<CheckpointWriter>> GgufWriter::begin(const std::string& path) const {
  VAYU_ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(path));
  const std::vector<std::byte> head = header();
  const auto data_begin = static_cast<int64_t>(head.size());
  VAYU_RETURN_IF_ERROR(file.write(0, head.data(), data_begin));
  VAYU_RETURN_IF_ERROR(file.resize(data_begin + static_cast<int64_t>(next_offset_)));
  std::vector<RowsWriter::Place> places;
  for (const Tensor& tensor : tensors_) {
    places.push_back({data_begin + static_cast<int64_t>(tensor.offset), tensor.row_bytes});
  }
  return std::unique_ptr<CheckpointWriter>(new RowsWriter(std::move(file), std::move(places)));
}

}  // namespace vayu::loader
