#include "loader/safetensors_header.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "loader/testing/temp_folder.h"

namespace vayu::loader {
namespace {

using Entries = Result<std::vector<SafetensorsEntry>>;

Entries parse_bytes(std::string_view bytes) {
  const ReadAt read = [&](int64_t offset, int64_t count, std::byte* dst) -> Status {
    EXPECT_GE(offset, 0);
    EXPECT_LE(offset + count, static_cast<int64_t>(bytes.size()));
    std::memcpy(dst, bytes.data() + offset, count);
    return {};
  };
  return parse_safetensors_header(read, static_cast<int64_t>(bytes.size()), "x.safetensors");
}

Entries parse(std::string_view header, size_t data_bytes) {
  return parse_bytes(safetensors_file(header, std::string(data_bytes, 'd')));
}

constexpr std::string_view kTwo =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,2],"data_offsets":[4,20]},)"
    R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})";

TEST(SafetensorsHeader, EntriesComeByOffset) {
  const Entries entries = parse(kTwo, 20);
  ASSERT_TRUE(entries.ok()) << entries.error().message;
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ((*entries)[0].name, "a");
  EXPECT_EQ((*entries)[0].dtype, "BF16");
  EXPECT_EQ((*entries)[0].begin, static_cast<int64_t>(8 + kTwo.size()));
  EXPECT_EQ((*entries)[1].name, "b");
  EXPECT_EQ((*entries)[1].shape, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ((*entries)[1].end, static_cast<int64_t>(8 + kTwo.size() + 20));
}

TEST(SafetensorsHeader, ScalarsAndEmptyTensors) {
  const Entries entries = parse(R"({"e":{"dtype":"F32","shape":[0,9],"data_offsets":[0,0]},)"
                                R"("s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})",
                                4);
  ASSERT_TRUE(entries.ok()) << entries.error().message;
  EXPECT_EQ((*entries)[0].name, "e");
  EXPECT_TRUE((*entries)[1].shape.empty());
}

TEST(SafetensorsHeader, EveryCutAndEveryGrowthIsAnError) {
  const std::string good = safetensors_file(kTwo, std::string(20, 'd'));
  for (size_t size = 0; size < good.size(); ++size) EXPECT_FALSE(parse_bytes(good.substr(0, size)).ok()) << size;
  EXPECT_FALSE(parse_bytes(good + "x").ok());
}

TEST(SafetensorsHeader, HostileLengths) {
  for (const uint64_t length : {uint64_t{1} << 60, ~uint64_t{0}, uint64_t{1} << 63, uint64_t{21}}) {
    std::string file = safetensors_file("{}", "0123456789");
    std::memcpy(file.data(), &length, sizeof(length));
    expect_fault(parse_bytes(file), ErrorKind::kCorrupt, {"x.safetensors", "header length", std::to_string(length)});
  }
  expect_fault(parse_bytes("1234567"), ErrorKind::kCorrupt, {"header's length"});
}

TEST(SafetensorsHeader, FaultsNameTheTensor) {
  const auto one = [](std::string_view fields) { return fmt::format(R"({{"w":{{{}}}}})", fields); };
  struct Case {
    std::string fields;
    std::string_view word;
  };
  const Case cases[] = {
      {R"("dtype":"F32","shape":[1],"data_offsets":[4,0])", "backwards"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[-4,0])", "negative"},
      {R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])", "negative"},
      {R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])", "fraction"},
      {R"("dtype":"F32","shape":[1e3],"data_offsets":[0,4])", "fraction"},
      {R"("dtype":"F32","shape":[2],"data_offsets":[0,4])", "is 8 bytes, data_offsets span 4"},
      {R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4])", "no file can hold"},
      {R"("dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,4])", "no file can hold"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615])", "no file can hold"},
      {R"("dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4])", "8 dimensions"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[0,4,8])", "two numbers"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[0])", "two numbers"},
      {R"("dtype":"F33","shape":[1],"data_offsets":[0,4])", "F33"},
      {R"("dtype":"F32","shape":[1])", "missing"},
      {R"("dtype":"F32","data_offsets":[0,4])", "missing"},
      {R"("shape":[1],"data_offsets":[0,4])", "missing"},
      {R"("dtype":7,"shape":[1],"data_offsets":[0,4])", "number where none belongs"},
      {R"("dtype":"F32","shape":[[1]],"data_offsets":[0,4])", "list where none belongs"},
      {R"("dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4])", "doubled"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"x":{})", "object where none belongs"},
      {R"("dtype":"F32","shape":null,"data_offsets":[0,4])", "null"},
      {R"("dtype":"F32","shape":[1],"data_offsets":[4,8])", "hole"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.fields);
    expect_fault(parse(one(c.fields), 4), ErrorKind::kCorrupt, {"x.safetensors", "'w'", c.word});
  }
}

