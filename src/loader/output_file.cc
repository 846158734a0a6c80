#include "loader/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace vayu::loader {
namespace {

Error io_error(const std::string& path) { return make_error(ErrorKind::kIo, "{}: {}", path, std::strerror(errno)); }

}  // namespace

Result<OutputFile> OutputFile::create(const std::string& path) {
  OutputFile file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644), path);
  if (file.fd_ >= 0) return file;
  if (errno == EEXIST) return make_error(ErrorKind::kInvalidArgument, "{}: is there already", path);
  return io_error(path);
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

Status OutputFile::write(int64_t offset, const void* data, int64_t bytes) const {
  const auto* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd_, p, static_cast<size_t>(bytes), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return io_error(path_);
    p += n;
    offset += n;
    bytes -= n;
  }
  return {};
}

Status OutputFile::resize(int64_t bytes) const {
  return ::ftruncate(fd_, bytes) == 0 ? Status() : Status(io_error(path_));
}

Status OutputFile::finish() {
  const bool flushed = ::fsync(fd_) == 0;
  const bool closed = ::close(std::exchange(fd_, -1)) == 0;
  return flushed && closed ? Status() : Status(io_error(path_));
}

}  // namespace vayu::loader
