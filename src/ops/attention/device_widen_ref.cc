#include <vector>

#include "base/data_format.h"
#include "ops/attention/device_widen.h"

namespace vayu::ops {

void widen_pages_ref(const WidenPagesArgs& args) {
  std::vector<float> values(args.page_elements);
  for (int32_t i = 0; i < args.num_pages; ++i) {
    dequantize_row(DataFormat::kF8E4M3, args.from + args.sources[i] * args.page_elements, values.data(),
                   args.page_elements);
    quantize_row(DataFormat::kBF16, values.data(), args.to + i * args.page_elements, args.page_elements);
  }
}

}  // namespace vayu::ops
