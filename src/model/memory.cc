#include "model/memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace vayu::model {

Result<AnonymousMemory> AnonymousMemory::create(int64_t bytes) {
  AnonymousMemory memory;
  if (bytes == 0) return memory;
  void* p = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    return make_error(ErrorKind::kResourceExhausted, "cannot reserve {} bytes: {}", bytes, std::strerror(errno));
  }
  memory.data_ = static_cast<std::byte*>(p);
  memory.bytes_ = bytes;
  return memory;
}

AnonymousMemory::~AnonymousMemory() {
  if (data_) ::munmap(data_, static_cast<size_t>(bytes_));
}

}  // namespace vayu::model
