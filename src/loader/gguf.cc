#include "loader/gguf.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "loader/gguf_header.h"
#include "loader/input_file.h"

namespace vayu::loader {
namespace {

// Anonymous memory from mmap, resident only where touched.
class Mapping {
 public:
  Mapping() = default;
  static Result<Mapping> create(int64_t bytes) {
    void* p = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return make_error(ErrorKind::kIo, "cannot map {} bytes: {}", bytes, std::strerror(errno));
    Mapping mapping;
    mapping.data_ = static_cast<std::byte*>(p);
    mapping.bytes_ = bytes;
    return mapping;
  }
  ~Mapping() {
    if (data_) ::munmap(data_, static_cast<size_t>(bytes_));
  }
  Mapping(Mapping&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// The header is read, not mapped: its strings stay valid whatever happens to the file.
class FileHeaderSource : public HeaderSource {
 public:
  FileHeaderSource(const InputFile& file, const Mapping& memory) : file_(file), memory_(memory) {}
  int64_t file_bytes() const override { return file_.size(); }
  Result<const std::byte*> at_least(int64_t end) override {
    if (end > memory_.bytes()) return make_error(ErrorKind::kCorrupt, "the header is over {} bytes", kMaxHeaderBytes);
    if (end > filled_) {
      constexpr int64_t kChunkBytes = 1 << 20;
      const int64_t target = std::min(memory_.bytes(), (end + kChunkBytes - 1) / kChunkBytes * kChunkBytes);
      VAYU_RETURN_IF_ERROR(file_.read(filled_, target - filled_, memory_.data() + filled_));
      filled_ = target;
    }
    return memory_.data();
  }

 private:
  const InputFile& file_;
  const Mapping& memory_;
  int64_t filled_ = 0;
};

class SpanHeaderSource : public HeaderSource {
 public:
  explicit SpanHeaderSource(std::span<const std::byte> bytes) : bytes_(bytes) {}
  int64_t file_bytes() const override { return static_cast<int64_t>(bytes_.size()); }
  Result<const std::byte*> at_least(int64_t end) override {
    if (end > kMaxHeaderBytes) return make_error(ErrorKind::kCorrupt, "the header is over {} bytes", kMaxHeaderBytes);
    return bytes_.data();
  }

 private:
  std::span<const std::byte> bytes_;
};

template <class T>
T load(const std::byte* p) {
  T v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

// False when the type is not an integer or the value does not fit.
bool load_int(GgufType type, const std::byte* p, int64_t& out) {
  switch (type) {
    case GgufType::kU8:
      out = load<uint8_t>(p);
      return true;
    case GgufType::kI8:
      out = load<int8_t>(p);
      return true;
    case GgufType::kU16:
      out = load<uint16_t>(p);
      return true;
    case GgufType::kI16:
      out = load<int16_t>(p);
      return true;
    case GgufType::kU32:
      out = load<uint32_t>(p);
      return true;
    case GgufType::kI32:
      out = load<int32_t>(p);
      return true;
    case GgufType::kI64:
      out = load<int64_t>(p);
      return true;
    case GgufType::kU64:
      out = static_cast<int64_t>(load<uint64_t>(p));
      return out >= 0;
    default:
      return false;
  }
}

bool load_float(GgufType type, const std::byte* p, double& out) {
  if (type == GgufType::kF32) {
    out = load<float>(p);
  } else if (type == GgufType::kF64) {
    out = load<double>(p);
  } else {
    return false;
  }
  return true;
}

class GgufFileImpl : public GgufFile {
 public:
  explicit GgufFileImpl(std::string path) : path_(std::move(path)) {}

  Status init_from_file(InputFile file) {
    file_ = std::make_unique<InputFile>(std::move(file));
    VAYU_ASSIGN_OR_RETURN(header_memory_, Mapping::create(std::min<int64_t>(file_->size(), kMaxHeaderBytes)));
    FileHeaderSource source(*file_, header_memory_);
    VAYU_ASSIGN_OR_RETURN(header_, parse_gguf_header(source, path_));
    VAYU_RETURN_IF_ERROR(check_unchanged());
    index_tensors();
    return {};
  }

  Status init_from_memory(std::span<const std::byte> bytes) {
    SpanHeaderSource source(bytes);
    VAYU_ASSIGN_OR_RETURN(header_, parse_gguf_header(source, path_));
    memory_ = bytes;
    index_tensors();
    return {};
  }

  const std::string& path() const override { return path_; }
  std::span<const CheckpointTensor> tensors() const override { return tensors_; }

  const CheckpointTensor* find_tensor(std::string_view name) const override {
    const auto it = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                     [](const CheckpointTensor* t, std::string_view n) { return t->name < n; });
    return it != by_name_.end() && (*it)->name == name ? *it : nullptr;
  }

  Status read_rows(const CheckpointTensor& tensor, int64_t first_row, int64_t num_rows, std::byte* dst) const override {
    const int64_t stride = row_bytes(tensor.format, tensor.cols());
    const int64_t offset = offsets_[&tensor - tensors_.data()] + first_row * stride;
    if (!file_) {
      std::memcpy(dst, memory_.data() + offset, static_cast<size_t>(num_rows * stride));
      return {};
    }
    const Status status = file_->read(offset, num_rows * stride, dst);
    if (status.ok()) return status;
    return error(status.error().kind, fmt::format("tensor '{}': {}", printable(tensor.name), status.error().message));
  }

  Status check_unchanged() const override { return file_ ? file_->check_unchanged() : Status(); }

  std::vector<std::string_view> keys() const override {
    std::vector<std::string_view> out;
    for (const GgufEntry& entry : header_.entries) out.push_back(entry.key);
    return out;
  }

  bool has(std::string_view key) const override { return find(key) != nullptr; }

  Result<std::string> get_string(std::string_view key) const override {
    VAYU_ASSIGN_OR_RETURN(const GgufEntry* entry, expect(key, GgufType::kString));
    return std::string(string_at(entry->value));
  }

  Result<int64_t> get_int(std::string_view key) const override {
    VAYU_ASSIGN_OR_RETURN(const GgufEntry* entry, require(key));
    int64_t value = 0;
    if (!load_int(entry->type, entry->value, value)) return mismatch(*entry, "an integer that fits in 64 bits");
    return value;
  }

  Result<double> get_float(std::string_view key) const override {
    VAYU_ASSIGN_OR_RETURN(const GgufEntry* entry, require(key));
    double value = 0;
    if (!load_float(entry->type, entry->value, value)) return mismatch(*entry, "a float");
    return value;
  }

  Result<bool> get_bool(std::string_view key) const override {
    VAYU_ASSIGN_OR_RETURN(const GgufEntry* entry, expect(key, GgufType::kBool));
    return load<uint8_t>(entry->value) != 0;
  }

  Result<std::vector<std::string_view>> get_strings(std::string_view key) const override {
    VAYU_ASSIGN_OR_RETURN(const GgufEntry* entry, expect(key, GgufType::kArray));
    if (entry->element != GgufType::kString) return mismatch(*entry, "an array of strings");
    std::vector<std::string_view> out;
    out.reserve(entry->count);
    const std::byte* p = entry->value;
    for (uint64_t i = 0; i < entry->count; ++i) {
      out.push_back(string_at(p));
      p += sizeof(uint64_t) + out.back().size();
    }
    return out;
  }

  Result<std::vector<int64_t>> get_ints(std::string_view key) const override {
    return get_array<int64_t>(key, "an array of integers",
                              [](GgufType type, const std::byte* p, int64_t& out) { return load_int(type, p, out); });
  }

  Result<std::vector<float>> get_floats(std::string_view key) const override {
    return get_array<float>(key, "an array of floats", [](GgufType type, const std::byte* p, float& out) {
      double value = 0;
      const bool is_float = load_float(type, p, value);
      out = static_cast<float>(value);
      return is_float;
    });
  }

 private:
  Error error(ErrorKind kind, std::string_view message) const { return make_error(kind, "{}: {}", path_, message); }

  void index_tensors() {
    for (GgufTensor& tensor : header_.tensors) {
      offsets_.push_back(tensor.offset);
      tensors_.push_back(std::move(tensor));
    }
    header_.tensors.clear();
    for (const CheckpointTensor& tensor : tensors_) by_name_.push_back(&tensor);
    std::sort(by_name_.begin(), by_name_.end(), [](auto* a, auto* b) { return a->name < b->name; });
  }

  const GgufEntry* find(std::string_view key) const {
    const auto it = std::lower_bound(header_.entries.begin(), header_.entries.end(), key,
                                     [](const GgufEntry& e, std::string_view k) { return e.key < k; });
    return it != header_.entries.end() && it->key == key ? &*it : nullptr;
  }

  Result<const GgufEntry*> require(std::string_view key) const {
    const GgufEntry* entry = find(key);
    if (!entry) return make_error(ErrorKind::kCorrupt, "{}: metadata key '{}' is missing", path_, key);
    return entry;
  }

  Result<const GgufEntry*> expect(std::string_view key, GgufType type) const {
    VAYU_ASSIGN_OR_RETURN(const GgufEntry* entry, require(key));
    if (entry->type != type) return mismatch(*entry, fmt::format("of type {}", to_string(type)));
    return entry;
  }

  Error mismatch(const GgufEntry& entry, std::string_view wanted) const {
    std::string type(to_string(entry.type));
    if (entry.type == GgufType::kArray) type += fmt::format(" of {}", to_string(entry.element));
    return make_error(ErrorKind::kCorrupt,
                      "{}: metadata key '{}' has type {} where {} is expected, or its value does "
                      "not fit",
                      path_, printable(entry.key), type, wanted);
  }

  template <class T, class Load>
  Result<std::vector<T>> get_array(std::string_view key, std::string_view wanted, Load load_element) const {
    VAYU_ASSIGN_OR_RETURN(const GgufEntry* entry, expect(key, GgufType::kArray));
    const int64_t stride = scalar_bytes(entry->element);
    if (stride == 0) return mismatch(*entry, wanted);
    std::vector<T> out(entry->count);
    for (uint64_t i = 0; i < entry->count; ++i) {
      if (!load_element(entry->element, entry->value + i * stride, out[i])) return mismatch(*entry, wanted);
    }
    return out;
  }

  std::string path_;
  std::unique_ptr<InputFile> file_;  // null: over memory of the caller
  Mapping header_memory_;
  std::span<const std::byte> memory_;  // of a file that is in memory
  GgufHeader header_;
  std::vector<CheckpointTensor> tensors_;
  std::vector<int64_t> offsets_;  // of each tensor
  std::vector<const CheckpointTensor*> by_name_;
};

}  // namespace

Result<std::shared_ptr<const GgufFile>> GgufFile::open(const std::string& path) {
  VAYU_ASSIGN_OR_RETURN(InputFile input, InputFile::open(path));
  auto file = std::make_shared<GgufFileImpl>(path);
  VAYU_RETURN_IF_ERROR(file->init_from_file(std::move(input)));
  return std::shared_ptr<const GgufFile>(std::move(file));
}

Result<std::shared_ptr<const GgufFile>> GgufFile::parse(std::span<const std::byte> bytes, std::string name) {
  auto file = std::make_shared<GgufFileImpl>(std::move(name));
  VAYU_RETURN_IF_ERROR(file->init_from_memory(bytes));
  return std::shared_ptr<const GgufFile>(std::move(file));
}

Result<int64_t> GgufFile::get_int_or(std::string_view key, int64_t fallback) const {
  if (!has(key)) return fallback;
  return get_int(key);
}
Result<double> GgufFile::get_float_or(std::string_view key, double fallback) const {
  if (!has(key)) return fallback;
  return get_float(key);
}
Result<bool> GgufFile::get_bool_or(std::string_view key, bool fallback) const {
  if (!has(key)) return fallback;
  return get_bool(key);
}
Result<std::string> GgufFile::get_string_or(std::string_view key, std::string fallback) const {
  if (!has(key)) return fallback;
  return get_string(key);
}

}  // namespace vayu::loader
