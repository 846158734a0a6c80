#include "ops/attention/device_mla_gather.h"

#include "ops/cuda/cuda_test_util.h"

namespace vayu::ops {
namespace {

constexpr int64_t kSpare = 64;  // elements behind each output, which stay poison

void expect_same(const std::vector<Bf16>& got, const std::vector<Bf16>& expected) {
  for (size_t i = 0; i < got.size(); ++i) {
    if (i >= expected.size()) {
      ASSERT_EQ(got[i].bits, 0xFFFF) << "overrun";
    } else if (std::isnan(as_float(expected[i]))) {
      ASSERT_TRUE(std::isnan(as_float(got[i]))) << i;
    } else {
      ASSERT_EQ(got[i].bits, expected[i].bits) << i;
    }
  }
}

// Random bytes, so that every pattern is there, in pages out of order and some twice; equal to the last bit but for the
// payload of NaN.
TEST(DeviceMlaGatherCuda, IsTheReference) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  struct Dims {
    int32_t latent, rope;
  };
  for (const DeviceKvFormat format : {DeviceKvFormat::kBF16, DeviceKvFormat::kF8E4M3}) {
    for (const Dims& dims : {Dims{512, 64}, Dims{128, 32}, Dims{272, 16}, Dims{8, 8}, Dims{64, 0}}) {
      DeviceKvLayer kv{.format = format, .num_kv_heads = 1, .head_dim = dims.latent + dims.rope};
      kv.latent_dim = dims.latent;
      const auto pages = static_cast<int32_t>(random.integer(1, 60)), pool = pages + 3;
      std::vector<uint8_t> memory(pool * kv.page_bytes());
      for (uint8_t& byte : memory) byte = static_cast<uint8_t>(random.integer(0, 255));
      std::vector<int32_t> sources(pages);
      for (int32_t& source : sources) source = static_cast<int32_t>(random.integer(0, pool - 1));
      std::vector<Bf16> latents(int64_t{pages} * 16 * dims.latent), rope(int64_t{pages} * 16 * dims.rope);
      MlaGatherArgs args{
          .kv = kv, .sources = sources.data(), .num_pages = pages, .latents = latents.data(), .rope = rope.data()};
      args.kv.pages = memory.data();
      mla_gather_ref(args);
      const DeviceArray<uint8_t> device_pages(memory);
      const DeviceArray<int32_t> device_sources(sources);
      const DeviceArray<Bf16> device_latents(static_cast<int64_t>(latents.size()) + kSpare);
      const DeviceArray<Bf16> device_rope(static_cast<int64_t>(rope.size()) + kSpare);
      args.kv.pages = device_pages.get();
      args.sources = device_sources.get();
      args.latents = device_latents.get();
      args.rope = device_rope.get();
      mla_gather_cuda(nullptr, args);
      expect_same(device_latents.host(), latents);
      expect_same(device_rope.host(), rope);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(DeviceMlaGatherCuda, Speed) {
  VAYU_NEEDS_DEVICE();
  if (std::getenv("VAYU_SPEED") == nullptr) GTEST_SKIP() << "VAYU_SPEED is not set";
  for (const DeviceKvFormat format : {DeviceKvFormat::kBF16, DeviceKvFormat::kF8E4M3}) {
    DeviceKvLayer kv{.format = format, .num_kv_heads = 1, .head_dim = 576};
    kv.latent_dim = 512;
    const int32_t pages = 224;
    std::vector<int32_t> sources(pages);
    for (int32_t i = 0; i < pages; ++i) sources[i] = pages - 1 - i;
    const DeviceArray<uint8_t> memory(pages * kv.page_bytes());
    const DeviceArray<int32_t> device_sources(sources);
    const DeviceArray<Bf16> latents(pages * 16 * 512), rope(pages * 16 * 64);
    kv.pages = memory.get();
    const MlaGatherArgs args{
        .kv = kv, .sources = device_sources.get(), .num_pages = pages, .latents = latents.get(), .rope = rope.get()};
    const double us = chained_us([&](CudaStream stream, int) { mla_gather_cuda(stream, args); }, 8, 4).value();
    const double bytes = static_cast<double>(pages) * (kv.page_bytes() + 16 * 576 * 2);
    std::printf("SPEED mla_gather 3584 %s %.1f us %.0f GB/s %.2f of the read ceiling\n",
                format == DeviceKvFormat::kBF16 ? "bf16" : "fp8", us, bytes / us * 1e-3,
                bytes / us * 1e-3 / read_ceiling_gb_s());
  }
}

}  // namespace
}  // namespace vayu::ops
