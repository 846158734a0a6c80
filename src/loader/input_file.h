// A file that weights are read from: by offset, with a check that nobody changed it meanwhile.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace vayu::loader {

class InputFile {
 public:
  // A regular file that is not empty. Errors: kIo, kCorrupt; the message begins with the path.
  static Result<InputFile> open(const std::string& path);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return opened_.st_size; }  // bytes, when it was opened
  // Thread-safe. A file that was cut since is kIo, never a signal. The message does not name the path.
  Status read(int64_t offset, int64_t bytes, std::byte* dst) const;
  // kIo when size or time of change differ from what open saw.
  Status check_unchanged() const;

 private:
  InputFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_ = -1;
  std::string path_;
  struct stat opened_ = {};
};

}  // namespace vayu::loader
