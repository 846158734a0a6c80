#include "loader/gguf_header.h"

#include <algorithm>
#include <cstring>

namespace vayu::loader {
namespace {

template <class T>
T load(const std::byte* p) {
  T v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

// Reads forward through the header. Every read says which field it is for, so that an error can name it.
class Cursor {
 public:
  Cursor(HeaderSource& source, const std::string& file) : source_(source), file_(file) {}

  int64_t left() const { return source_.file_bytes() - pos_; }
  int64_t pos() const { return pos_; }

  template <class... Args>
  Error corrupt(fmt::format_string<Args...> format, Args&&... args) const {
    return Error{ErrorKind::kCorrupt, file_ + ": " + fmt::format(format, std::forward<Args>(args)...), {}};
  }

  template <class... Args>
  Error unsupported(fmt::format_string<Args...> format, Args&&... args) const {
    return Error{ErrorKind::kUnsupported, file_ + ": " + fmt::format(format, std::forward<Args>(args)...), {}};
  }

  // The next `bytes` bytes, resident.
  Result<const std::byte*> take(uint64_t bytes, std::string_view field) {
    if (bytes > static_cast<uint64_t>(left())) {
      return corrupt("{}: needs {} bytes at offset {}, the file has {} left", field, bytes, pos_, left());
    }
    auto base = source_.at_least(pos_ + static_cast<int64_t>(bytes));
    if (!base.ok()) {
      return Error{base.error().kind, fmt::format("{}: {}: {}", file_, field, base.error().message), {}};
    }
    const std::byte* p = *base + pos_;
    pos_ += static_cast<int64_t>(bytes);
    return p;
  }

  template <class T>
  Result<T> number(std::string_view field) {
    VAYU_ASSIGN_OR_RETURN(const std::byte* p, take(sizeof(T), field));
    return load<T>(p);
  }

  // A count of things of at least `min_bytes` each, checked before anybody allocates for it.
  Result<uint64_t> count(std::string_view field, uint64_t min_bytes, uint64_t cap) {
    VAYU_ASSIGN_OR_RETURN(const uint64_t n, number<uint64_t>(field));
    return checked(n, field, min_bytes, cap);
  }
  Result<uint64_t> checked(uint64_t n, std::string_view field, uint64_t min_bytes, uint64_t cap) const {
    if (n > static_cast<uint64_t>(left()) / min_bytes) {
      return corrupt("{}: {} cannot fit in the {} bytes left", field, n, left());
    }
    if (n > cap) return corrupt("{}: {} is over the limit of {}", field, n, cap);
    return n;
  }

  Result<std::string_view> string(std::string_view field, uint64_t cap) {
    VAYU_ASSIGN_OR_RETURN(const uint64_t length, count(field, 1, cap));
    VAYU_ASSIGN_OR_RETURN(const std::byte* p, take(length, field));
    return std::string_view(reinterpret_cast<const char*>(p), length);
  }

 private:
  HeaderSource& source_;
  const std::string& file_;
  int64_t pos_ = 0;
};

Result<GgufType> read_type(Cursor& in, const std::string& field) {
  VAYU_ASSIGN_OR_RETURN(const uint32_t type, in.number<uint32_t>(field));
  if (type > static_cast<uint32_t>(GgufType::kF64)) return in.corrupt("{}: unknown value type {}", field, type);
  return static_cast<GgufType>(type);
}

// Moves over `count` values of `type`; `entry.value` is set to the first.
Status skip_values(Cursor& in, GgufType type, uint64_t count, const std::string& field, GgufEntry& entry) {
  VAYU_ASSIGN_OR_RETURN(entry.value, in.take(0, field));
  if (type == GgufType::kString) {
    for (uint64_t i = 0; i < count; ++i) VAYU_RETURN_IF_ERROR(in.string(field, kMaxHeaderBytes));
    return {};
  }
  VAYU_RETURN_IF_ERROR(in.checked(count, field, scalar_bytes(type), kMaxArrayElements));
  VAYU_ASSIGN_OR_RETURN(const std::byte* values, in.take(count * scalar_bytes(type), field));
  if (type == GgufType::kBool) {
    for (uint64_t i = 0; i < count; ++i) {
      if (load<uint8_t>(values + i) > 1) return in.corrupt("{}: a bool is neither 0 nor 1", field);
    }
  }
  return {};
}

Result<GgufEntry> read_entry(Cursor& in, uint64_t index) {
  GgufEntry entry;
  VAYU_ASSIGN_OR_RETURN(entry.key, in.string(fmt::format("name of metadata key {}", index), kMaxNameBytes));
  if (entry.key.empty()) return in.corrupt("metadata key {} has no name", index);
  const std::string field = fmt::format("metadata key '{}'", printable(entry.key));
  VAYU_ASSIGN_OR_RETURN(entry.type, read_type(in, field));
  if (entry.type != GgufType::kArray) {
    VAYU_RETURN_IF_ERROR(skip_values(in, entry.type, 1, field, entry));
    return entry;
  }
  VAYU_ASSIGN_OR_RETURN(entry.element, read_type(in, field));
  if (entry.element == GgufType::kArray) {
    return in.unsupported("{}: arrays of arrays are not supported", field);
  }
  const uint64_t min_bytes = std::max<int64_t>(scalar_bytes(entry.element), 1);
  VAYU_ASSIGN_OR_RETURN(entry.count, in.count(field + ": array length", min_bytes, kMaxArrayElements));
  VAYU_RETURN_IF_ERROR(skip_values(in, entry.element, entry.count, field, entry));
  return entry;
}

// Elements of a tensor, its dimensions read innermost first as the file has them.
Result<int64_t> read_shape(Cursor& in, const std::string& field, GgufTensor& tensor) {
  VAYU_ASSIGN_OR_RETURN(const uint32_t num_dims, in.number<uint32_t>(field + ": number of dimensions"));
  if (num_dims == 0 || num_dims > kMaxDims) {
    return in.corrupt("{}: {} dimensions, expected 1 to {}", field, num_dims, kMaxDims);
  }
  int64_t elements = 1;
  tensor.shape.resize(num_dims);
  for (uint32_t d = 0; d < num_dims; ++d) {
    VAYU_ASSIGN_OR_RETURN(const uint64_t size, in.number<uint64_t>(field + ": dimension"));
    if (size == 0 || size > (uint64_t{1} << 48) ||
        __builtin_mul_overflow(elements, static_cast<int64_t>(size), &elements)) {
      return in.corrupt("{}: dimension {} has impossible size {}", field, d, size);
    }
    tensor.shape[num_dims - 1 - d] = static_cast<int64_t>(size);
  }
  return elements;
}

Result<GgufTensor> read_tensor(Cursor& in, uint64_t index) {
  GgufTensor tensor;
  VAYU_ASSIGN_OR_RETURN(const std::string_view name, in.string(fmt::format("name of tensor {}", index), kMaxNameBytes));
  if (name.empty()) return in.corrupt("tensor {} has no name", index);
  tensor.name = std::string(name);
  const std::string field = fmt::format("tensor '{}'", printable(name));
  VAYU_ASSIGN_OR_RETURN(const int64_t elements, read_shape(in, field, tensor));
  VAYU_ASSIGN_OR_RETURN(const uint32_t type, in.number<uint32_t>(field + ": type"));
  auto format = format_from_ggml_type(type);
  if (!format.ok()) return in.unsupported("{}: {}", field, format.error().message);
  tensor.format = *format;
  const FormatInfo& info = format_info(tensor.format);
  if (tensor.shape.back() % info.block_size != 0) {
    return in.corrupt("{}: rows of {} elements are not whole {} blocks of {}", field, tensor.shape.back(), info.name,
                      info.block_size);
  }
  if (__builtin_mul_overflow(elements / info.block_size, int64_t{info.block_bytes}, &tensor.bytes)) {
    return in.corrupt("{}: its size overflows", field);
  }
  VAYU_ASSIGN_OR_RETURN(const uint64_t offset, in.number<uint64_t>(field + ": offset"));
  if (offset > static_cast<uint64_t>(INT64_MAX)) return in.corrupt("{}: offset {} is out of range", field, offset);
  tensor.offset = static_cast<int64_t>(offset);
  return tensor;
}

// From offsets within the data section to offsets within the file: aligned, inside the file, disjoint.
Status place_tensors(const Cursor& in, int64_t file_bytes, GgufHeader& header) {
  const int64_t align = header.alignment;
  const int64_t data_start = (in.pos() + align - 1) / align * align;
  for (GgufTensor& tensor : header.tensors) {
    const std::string name = printable(tensor.name);
    if (tensor.offset % align != 0) {
      return in.corrupt("tensor '{}': offset {} is not a multiple of the alignment {}", name, tensor.offset, align);
    }
    const int64_t room = file_bytes - data_start;
    if (tensor.offset > room || tensor.bytes > room - tensor.offset) {
      return in.corrupt(
          "tensor '{}': {} bytes at offset {} do not fit in the {} bytes of tensor data; is the file cut?", name,
          tensor.bytes, tensor.offset, std::max<int64_t>(room, 0));
    }
    tensor.offset += data_start;
  }
  std::vector<const GgufTensor*> order;
  for (const GgufTensor& tensor : header.tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->offset + order[i - 1]->bytes > order[i]->offset) {
      return in.corrupt("tensors '{}' and '{}' overlap", printable(order[i - 1]->name), printable(order[i]->name));
    }
  }
  return {};
}

Status check_names_are_unique(const Cursor& in, const GgufHeader& header) {
  for (size_t i = 1; i < header.entries.size(); ++i) {
    if (header.entries[i].key == header.entries[i - 1].key) {
      return in.corrupt("metadata key '{}' appears twice", printable(header.entries[i].key));
    }
  }
  std::vector<std::string_view> names;
  for (const GgufTensor& tensor : header.tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) return in.corrupt("tensor '{}' appears twice", printable(*twice));
  return {};
}

Result<int64_t> read_alignment(const Cursor& in, const std::vector<GgufEntry>& entries) {
  for (const GgufEntry& entry : entries) {
    if (entry.key != "general.alignment") continue;
    if (entry.type != GgufType::kU32) return in.corrupt("general.alignment: expected a u32");
    const auto alignment = load<uint32_t>(entry.value);
    if (alignment == 0 || alignment % 8 != 0 || alignment > (1 << 16)) {
      return in.corrupt("general.alignment: {} is not a multiple of 8 up to 65536", alignment);
    }
    return alignment;
  }
  return 32;
}

Result<uint32_t> read_magic_and_version(Cursor& in) {
  VAYU_ASSIGN_OR_RETURN(const std::byte* magic, in.take(4, "magic"));
  if (std::memcmp(magic, "GGUF", 4) != 0) return in.corrupt("magic: not a GGUF file");
  VAYU_ASSIGN_OR_RETURN(const uint32_t version, in.number<uint32_t>("version"));
  if (version == 2 || version == 3) return version;
  if (version != 0 && (version & 0xffff) == 0)
    return in.unsupported("version: big-endian GGUF files are not supported");
  return in.unsupported("version: GGUF version {} is not supported, only 2 and 3", version);
}

}  // namespace

std::string_view to_string(GgufType type) {
  constexpr std::string_view kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                         "bool", "string", "array", "u64", "i64", "f64"};
  return kNames[static_cast<size_t>(type)];
}

