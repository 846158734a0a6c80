#include <vector>

#include "base/data_format.h"
#include "ops/attention/device_mla_gather.h"

namespace vayu::ops {

void mla_gather_ref(const MlaGatherArgs& args) {
  const DeviceKvLayer& kv = args.kv;
  const DataFormat format = kv.format == DeviceKvFormat::kBF16 ? DataFormat::kBF16 : DataFormat::kF8E4M3;
  const int32_t rope_dim = kv.head_dim - kv.latent_dim;
  std::vector<float> slot(kv.head_dim);
  for (int64_t row = 0; row < int64_t{args.num_pages} * kv.page_size; ++row) {
    const int64_t page = args.sources[row / kv.page_size];
    const int64_t element = (page * kv.page_size + row % kv.page_size) * kv.head_dim;
    dequantize_row(format, static_cast<const uint8_t*>(kv.pages) + element * kv.element_bytes(), slot.data(),
                   kv.head_dim);
    quantize_row(DataFormat::kBF16, slot.data(), args.latents + row * kv.latent_dim, kv.latent_dim);
    quantize_row(DataFormat::kBF16, slot.data() + kv.latent_dim, args.rope + row * rope_dim, rope_dim);
  }
}

}  // namespace vayu::ops
