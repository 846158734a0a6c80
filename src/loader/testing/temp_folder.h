// Test help: a folder that lives as long as the object, and files of a checkpoint made by hand.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/result.h"

namespace vayu::loader {

class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "vayu_loader_XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }
  void write(std::string_view name, std::string_view bytes) const {
    std::ofstream out(*this / name, std::ios::binary | std::ios::trunc);
    out << bytes;
    EXPECT_TRUE(out.good()) << name;
  }
  std::string read(std::string_view name) const {
    std::ifstream in(*this / name, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  void remove(std::string_view name) const { std::filesystem::remove(*this / name); }

 private:
  std::string path_;
};

// A safetensors file: length, header, data.
inline std::string safetensors_file(std::string_view header, std::string_view data) {
  const uint64_t length = header.size();
  std::string out(reinterpret_cast<const char*>(&length), sizeof(length));
  return out.append(header).append(data);
}

template <class T>
void expect_fault(const Result<T>& result, ErrorKind kind, std::initializer_list<std::string_view> words) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().kind, kind) << result.error().message;
  for (const std::string_view word : words) {
    EXPECT_NE(result.error().message.find(word), std::string::npos) << word << " not in: " << result.error().message;
  }
}

}  // namespace vayu::loader
