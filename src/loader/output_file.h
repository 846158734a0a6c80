// A new file that is written by offset.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace vayu::loader {

class OutputFile {
 public:
  // kInvalidArgument when the path is there already: nothing is overwritten.
  static Result<OutputFile> create(const std::string& path);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  Status write(int64_t offset, const void* data, int64_t bytes) const;  // thread-safe
  Status resize(int64_t bytes) const;
  Status finish();  // flushes to the disk and closes

 private:
  OutputFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_ = -1;
  std::string path_;
};

}  // namespace vayu::loader
