// The definition of absorbed latent attention: all scores, softmax and weighted sum in double.
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/data_format.h"
#include "ops/attention/device_mla.h"

namespace vayu::ops {
namespace {

std::vector<float> load_cache(const MlaAttentionArgs& args, int32_t row, int32_t count) {
  const DeviceKvLayer& kv = args.kv;
  const DataFormat format = kv.format == DeviceKvFormat::kBF16 ? DataFormat::kBF16 : DataFormat::kF8E4M3;
  std::vector<float> cache(int64_t{count} * kv.head_dim);
  for (int32_t j = 0; j < count; ++j) {
    const int64_t page = args.batch.page_table[args.batch.kv_indptr[row] + j / kv.page_size];
    const int64_t element = (page * kv.page_size + j % kv.page_size) * kv.head_dim;
    dequantize_row(format, static_cast<const uint8_t*>(kv.pages) + element * kv.element_bytes(),
                   cache.data() + int64_t{j} * kv.head_dim, kv.head_dim);
  }
  return cache;
}

void attend(const MlaAttentionArgs& args, const Bf16* query, const std::vector<float>& cache, int32_t visible,
            Bf16* to) {
  const DeviceKvLayer& kv = args.kv;
  std::vector<float> q(kv.head_dim);
  dequantize_row(DataFormat::kBF16, query, q.data(), kv.head_dim);
  std::vector<double> weights(visible), out(kv.latent_dim, 0.0);
  double max = -INFINITY, sum = 0;
  for (int32_t j = 0; j < visible; ++j) {
    double dot = 0;
    for (int d = 0; d < kv.head_dim; ++d) dot += double{q[d]} * cache[int64_t{j} * kv.head_dim + d];
    weights[j] = dot * args.scale;
    max = std::max(max, weights[j]);
  }
  for (double& weight : weights) sum += weight = std::exp(weight - max);
  for (int32_t j = 0; j < visible; ++j) {
    for (int d = 0; d < kv.latent_dim; ++d) out[d] += weights[j] / sum * cache[int64_t{j} * kv.head_dim + d];
  }
  const std::vector<float> values(out.begin(), out.end());
  quantize_row(DataFormat::kBF16, values.data(), to, kv.latent_dim);
}

}  // namespace

void mla_attention_ref(const MlaAttentionArgs& args) {
  const DeviceBatch& batch = args.batch;
  const DeviceKvLayer& kv = args.kv;
  const int64_t out_row = int64_t{args.num_heads} * kv.latent_dim;
  std::fill(args.out, args.out + batch.num_tokens * out_row, Bf16{0});
  for (int32_t row = 0; row < batch.num_rows; ++row) {
    const int32_t end = std::min(batch.qo_indptr[row + 1], batch.num_tokens);
    const std::vector<float> cache = load_cache(args, row, batch.kv_lens[row]);
    for (int64_t t = batch.qo_indptr[row]; t < end; ++t) {
      const auto visible = static_cast<int32_t>(batch.kv_lens[row] - (batch.qo_indptr[row + 1] - 1 - t));
      for (int64_t h = 0; h < args.num_heads && visible > 0; ++h) {
        attend(args, args.q + (t * args.num_heads + h) * kv.head_dim, cache, visible,
               args.out + t * out_row + h * kv.latent_dim);
      }
    }
  }
}

}  // namespace vayu::ops
