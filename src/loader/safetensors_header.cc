#include "loader/safetensors_header.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "loader/gguf.h"

namespace vayu::loader {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxDims = 8;
constexpr size_t kMaxName = 1 << 10;
constexpr size_t kMaxEntries = 1 << 16;
constexpr size_t kMaxNames = 8 << 20;   // bytes of all names
constexpr int64_t kMaxToken = 1 << 20;  // bytes of one token with the space before it, which the parser holds in whole
constexpr int64_t kPieceBytes = 1 << 16;

// The header's characters, fetched in pieces. Ends early at a read error and at a token over kMaxToken; fault() says
// so.
class HeaderText {
 public:
  HeaderText(const ReadAt& read, int64_t offset, int64_t bytes) : read_(read), next_(offset), left_(bytes) { fetch(); }

  bool ended() const { return at_ == piece_.size(); }
  char current() const { return piece_[at_]; }
  void advance() {
    watch(piece_[at_]);
    if (++at_ == piece_.size()) fetch();
  }
  const Status& fault() const { return fault_; }

 private:
  void fetch() {
    piece_.resize(fault_.ok() ? static_cast<size_t>(std::min(left_, kPieceBytes)) : 0);
    at_ = 0;
    const auto bytes = static_cast<int64_t>(piece_.size());
    if (bytes > 0) fail(read_(next_, bytes, reinterpret_cast<std::byte*>(piece_.data())));
    next_ += bytes;
    left_ -= bytes;
  }
  void fail(Status status) {
    if (status.ok()) return;
    fault_ = std::move(status);
    piece_.clear();
    at_ = 0;
  }
  void watch(char c) {
    const bool closes =
        in_string_ ? c == '"' && !escaped_ : std::string_view(",:{}[]\"").find(c) != std::string_view::npos;
    escaped_ = in_string_ && c == '\\' && !escaped_;
    if (closes && c == '"') in_string_ = !in_string_;
    token_bytes_ = closes ? 0 : token_bytes_ + 1;
    if (token_bytes_ <= kMaxToken) return;
    left_ = 0;
    at_ = piece_.size() - 1;
    fault_ = make_error(ErrorKind::kCorrupt, "a string or number over {} bytes", kMaxToken);
  }

  const ReadAt& read_;
  int64_t next_;
  int64_t left_;
  std::string piece_;
  size_t at_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
  int64_t token_bytes_ = 0;
  Status fault_;
};

// What the JSON parser takes: a pair of input iterators; a default one is the end.
class HeaderIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = char;

  HeaderIterator() = default;
  explicit HeaderIterator(HeaderText* text) : text_(text) {}
  char operator*() const { return text_->current(); }
  HeaderIterator& operator++() {
    text_->advance();
    return *this;
  }
  HeaderIterator operator++(int) { return ++*this; }
  bool operator==(const HeaderIterator& other) const { return ended() == other.ended(); }

 private:
  bool ended() const { return !text_ || text_->ended(); }
  HeaderText* text_ = nullptr;
};