int64_t scalar_bytes(GgufType type) {
  constexpr int64_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return kBytes[static_cast<size_t>(type)];
}

std::string_view string_at(const std::byte* p) {
  return {reinterpret_cast<const char*>(p) + sizeof(uint64_t), load<uint64_t>(p)};
}

std::string printable(std::string_view text) {
  constexpr size_t kMaxBytes = 80;
  std::string out;
  for (const char c : text.substr(0, kMaxBytes)) {
    if (c >= 0x20 && c < 0x7f) {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  if (text.size() > kMaxBytes) out += "...";
  return out;
}

Result<GgufHeader> parse_gguf_header(HeaderSource& source, const std::string& name) {
  constexpr uint64_t kMinTensorBytes = 33;  // name length, a name, dimensions, one dimension, type, offset
  constexpr uint64_t kMinEntryBytes = 14;   // name length, a name, type, one byte
  Cursor in(source, name);
  GgufHeader header;
  VAYU_ASSIGN_OR_RETURN(header.version, read_magic_and_version(in));
  VAYU_ASSIGN_OR_RETURN(const uint64_t num_tensors, in.count("tensor count", kMinTensorBytes, kMaxTensors));
  VAYU_ASSIGN_OR_RETURN(const uint64_t num_entries, in.count("metadata count", kMinEntryBytes, kMaxKeys));
  for (uint64_t i = 0; i < num_entries; ++i) {
    VAYU_ASSIGN_OR_RETURN(GgufEntry entry, read_entry(in, i));
    header.entries.push_back(entry);
  }
  VAYU_ASSIGN_OR_RETURN(header.alignment, read_alignment(in, header.entries));
  for (uint64_t i = 0; i < num_tensors; ++i) {
    VAYU_ASSIGN_OR_RETURN(GgufTensor tensor, read_tensor(in, i));
    header.tensors.push_back(std::move(tensor));
  }
  std::sort(header.entries.begin(), header.entries.end(), [](auto& a, auto& b) { return a.key < b.key; });
  VAYU_RETURN_IF_ERROR(check_names_are_unique(in, header));
  VAYU_RETURN_IF_ERROR(place_tensors(in, source.file_bytes(), header));
  return header;
}

}  // namespace vayu::loader
