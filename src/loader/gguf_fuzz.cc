// libFuzzer target: any bytes as a GGUF file. Seeds: tests/fuzz/gguf_fuzz (made by tests/fuzz/make_gguf_seeds.py).
// Run: tools/fuzz.sh 300 gguf_fuzz
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "loader/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using vayu::loader::GgufFile;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto file = GgufFile::parse(bytes, "fuzz");
  if (!file.ok()) {
    if (file.error().message.empty()) std::abort();
    return 0;
  }
  for (const std::string_view key : (*file)->keys()) {
    if (!(*file)->has(key)) std::abort();
    (void)(*file)->get_string(key);
    (void)(*file)->get_int(key);
    (void)(*file)->get_float(key);
    (void)(*file)->get_bool(key);
    (void)(*file)->get_strings(key);
    (void)(*file)->get_ints(key);
    (void)(*file)->get_floats(key);
  }
  uint8_t sum = 0;
  for (const auto& tensor : (*file)->tensors()) {
    if ((*file)->find_tensor(tensor.name) != &tensor) std::abort();
    std::vector<std::byte> data(tensor.bytes);
    if (!(*file)->read_rows(tensor, 0, tensor.rows(), data.data()).ok()) std::abort();
    for (const std::byte b : data) sum ^= static_cast<uint8_t>(b);
  }
  volatile uint8_t sink = sum;
  (void)sink;
  return 0;
}
