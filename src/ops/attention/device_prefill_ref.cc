#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/data_format.h"
#include "ops/attention/device_prefill.h"

namespace vayu::ops {
namespace {

// K (plane 0) or V (plane 1) of one cached token and head.
void read_kv(const DevicePrefill& args, int32_t page_begin, int32_t position, int32_t head, int32_t plane, float* out) {
  const DeviceKvLayer& kv = args.kv;
  const int64_t page = args.batch.page_table[page_begin + position / kv.page_size];
  const int64_t element =
      (((page * kv.num_kv_heads + head) * 2 + plane) * kv.page_size + position % kv.page_size) * kv.head_dim;
  const auto* data = static_cast<const std::byte*>(kv.pages) + element * kv.element_bytes();
  dequantize_row(kv.format == DeviceKvFormat::kBF16 ? DataFormat::kBF16 : DataFormat::kF8E4M3, data, out, kv.head_dim);
}

void attend(const DevicePrefill& args, int32_t page_begin, int32_t visible, int64_t token, int32_t head) {
  const int32_t dim = args.kv.head_dim, kv_head = head / (args.num_q_heads / args.kv.num_kv_heads);
  std::vector<float> q(dim), element(dim), result(dim);
  std::vector<double> sum(dim, 0.0), logits(visible);
  dequantize_row(DataFormat::kBF16, args.q + token * args.q_stride + int64_t{head} * dim, q.data(), dim);
  double top = -std::numeric_limits<double>::infinity(), total = 0;
  for (int32_t i = 0; i < visible; ++i) {
    read_kv(args, page_begin, i, kv_head, 0, element.data());
    double dot = 0;
    for (int32_t d = 0; d < dim; ++d) dot += double{q[d]} * element[d];
    logits[i] = dot * args.scale;
    top = logits[i] > top || std::isnan(logits[i]) ? logits[i] : top;
  }
  for (int32_t i = 0; i < visible; ++i) {
    const double weight = std::exp(logits[i] - top);
    read_kv(args, page_begin, i, kv_head, 1, element.data());
    for (int32_t d = 0; d < dim; ++d) sum[d] += weight * element[d];
    total += weight;
  }
  for (int32_t d = 0; d < dim; ++d) result[d] = static_cast<float>(sum[d] / total);
  quantize_row(DataFormat::kBF16, result.data(), args.out + (token * args.num_q_heads + head) * dim, dim);
}

}  // namespace

void device_prefill_ref(const DevicePrefill& args) {
  const DeviceBatch& batch = args.batch;
  for (int32_t row = 0; row < batch.num_rows; ++row) {
    const int32_t q_begin = batch.qo_indptr[row], q_len = batch.qo_indptr[row + 1] - q_begin;
    const int32_t kv_len = batch.kv_lens[row];
    if (kv_len == 0 || (q_len == 1 && args.rows == PrefillRows::kMultiToken)) continue;
    for (int32_t t = 0; t < q_len; ++t) {
      for (int32_t head = 0; head < args.num_q_heads; ++head) {
        attend(args, batch.kv_indptr[row], kv_len - q_len + t + 1, q_begin + t, head);
      }
    }
  }
}

}  // namespace vayu::ops