// Receives the parser's events, so that no tree is built and depth costs nothing: the header is an object of objects
// whose values are strings and lists of integers.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  HeaderReader(std::vector<SafetensorsEntry>& entries, const std::string& file) : entries_(entries), file_(file) {}
  const std::string& fault() const { return fault_; }

  bool start_object(std::size_t) override {
    if (++depth_ > 2 || in_list_) return fail("an object where none belongs");
    if (depth_ == 2 && !metadata_) {
      if (name_.size() > kMaxName) return fail("a name over 1024 bytes");
      names_bytes_ += name_.size();
      if (entries_.size() == kMaxEntries || names_bytes_ > kMaxNames) return fail("too many tensors");
      entries_.push_back({});
      entries_.back().name = name_;
      entries_.back().begin = entries_.back().end = -1;
      seen_ = {};
    }
    return true;
  }
  bool end_object() override {
    if (depth_-- == 2) {
      if (!metadata_ && (!seen_.dtype || !seen_.shape || !seen_.offsets)) {
        return fail("dtype, shape or data_offsets is missing");
      }
      metadata_ = false;
      name_.clear();
    }
    return true;
  }
  bool key(string_t& key) override {
    if (depth_ == 1) {
      name_ = key;
      metadata_ = key == "__metadata__";
    } else {
      field_ = key;
    }
    return true;
  }
  bool string(string_t& value) override {
    if (depth_ == 2 && metadata_) return true;
    if (depth_ != 2 || in_list_ || field_ != "dtype" || seen_.dtype) return fail("a string where none belongs");
    seen_.dtype = true;
    entries_.back().dtype = value;
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ != 2 || metadata_ || in_list_) return fail("a list where none belongs");
    bool& seen = field_ == "shape" ? seen_.shape : seen_.offsets;
    if ((field_ != "shape" && field_ != "data_offsets") || seen) return fail("an unknown or doubled field");
    seen = true;
    in_list_ = true;
    offsets_ = 0;
    return true;
  }
  bool end_array() override {
    in_list_ = false;
    if (field_ == "data_offsets" && offsets_ != 2) return fail("data_offsets are not two numbers");
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (!in_list_) return fail("a number where none belongs");
    if (value > static_cast<uint64_t>(INT64_MAX / 2)) return fail("a number that no file can hold");
    SafetensorsEntry& entry = entries_.back();
    if (field_ == "shape") {
      if (entry.shape.size() == kMaxDims) return fail("more than 8 dimensions");
      entry.shape.push_back(static_cast<int64_t>(value));
    } else {
      (offsets_++ == 0 ? entry.begin : entry.end) = static_cast<int64_t>(value);
      if (offsets_ > 2) return fail("data_offsets are not two numbers");
    }
    return true;
  }
  bool number_integer(number_integer_t) override { return fail("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return fail("a fraction where none belongs"); }
  bool boolean(bool) override { return fail("a boolean where none belongs"); }
  bool null() override { return fail("a null where none belongs"); }
  bool binary(binary_t&) override { return fail("binary data"); }
  bool parse_error(std::size_t at, const std::string&, const nlohmann::detail::exception&) override {
    return fail(fmt::format("not valid JSON at byte {}", at));
  }

 private:
  bool fail(std::string_view what) {
    if (fault_.empty()) {
      fault_ = name_.empty() ? fmt::format("{}: header: {}", file_, what)
                             : fmt::format("{}: header, tensor '{}': {}", file_, printable(name_), what);
    }
    return false;
  }

  struct Seen {
    bool dtype = false, shape = false, offsets = false;
  };
  std::vector<SafetensorsEntry>& entries_;
  const std::string& file_;
  std::string name_, field_, fault_;
  Seen seen_;
  int depth_ = 0;
  int offsets_ = 0;
  size_t names_bytes_ = 0;
  bool in_list_ = false;
  bool metadata_ = false;
};

Status check_size(const SafetensorsEntry& entry, const std::string& file) {
  const auto corrupt = [&](std::string_view what) {
    return make_error(ErrorKind::kCorrupt, "{}: tensor '{}': {}", file, printable(entry.name), what);
  };
  const int bits = safetensors_dtype_bits(entry.dtype);
  if (bits == 0) return corrupt(fmt::format("unknown dtype '{}'", printable(entry.dtype)));
  int64_t elements = 1;
  for (const int64_t dim : entry.shape) {
    if (__builtin_mul_overflow(elements, dim, &elements)) return corrupt("a shape that no file can hold");
  }
  int64_t total_bits = 0;
  if (__builtin_mul_overflow(elements, int64_t{bits}, &total_bits)) return corrupt("a shape that no file can hold");
  if (entry.end < entry.begin) return corrupt("data_offsets run backwards");
  const int64_t bytes = total_bits / 8 + (total_bits % 8 != 0 ? 1 : 0);
  if (bytes != entry.end - entry.begin) {
    return corrupt(fmt::format("shape ({}) of {} is {} bytes, data_offsets span {}", fmt::join(entry.shape, ", "),
                               entry.dtype, bytes, entry.end - entry.begin));
  }
  return {};
}

// Leaves the entries sorted by name.
Status check_names(std::vector<SafetensorsEntry>& entries, const std::string& file) {
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (size_t i = 1; i < entries.size(); ++i) {
    if (entries[i].name != entries[i - 1].name) continue;
    return make_error(ErrorKind::kCorrupt, "{}: tensor '{}' stands twice in the header", file,
                      printable(entries[i].name));
  }
  return {};
}

// Sorted entries must tile the data exactly.
Status check_tiling(const std::vector<SafetensorsEntry>& entries, int64_t data_bytes, const std::string& file) {
  int64_t at = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != at) {
      return make_error(ErrorKind::kCorrupt, "{}: tensor '{}' begins at byte {} of the data where {} is expected ({})",
                        file, printable(entry.name), entry.begin, at, entry.begin < at ? "overlap" : "hole");
    }
    at = entry.end;
  }
  if (at == data_bytes) return {};
  return make_error(ErrorKind::kCorrupt, "{}: the header describes {} bytes of data, the file holds {}", file, at,
                    data_bytes);
}

}  // namespace