TEST(SafetensorsHeader, OverlapsAndDoubles) {
  const auto two = [](std::string_view second, std::string_view name) {
    return fmt::format(R"({{"a":{{"dtype":"U8","shape":[8],"data_offsets":[0,8]}},"{}":{{"dtype":"U8","shape":[8],)"
                       R"("data_offsets":{}}}}})",
                       name, second);
  };
  expect_fault(parse(two("[4,12]", "b"), 12), ErrorKind::kCorrupt, {"'b'", "overlap"});
  expect_fault(parse(two("[0,8]", "b"), 8), ErrorKind::kCorrupt, {"'b'", "overlap"});
  expect_fault(parse(two("[9,17]", "b"), 17), ErrorKind::kCorrupt, {"'b'", "hole"});
  expect_fault(parse(two("[8,16]", "a"), 16), ErrorKind::kCorrupt, {"'a'", "twice"});
  expect_fault(parse(two("[8,16]", "b"), 15), ErrorKind::kCorrupt, {"describes 16 bytes", "holds 15"});
}

TEST(SafetensorsHeader, JsonOfOtherShapes) {
  for (const char* header : {"", "[]", "null", "3", "\"x\"", "{\"a\":1}", "{\"a\":[]}", "{\"a\":\"b\"}", "{\"a\":{}}",
                             "{\"__metadata__\":{\"a\":1}}", "{\"__metadata__\":{\"a\":{}}}", "{\"__metadata__\":[]}",
                             "{} {}", "{", "{\"\xff\":{}}", "{\"a\":{\"b\":{\"c\":{}}}}"}) {
    EXPECT_FALSE(parse(header, 0).ok()) << header;
  }
  EXPECT_TRUE(parse("{}   ", 0).ok());
}

int64_t status_bytes(std::string_view key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key)) return std::stoll(line.substr(key.size())) * 1024;
  }
  return 0;
}

// Headers of tens of megabytes, made while they are read.
Entries parse_made(int64_t header_bytes, const std::function<char(int64_t)>& character) {
  const ReadAt read = [&](int64_t offset, int64_t count, std::byte* dst) -> Status {
    if (offset == 0) {
      std::memcpy(dst, &header_bytes, sizeof(header_bytes));
      return {};
    }
    for (int64_t i = 0; i < count; ++i) dst[i] = static_cast<std::byte>(character(offset - 8 + i));
    return {};
  };
  return parse_safetensors_header(read, int64_t{1} << 50, "x.safetensors");
}

TEST(SafetensorsHeader, HostileHeadersCostBoundedMemory) {
  constexpr int64_t kBytes = 20'000'000;
  const auto after = [](std::string_view start, char rest) {
    return [=](int64_t i) { return i < static_cast<int64_t>(start.size()) ? start[i] : rest; };
  };
  constexpr std::string_view kEntry = R"("00000000":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)";
  const auto many = [&](int64_t i) {
    if (i == 0) return '{';
    const int64_t at = (i - 1) % kEntry.size();
    int64_t number = (i - 1) / kEntry.size();
    if (at < 1 || at > 8) return kEntry[at];
    for (int64_t digit = 8; digit > at; --digit) number /= 10;
    return static_cast<char>('0' + number % 10);
  };
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts again from here
  const int64_t before = status_bytes("VmRSS:");
  expect_fault(parse_made(kBytes, after("{\"", 'a')), ErrorKind::kCorrupt, {"string or number over"});
  expect_fault(parse_made(kBytes, after("{\"__metadata__\":{\"k\":\"", 'a')), ErrorKind::kCorrupt,
               {"string or number"});
  expect_fault(parse_made(kBytes, after("{\"a\":{\"shape\":[", '1')), ErrorKind::kCorrupt, {"string or number over"});
  expect_fault(parse_made(kBytes, after("", '{')), ErrorKind::kCorrupt, {"not valid JSON"});
  expect_fault(parse_made(kBytes, after("", '[')), ErrorKind::kCorrupt, {"list"});
  expect_fault(parse_made(kBytes, after("", '\0')), ErrorKind::kCorrupt, {"not valid JSON"});
  expect_fault(parse_made(kBytes, after("", ' ')), ErrorKind::kCorrupt, {"string or number over"});
  expect_fault(parse_made(kBytes, many), ErrorKind::kCorrupt, {"too many tensors"});
#ifdef VAYU_SANITIZED
  constexpr int64_t kMost = int64_t{256} << 20;  // sanitizers pad and keep freed memory
#else
  constexpr int64_t kMost = int64_t{64} << 20;
#endif
  EXPECT_LT(status_bytes("VmHWM:") - before, kMost);
}

}  // namespace
}  // namespace vayu::loader
