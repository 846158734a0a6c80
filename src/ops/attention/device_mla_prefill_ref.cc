#include <cmath>
#include <limits>
#include <vector>

#include "base/data_format.h"
#include "ops/attention/device_mla_prefill.h"

namespace vayu::ops {
namespace {

constexpr int32_t kKeyDim = kMlaPrefillNope + kMlaPrefillRope;

void load(const Bf16* from, int32_t count, float* to) { dequantize_row(DataFormat::kBF16, from, to, count); }

// The context of a row as one head sees it: (kv_len, 192) and (kv_len, 128).
struct HeadContext {
  std::vector<float> keys, values;

  HeadContext(const DeviceMlaPrefill& args, const MlaPrefillRow& row, int64_t head)
      : keys(row.kv_len * int64_t{kKeyDim}), values(row.kv_len * int64_t{kMlaPrefillValue}) {
    for (int64_t i = 0; i < row.kv_len; ++i) {
      const Bf16* kv = args.kv + (row.kv_first + i) * 2 * args.num_heads * kMlaPrefillNope;
      float* key = keys.data() + i * kKeyDim;
      load(kv + head * kMlaPrefillNope, kMlaPrefillNope, key);
      load(args.rope + (row.kv_first + i) * kMlaPrefillRope, kMlaPrefillRope, key + kMlaPrefillNope);
      load(kv + (args.num_heads + head) * kMlaPrefillValue, kMlaPrefillValue, values.data() + i * kMlaPrefillValue);
    }
  }
};

void attend(const DeviceMlaPrefill& args, const HeadContext& context, int32_t visible, int64_t token, int64_t head) {
  std::vector<float> q(kKeyDim), result(kMlaPrefillValue);
  load(args.q + token * args.q_stride + head * kKeyDim, kKeyDim, q.data());
  std::vector<double> logits(visible), sum(kMlaPrefillValue, 0.0);
  double top = -std::numeric_limits<double>::infinity(), total = 0;
  for (int64_t i = 0; i < visible; ++i) {
    double dot = 0;
    for (int32_t d = 0; d < kKeyDim; ++d) dot += double{q[d]} * context.keys[i * kKeyDim + d];
    logits[i] = dot * args.scale;
    top = logits[i] > top || std::isnan(logits[i]) ? logits[i] : top;
  }
  for (int64_t i = 0; i < visible; ++i) {
    const double weight = std::exp(logits[i] - top);
    for (int32_t d = 0; d < kMlaPrefillValue; ++d) sum[d] += weight * context.values[i * kMlaPrefillValue + d];
    total += weight;
  }
  for (int32_t d = 0; d < kMlaPrefillValue; ++d) result[d] = static_cast<float>(sum[d] / total);
  quantize_row(DataFormat::kBF16, result.data(), args.out + (token * args.num_heads + head) * kMlaPrefillValue,
               kMlaPrefillValue);
}

}  // namespace

void device_mla_prefill_ref(const DeviceMlaPrefill& args) {
  for (int32_t r = 0; r < args.num_rows; ++r) {
    const MlaPrefillRow& row = args.rows[r];
    for (int32_t head = 0; head < args.num_heads; ++head) {
      const HeadContext context(args, row, head);
      for (int32_t t = 0; t < row.q_len; ++t) {
        attend(args, context, row.kv_len - row.q_len + t + 1, row.q_begin + t, head);
      }
    }
  }
}

}  // namespace vayu::ops
