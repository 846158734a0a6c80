// libFuzzer target: any bytes as a safetensors file. Seeds: tests/fuzz/safetensors_fuzz (made by
// tests/fuzz/make_safetensors_seeds.py). Run: tools/fuzz.sh 300 safetensors_fuzz
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "loader/safetensors.h"

namespace {

// The file that is read lives in memory.
class MemoryFile {
 public:
  MemoryFile() : fd_(::memfd_create("fuzz", 0)), path_("/proc/self/fd/" + std::to_string(fd_)) {}
  const std::string& fill(const uint8_t* data, size_t size) {
    if (::ftruncate(fd_, 0) != 0 || ::pwrite(fd_, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
    return path_;
  }

 private:
  int fd_;
  std::string path_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static MemoryFile memory;
  const auto file = vayu::loader::open_safetensors_file(memory.fill(data, size), {.rows = 2, .cols = 3});
  if (!file.ok()) {
    if (file.error().message.empty()) std::abort();
    return 0;
  }
  float sum = 0;
  for (const auto& tensor : (*file)->tensors()) {
    if ((*file)->find_tensor(tensor.name) != &tensor) std::abort();
    std::vector<std::byte> stored(tensor.bytes);
    if (!(*file)->read_rows(tensor, 0, tensor.rows(), stored.data()).ok()) std::abort();
    std::vector<float> floats(tensor.rows() * tensor.cols());
    if (!(*file)->read_floats(tensor, 0, tensor.rows(), stored.data(), floats.data()).ok()) std::abort();
    for (const float v : floats) sum += v;
  }
  volatile float sink = sum;
  (void)sink;
  return 0;
}
