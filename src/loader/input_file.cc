#include "loader/input_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace vayu::loader {

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)), opened_(other.opened_) {}

Result<InputFile> InputFile::open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer; it has no effect on regular files.
  InputFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK), path);
  if (file.fd_ < 0) return make_error(ErrorKind::kIo, "{}: cannot open: {}", path, std::strerror(errno));
  if (::fstat(file.fd_, &file.opened_) != 0) {
    return make_error(ErrorKind::kIo, "{}: {}", path, std::strerror(errno));
  }
  if (!S_ISREG(file.opened_.st_mode)) return make_error(ErrorKind::kIo, "{}: not a regular file", path);
  if (file.opened_.st_size == 0) return make_error(ErrorKind::kCorrupt, "{}: the file is empty", path);
  return file;
}

Status InputFile::read(int64_t offset, int64_t bytes, std::byte* dst) const {
  while (bytes > 0) {
    const ssize_t n = ::pread(fd_, dst, static_cast<size_t>(bytes), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return make_error(ErrorKind::kIo, "read failed: {}", std::strerror(errno));
    if (n == 0) return make_error(ErrorKind::kIo, "the file was cut while it was being read");
    offset += n;
    dst += n;
    bytes -= n;
  }
  return {};
}

Status InputFile::check_unchanged() const {
  struct stat now;
  if (::fstat(fd_, &now) != 0) return make_error(ErrorKind::kIo, "{}: {}", path_, std::strerror(errno));
  const bool same = now.st_size == opened_.st_size && now.st_mtim.tv_sec == opened_.st_mtim.tv_sec &&
                    now.st_mtim.tv_nsec == opened_.st_mtim.tv_nsec;
  return same ? Status() : make_error(ErrorKind::kIo, "{}: the file changed while it was being loaded", path_);
}

}  // namespace vayu::loader
