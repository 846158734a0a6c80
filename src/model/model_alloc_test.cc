// A step allocates nothing: operator new of this test binary counts.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "model/model.h"
#include "model/testing/batch_builder.h"
#include "model/testing/load_gguf.h"
#include "model/testing/tiny_llama.h"
#include "ops/cpu/thread_pool.h"

namespace {
std::atomic<int64_t> allocations{0};

void* counted(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* p = std::malloc(bytes);
  if (!p) throw std::bad_alloc();
  return p;
}
}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return std::malloc(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return std::malloc(bytes); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }

namespace vayu::model {
namespace {

TEST(ModelStep, AllocatesNothing) {
  testing::TinyLlama spec;
  spec.format = DataFormat::kQ4_1;
  const auto bytes = spec.build();
  const auto file = *loader::GgufFile::parse(bytes, "tiny.gguf");
  ThreadPool pool(2);
  ModelLoadOptions options;
  options.ops = {ops::Backend::kCpu, &pool};
  options.num_pages = 8;
  auto model = std::move(*testing::load_gguf(*file, options));
  testing::TestSequence a{std::vector<TokenId>(40, 3), {0, 1, 2}};
  testing::TestSequence b{std::vector<TokenId>(40, 5), {3, 4, 5}};
  Batch prefill, mixed;
  testing::append_row(prefill, a, 20, options.page_size, false);
  testing::append_row(mixed, a, 1, options.page_size, false);
  testing::append_row(mixed, b, 33, options.page_size, false);
  std::vector<float> logits(2 * spec.vocab);
  const int64_t before = allocations.load();
  model->forward(prefill, logits.data());
  model->forward(mixed, logits.data());
  EXPECT_EQ(allocations.load(), before);
}

}  // namespace
}  // namespace vayu::model
