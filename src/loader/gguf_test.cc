#include "loader/gguf.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>

#include "loader/gguf_header.h"
#include "loader/gguf_writer.h"

namespace vayu::loader {
namespace {

using Bytes = std::vector<std::byte>;

std::vector<float> ramp(int64_t n) {
  std::vector<float> out(n);
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(i) * 0.25f;
  return out;
}

const std::vector<int64_t> kMatrix = {3, 64};
const std::vector<int64_t> kVector = {5};

GgufWriter small_model(uint32_t version = 3, uint32_t alignment = 32) {
  GgufWriter writer(version, alignment);
  writer.add_string("general.architecture", "llama");
  writer.add_u32("u32", 7);
  writer.add_u64("u64", uint64_t{1} << 40);
  writer.add_i32("i32", -5);
  writer.add_f32("f32", 0.5f);
  writer.add_bool("bool", true);
  writer.add_strings("strings", std::vector<std::string>{"a", "", "ccc"});
  writer.add_i32s("i32s", std::vector<int32_t>{1, -2});
  writer.add_f32s("f32s", std::vector<float>{1.5f, -2.5f});
  writer.add_tensor("matrix", kMatrix, DataFormat::kQ8_0, ramp(3 * 64));
  writer.add_tensor("vector", kVector, DataFormat::kF32, ramp(5));
  return writer;
}

Result<std::shared_ptr<const GgufFile>> parse(const Bytes& bytes) { return GgufFile::parse(bytes, "test.gguf"); }

void expect_error(const Bytes& bytes, ErrorKind kind, std::initializer_list<std::string_view> words) {
  const auto file = parse(bytes);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().kind, kind) << file.error().message;
  EXPECT_EQ(file.error().message.rfind("test.gguf: ", 0), 0u) << file.error().message;
  for (std::string_view word : words) {
    EXPECT_NE(file.error().message.find(word), std::string::npos) << word << " not in: " << file.error().message;
  }
}

// Position of `needle` in the file, to overwrite what follows it.
size_t find(const Bytes& bytes, std::string_view needle) {
  const std::string_view all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const size_t at = all.find(needle);
  EXPECT_NE(at, std::string_view::npos);
  return at;
}

template <class T>
void put(Bytes& bytes, size_t at, T value) {
  ASSERT_LE(at + sizeof(T), bytes.size());
  std::memcpy(bytes.data() + at, &value, sizeof(value));
}

class TempFile {
 public:
  explicit TempFile(const Bytes& bytes) {
    char name[] = "/tmp/vayu_gguf_test_XXXXXX";
    const int fd = ::mkstemp(name);
    EXPECT_GE(fd, 0);
    EXPECT_EQ(::write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    ::close(fd);
    path_ = name;
  }
  ~TempFile() { ::unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class GgufVersions : public testing::TestWithParam<std::pair<uint32_t, uint32_t>> {};

TEST_P(GgufVersions, ReadsBackWhatWasWritten) {
  const auto [version, alignment] = GetParam();
  const TempFile temp(small_model(version, alignment).bytes());
  const auto opened = GgufFile::open(temp.path());
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const GgufFile& file = **opened;
  EXPECT_EQ(*file.get_string("general.architecture"), "llama");
  EXPECT_EQ(*file.get_int("u32"), 7);
  EXPECT_EQ(*file.get_int("u64"), int64_t{1} << 40);
  EXPECT_EQ(*file.get_int("i32"), -5);
  EXPECT_EQ(*file.get_float("f32"), 0.5);
  EXPECT_TRUE(*file.get_bool("bool"));
  EXPECT_EQ(*file.get_strings("strings"), (std::vector<std::string_view>{"a", "", "ccc"}));
  EXPECT_EQ(*file.get_ints("i32s"), (std::vector<int64_t>{1, -2}));
  EXPECT_EQ(*file.get_floats("f32s"), (std::vector<float>{1.5f, -2.5f}));
  EXPECT_EQ(file.tensors().size(), 2u);
  const CheckpointTensor* vector = file.find_tensor("vector");
  ASSERT_NE(vector, nullptr);
  EXPECT_EQ(vector->shape, kVector);
  std::vector<float> values(5);
  ASSERT_TRUE(file.read_rows(*vector, 0, 1, reinterpret_cast<std::byte*>(values.data())).ok());
  EXPECT_EQ(values, ramp(5));
  const CheckpointTensor* matrix = file.find_tensor("matrix");
  ASSERT_NE(matrix, nullptr);
  EXPECT_EQ(matrix->shape, kMatrix);
  EXPECT_EQ(matrix->bytes, 3 * 2 * 34);
  Bytes whole(matrix->bytes);
  ASSERT_TRUE(file.read_rows(*matrix, 0, matrix->rows(), whole.data()).ok());
  Bytes row(matrix->bytes / matrix->rows());
  ASSERT_TRUE(file.read_rows(*matrix, 1, 1, row.data()).ok());
  EXPECT_EQ(std::memcmp(row.data(), whole.data() + row.size(), row.size()), 0);
  std::vector<float> floats(matrix->cols());
  ASSERT_TRUE(file.read_floats(*matrix, 1, 1, row.data(), floats.data()).ok());
  for (int64_t i = 0; i < matrix->cols(); ++i)
    EXPECT_NEAR(floats[i], ramp(3 * 64)[64 + i], 0.13);  // half a step of the block's scale
  EXPECT_TRUE(file.check_unchanged().ok());
  EXPECT_EQ(file.find_tensor("absent"), nullptr);
}

INSTANTIATE_TEST_SUITE_P(Layouts, GgufVersions,
                         testing::Values(std::pair{2u, 32u}, std::pair{3u, 32u}, std::pair{3u, 64u},
                                         std::pair{3u, 8u}));

TEST(Gguf, MissingAndMistypedKeysAreNamed) {
  const Bytes bytes = small_model().bytes();
  const auto file = *parse(bytes);
  EXPECT_NE(file->get_int("nope").error().message.find("'nope' is missing"), std::string::npos);
  EXPECT_NE(file->get_int("f32").error().message.find("'f32' has type f32"), std::string::npos);
  EXPECT_FALSE(file->get_float("u32").ok());
  EXPECT_FALSE(file->get_string("strings").ok());
  EXPECT_FALSE(file->get_strings("i32s").ok());
  EXPECT_FALSE(file->get_floats("i32s").ok());
  EXPECT_FALSE(file->get_ints("strings").ok());
  EXPECT_EQ(*file->get_int_or("nope", 3), 3);
  EXPECT_FALSE(file->get_int_or("f32", 3).ok());
  EXPECT_EQ(*file->get_float_or("nope", 1.5), 1.5);
  EXPECT_EQ(*file->get_string_or("nope", "x"), "x");
  EXPECT_TRUE(*file->get_bool_or("bool", false));
}

TEST(Gguf, HugeUnsignedIntegerIsNotMadeNegative) {
  GgufWriter writer;
  writer.add_u64("big", uint64_t{1} << 63);
  const Bytes bytes = writer.bytes();
  EXPECT_FALSE((*parse(bytes))->get_int("big").ok());
}

TEST(Gguf, MagicAndVersion) {
  expect_error({}, ErrorKind::kCorrupt, {"magic"});
  expect_error(Bytes(4), ErrorKind::kCorrupt, {"magic", "not a GGUF file"});
  expect_error(small_model(1).bytes(), ErrorKind::kUnsupported, {"version 1"});
  expect_error(small_model(4).bytes(), ErrorKind::kUnsupported, {"version 4"});
  expect_error(small_model(3u << 24).bytes(), ErrorKind::kUnsupported, {"big-endian"});
  Bytes four = small_model().bytes();
  four.resize(4);
  expect_error(four, ErrorKind::kCorrupt, {"version"});
}

TEST(Gguf, AbsurdCountsAreNamed) {
  const Bytes good = small_model().bytes();
  const auto with = [&](const std::function<void(Bytes&)>& change) {
    Bytes bytes = good;
    change(bytes);
    return bytes;
  };
  const auto huge = [](int bits) { return uint64_t{1} << bits; };
  expect_error(with([&](Bytes& b) { put(b, 8, huge(60)); }), ErrorKind::kCorrupt, {"tensor count"});
  expect_error(with([&](Bytes& b) { put(b, 16, huge(60)); }), ErrorKind::kCorrupt, {"metadata count"});
  expect_error(with([&](Bytes& b) { put(b, 24, huge(63)); }), ErrorKind::kCorrupt, {"name of metadata key 0"});
  const size_t value = find(good, "general.architecture") + 20 + 4;
  expect_error(with([&](Bytes& b) { put(b, value, huge(63)); }), ErrorKind::kCorrupt, {"general.architecture"});
  expect_error(with([&](Bytes& b) { put(b, value, ~uint64_t{0}); }), ErrorKind::kCorrupt, {"general.architecture"});
  const size_t strings = find(good, "strings") + 7 + 8;
  expect_error(with([&](Bytes& b) { put(b, strings, huge(62)); }), ErrorKind::kCorrupt, {"'strings'", "array length"});
  const size_t floats = find(good, "f32s") + 4 + 8;
  expect_error(with([&](Bytes& b) { put(b, floats, huge(62)); }), ErrorKind::kCorrupt, {"'f32s'", "array length"});
  const size_t dims = find(good, "matrix") + 6;
  expect_error(with([&](Bytes& b) { put<uint32_t>(b, dims, 1000000); }), ErrorKind::kCorrupt,
               {"'matrix'", "1000000 dimensions"});
  expect_error(with([&](Bytes& b) { put<uint32_t>(b, dims, 0); }), ErrorKind::kCorrupt, {"'matrix'", "0 dimensions"});
  expect_error(with([&](Bytes& b) { put(b, dims + 4, huge(40)); }), ErrorKind::kCorrupt, {"'matrix'"});
  expect_error(with([&](Bytes& b) { put(b, dims + 4, huge(48)), put(b, dims + 12, huge(47)); }), ErrorKind::kCorrupt,
               {"'matrix'", "impossible size"});
  expect_error(with([&](Bytes& b) { put<uint64_t>(b, dims + 4, 0); }), ErrorKind::kCorrupt, {"'matrix'"});
  expect_error(with([&](Bytes& b) { put<uint64_t>(b, dims + 4, 33); }), ErrorKind::kCorrupt, {"'matrix'", "Q8_0"});
  expect_error(with([&](Bytes& b) { put<uint64_t>(b, dims + 24, huge(62)); }), ErrorKind::kCorrupt, {"'matrix'"});
  expect_error(with([&](Bytes& b) { put<uint64_t>(b, dims + 24, huge(63)); }), ErrorKind::kCorrupt, {"'matrix'"});
  expect_error(with([&](Bytes& b) { put<uint32_t>(b, dims + 20, 10); }), ErrorKind::kUnsupported, {"'matrix'", "Q2_K"});
  expect_error(with([&](Bytes& b) { put<uint32_t>(b, dims + 20, 777); }), ErrorKind::kUnsupported, {"'matrix'", "777"});
}

TEST(Gguf, UnknownValueTypesAndNestedArrays) {
  Bytes bytes = small_model().bytes();
  put<uint32_t>(bytes, find(bytes, "bool") + 4, 13);
  expect_error(bytes, ErrorKind::kCorrupt, {"'bool'", "13"});
  bytes = small_model().bytes();
  put<uint8_t>(bytes, find(bytes, "bool") + 8, 2);
  expect_error(bytes, ErrorKind::kCorrupt, {"'bool'"});
  bytes = small_model().bytes();
  put<uint32_t>(bytes, find(bytes, "i32s") + 8, 9);
  expect_error(bytes, ErrorKind::kUnsupported, {"'i32s'", "arrays of arrays"});
}

TEST(Gguf, Duplicates) {
  GgufWriter keys = small_model();
  keys.add_u32("u32", 8);
  expect_error(keys.bytes(), ErrorKind::kCorrupt, {"'u32'", "twice"});
  GgufWriter tensors = small_model();
  tensors.add_tensor("vector", kVector, DataFormat::kF32, ramp(5));
  expect_error(tensors.bytes(), ErrorKind::kCorrupt, {"'vector'", "twice"});
}

TEST(Gguf, BadOffsets) {
  GgufWriter misaligned = small_model();
  misaligned.set_last_offset(4);
  expect_error(misaligned.bytes(), ErrorKind::kCorrupt, {"'vector'", "alignment"});
  GgufWriter overlapping = small_model();
  overlapping.set_last_offset(32);
  expect_error(overlapping.bytes(), ErrorKind::kCorrupt, {"'vector'", "'matrix'", "overlap"});
  GgufWriter outside = small_model();
  outside.set_last_offset(1 << 20);
  expect_error(outside.bytes(), ErrorKind::kCorrupt, {"'vector'", "do not fit"});
}

TEST(Gguf, BadAlignment) {
  for (const uint32_t alignment : {0u, 4u, 12u, 1u << 20}) {
    GgufWriter writer;
    writer.add_u32("general.alignment", alignment);
    expect_error(writer.bytes(), ErrorKind::kCorrupt, {"general.alignment"});
  }
  GgufWriter writer;
  writer.add_string("general.alignment", "32");
  expect_error(writer.bytes(), ErrorKind::kCorrupt, {"general.alignment"});
}

TEST(Gguf, EveryCutIsAnError) {
  const Bytes good = small_model().bytes();
  const size_t padding = 32 - 20;  // after the last tensor, 5 floats
  for (size_t size = 0; size < good.size() - padding; ++size) {
    const Bytes cut(good.begin(), good.begin() + size);
    EXPECT_FALSE(parse(cut).ok()) << size;
  }
  EXPECT_TRUE(parse(Bytes(good.begin(), good.end() - padding)).ok());
}

TEST(Gguf, FlippedBytesNeverEscapeTheFile) {
  const Bytes good = small_model().bytes();
  for (size_t at = 0; at < good.size(); ++at) {
    for (const int value : {0x00, 0x01, 0x7f, 0x80, 0xff}) {
      Bytes bytes = good;
      bytes[at] = static_cast<std::byte>(value);
      const auto file = parse(bytes);
      if (!file.ok()) continue;
      for (const CheckpointTensor& tensor : (*file)->tensors()) {  // under sanitizers a read outside is seen
        Bytes copy(tensor.bytes);
        ASSERT_TRUE((*file)->read_rows(tensor, 0, tensor.rows(), copy.data()).ok());
      }
    }
  }
}

TEST(Gguf, MessagesCarryNoControlBytes) {
  GgufWriter writer;
  writer.add_raw_tensor("evil\x1b[2J\n\xff", kVector, 99, Bytes(20));
  const auto file = parse(writer.bytes());
  ASSERT_FALSE(file.ok());
  for (const char c : file.error().message) EXPECT_TRUE(c >= 0x20 && c < 0x7f);
  EXPECT_NE(file.error().message.find("evil\\x1b[2J\\x0a\\xff"), std::string::npos);
}

TEST(Gguf, FileCutOrChangedAfterOpenIsAnErrorNotASignal) {
  const TempFile temp(small_model().bytes());
  const auto file = *GgufFile::open(temp.path());
  ASSERT_EQ(::truncate(temp.path().c_str(), 64), 0);
  const CheckpointTensor& tensor = file->tensors()[0];
  Bytes copy(tensor.bytes);
  const Status status = file->read_rows(tensor, 0, tensor.rows(), copy.data());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().kind, ErrorKind::kIo);
  EXPECT_NE(status.error().message.find("'matrix'"), std::string::npos);
  EXPECT_FALSE(file->check_unchanged().ok());
  EXPECT_EQ(*file->get_string("general.architecture"), "llama");  // metadata does not live in the file's pages
}

TEST(Gguf, FileReplacedAfterOpenKeepsTheOldOne) {
  const TempFile temp(small_model().bytes());
  const TempFile other(Bytes(16));
  const auto file = *GgufFile::open(temp.path());
  ASSERT_EQ(::rename(other.path().c_str(), temp.path().c_str()), 0);
  Bytes copy(file->tensors()[0].bytes);
  EXPECT_TRUE(file->read_rows(file->tensors()[0], 0, file->tensors()[0].rows(), copy.data()).ok());
  EXPECT_TRUE(file->check_unchanged().ok());
}

TEST(Gguf, ThingsThatAreNotFiles) {
  EXPECT_EQ(GgufFile::open("/nonexistent/x.gguf").error().kind, ErrorKind::kIo);
  EXPECT_EQ(GgufFile::open("/tmp").error().kind, ErrorKind::kIo);
  EXPECT_EQ(GgufFile::open("/dev/zero").error().kind, ErrorKind::kIo);
  const TempFile empty(Bytes{});
  EXPECT_EQ(GgufFile::open(empty.path()).error().kind, ErrorKind::kCorrupt);
}

int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

TEST(Gguf, HostileHeaderCostsBoundedMemory) {
  // A sparse file of 8 GiB whose zeros parse as endless empty strings: as many as the caps allow.
  GgufWriter writer;
  for (int i = 0; i < 8; ++i) writer.add_strings("k" + std::to_string(i), {});
  Bytes bytes = writer.bytes();
  const size_t count = find(bytes, "k0") + 2 + 8;
  put(bytes, count, kMaxArrayElements);
  bytes.resize(count + 8);
  const TempFile temp(bytes);
  ASSERT_EQ(::truncate(temp.path().c_str(), int64_t{8} << 30), 0);
  const int64_t before = resident_bytes();
  const auto file = GgufFile::open(temp.path());
  EXPECT_FALSE(file.ok());
  EXPECT_LT(resident_bytes() - before, int64_t{64} << 20);

  put(bytes, count, uint64_t{1} << 30);
  const TempFile more(bytes);
  ASSERT_EQ(::truncate(more.path().c_str(), int64_t{16} << 30), 0);
  const auto refused = GgufFile::open(more.path());
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("over the limit"), std::string::npos) << refused.error().message;
}

}  // namespace
}  // namespace vayu::loader
