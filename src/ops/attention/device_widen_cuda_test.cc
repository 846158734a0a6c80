#include "ops/attention/device_widen.h"

#include "ops/cuda/cuda_test_util.h"

namespace vayu::ops {
namespace {

// Every bit pattern, in pages out of order; equal to the last bit but for the payload of NaN.
TEST(DeviceWidenCuda, IsExact) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const int64_t elements : {256, 4096, 8192, 9216, 32768}) {
    const auto pages = static_cast<int32_t>(random.integer(1, 40));
    std::vector<F8E4M3> from((pages + 3) * elements);
    for (F8E4M3& v : from) v.bits = static_cast<uint8_t>(random.integer(0, 255));
    for (int i = 0; i < 256; ++i) from[i].bits = static_cast<uint8_t>(i);
    std::vector<int32_t> sources(pages, 0);  // page 0 first: all patterns
    for (int32_t i = 1; i < pages; ++i) sources[i] = static_cast<int32_t>(random.integer(0, pages + 2));
    std::vector<Bf16> expected(pages * elements);
    WidenPagesArgs args{.from = from.data(),
                        .sources = sources.data(),
                        .num_pages = pages,
                        .page_elements = elements,
                        .to = expected.data()};
    widen_pages_ref(args);
    const DeviceArray<F8E4M3> device_from(from);
    const DeviceArray<int32_t> device_sources(sources);
    const DeviceArray<Bf16> to(pages * elements + 64);
    args.from = device_from.get();
    args.sources = device_sources.get();
    args.to = to.get();
    widen_pages_cuda(nullptr, args);
    const std::vector<Bf16> got = to.host();
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
}

}  // namespace
}  // namespace vayu::ops