int safetensors_dtype_bits(std::string_view dtype) {
  constexpr std::pair<std::string_view, int> kBits[] = {
      {"F64", 64}, {"F32", 32}, {"F16", 16},    {"BF16", 16},   {"I64", 64},    {"I32", 32},   {"I16", 16},
      {"I8", 8},   {"U64", 64}, {"U32", 32},    {"U16", 16},    {"U8", 8},      {"BOOL", 8},   {"F8_E4M3", 8},
      {"C64", 64}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F8_E5M2", 8}, {"F8_E8M0", 8}};
  for (const auto& [name, bits] : kBits) {
    if (name == dtype) return bits;
  }
  return 0;
}

Result<std::vector<SafetensorsEntry>> parse_safetensors_header(const ReadAt& read, int64_t file_bytes,
                                                               const std::string& file) {
  if (file_bytes < 8) return make_error(ErrorKind::kCorrupt, "{}: cut inside the header's length", file);
  uint64_t length = 0;
  Status status = read(0, 8, reinterpret_cast<std::byte*>(&length));
  if (!status.ok()) return make_error(status.error().kind, "{}: {}", file, status.error().message);
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeader) || static_cast<int64_t>(length) > file_bytes - 8) {
    return make_error(ErrorKind::kCorrupt, "{}: header length {} is over the limit of {} or past the file's {} bytes",
                      file, length, kMaxSafetensorsHeader, file_bytes);
  }
  std::vector<SafetensorsEntry> entries;
  HeaderText text(read, 8, static_cast<int64_t>(length));
  HeaderReader reader(entries, file);
  const bool parsed = Json::sax_parse(HeaderIterator(&text), HeaderIterator(), &reader);
  if (!text.fault().ok()) {
    return make_error(text.fault().error().kind, "{}: header: {}", file, text.fault().error().message);
  }
  if (!parsed) return Error{ErrorKind::kCorrupt, reader.fault(), {}};
  for (const SafetensorsEntry& entry : entries) VAYU_RETURN_IF_ERROR(check_size(entry, file));
  VAYU_RETURN_IF_ERROR(check_names(entries, file));
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  const int64_t data_begin = 8 + static_cast<int64_t>(length);
  VAYU_RETURN_IF_ERROR(check_tiling(entries, file_bytes - data_begin, file));
  for (SafetensorsEntry& entry : entries) {
    entry.begin += data_begin;
    entry.end += data_begin;
  }
  return entries;
}

}  // namespace vayu::loader
