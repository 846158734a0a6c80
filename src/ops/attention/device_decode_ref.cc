// The definition of decode attention: all scores, softmax and weighted sum in double.
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/data_format.h"
#include "ops/attention/device_decode.h"
#include "ops/cuda/host_rows.h"

namespace vayu::ops {
namespace {

void load_row(const DeviceKvLayer& kv, int64_t element, float* out) {
  const auto* bytes = static_cast<const uint8_t*>(kv.pages) + element * kv.element_bytes();
  const DataFormat format = kv.format == DeviceKvFormat::kBF16 ? DataFormat::kBF16 : DataFormat::kF8E4M3;
  dequantize_row(format, bytes, out, kv.head_dim);
}

// Attention of one query; keys and values: (kv_len, head_dim).
void attend(const DecodeAttentionArgs& args, const float* q, const std::vector<float>& keys,
            const std::vector<float>& values, int32_t kv_len, std::vector<double>& weights, double* out) {
  const int head_dim = args.kv.head_dim;
  weights.resize(kv_len);
  double max = -INFINITY;
  for (int32_t j = 0; j < kv_len; ++j) {
    double dot = 0;
    for (int d = 0; d < head_dim; ++d) dot += double{q[d]} * keys[int64_t{j} * head_dim + d];
    weights[j] = dot * args.scale;
    max = std::max(max, weights[j]);
  }
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - max);
  std::fill(out, out + head_dim, 0.0);
  for (int32_t j = 0; j < kv_len; ++j) {
    for (int d = 0; d < head_dim; ++d) out[d] += weights[j] / sum * values[int64_t{j} * head_dim + d];
  }
}

}  // namespace

void decode_attention_ref(const DecodeAttentionArgs& args) {
  const DeviceKvLayer& kv = args.kv;
  const int group = args.num_q_heads / kv.num_kv_heads;
  std::vector<float> keys, values, q(kv.head_dim);
  std::vector<double> weights, row_out(args.out.cols);
  for (int32_t i = 0; i < args.num_decode_rows; ++i) {
    const int32_t row = args.decode_rows[i];
    if (row < 0) continue;
    const int64_t token = args.batch.qo_indptr[row];
    const int32_t kv_len = args.batch.kv_lens[row];
    if (token >= args.batch.num_tokens) continue;
    std::fill(row_out.begin(), row_out.end(), 0.0);
    keys.resize(int64_t{kv_len} * kv.head_dim);
    values.resize(keys.size());
    for (int head = 0; head < kv.num_kv_heads && kv_len > 0; ++head) {
      for (int32_t j = 0; j < kv_len; ++j) {
        const int64_t page = args.batch.page_table[args.batch.kv_indptr[row] + j / kv.page_size];
        const int64_t k_row = (page * kv.num_kv_heads + head) * 2 * kv.page_size + j % kv.page_size;
        load_row(kv, k_row * kv.head_dim, keys.data() + int64_t{j} * kv.head_dim);
        load_row(kv, (k_row + kv.page_size) * kv.head_dim, values.data() + int64_t{j} * kv.head_dim);
      }
      for (int h = head * group; h < (head + 1) * group; ++h) {
        const Bf16* query = args.q + token * args.q_stride + int64_t{h} * kv.head_dim;
        dequantize_row(DataFormat::kBF16, query, q.data(), kv.head_dim);
        attend(args, q.data(), keys, values, kv_len, weights, row_out.data() + int64_t{h} * kv.head_dim);
      }
    }
    store_host_row(args.out, token, std::vector<float>(row_out.begin(), row_out.end()));
  }
}

}  // namespace vayu::ops
