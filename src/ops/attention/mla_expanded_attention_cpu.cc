// A query against the expanded keys of its head: dot products, one softmax over the chunk, weighted sum of the values.
#include "ops/attention/mla_expanded_chunk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/attention/mla_expanded_attention_cpu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/cpu/vector_math-inl.h"

#include <algorithm>
#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace vayu::ops {
namespace HWY_NAMESPACE {
namespace {

float dot(const float* a, const float* b, int32_t n) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  auto sum = hn::Zero(d);
  int32_t i = 0;
  for (; i + lanes <= n; i += lanes) sum = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum);
  if (i < n) sum = hn::MulAdd(load_tail(d, a + i, n - i), load_tail(d, b + i, n - i), sum);
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// y = y * keep + x * add
void blend(float* y, float keep, const float* x, float add, int32_t n) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  const auto one = [&](auto vy, auto vx)
                       HWY_ATTR { return hn::MulAdd(vx, hn::Set(d, add), hn::Mul(vy, hn::Set(d, keep))); };
  int32_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(one(hn::LoadU(d, y + i), hn::LoadU(d, x + i)), d, y + i);
  if (i < n) store_tail(one(load_tail(d, y + i, n - i), load_tail(d, x + i, n - i)), d, y + i, n - i);
}

void attend_pair(const MlaExpandedArgs& args, const float* q, int64_t head, int32_t seen, const MlaExpandedBuffers& b,
                 float* out, float& max, float& weight) {
  const MlaExpandedShape& shape = args.shape;
  float scores[kExpandedChunk];
  float new_max = max;
  for (int32_t j = 0; j < seen; ++j) {
    const float* k = b.k + (j * int64_t{shape.num_q_heads} + head) * shape.nope_dim;
    scores[j] = args.scale * (dot(q, k, shape.nope_dim) +
                              dot(q + shape.nope_dim, b.shared_key + int64_t{j} * shape.rope_dim, shape.rope_dim));
    new_max = std::max(new_max, scores[j]);
  }
  float keep = std::exp(max - new_max);  // 0 for the first chunk
  float sum = weight * keep;
  for (int32_t j = 0; j < seen; ++j) {
    const float w = std::exp(scores[j] - new_max);
    sum += w;
    blend(out, keep, b.v + (j * int64_t{shape.num_q_heads} + head) * shape.v_dim, w, shape.v_dim);
    keep = 1;
  }
  max = new_max;
  weight = sum;
}

void attend_pairs(const MlaExpandedArgs& args, int32_t row, int32_t first, int32_t count, const MlaExpandedBuffers& b,
                  int64_t begin, int64_t end) {
  const MlaExpandedShape& shape = args.shape;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t token = i / shape.num_q_heads;
    const int64_t head = i % shape.num_q_heads;
    const int32_t seen = std::min(count, visible_tokens(args, row, token) - first);
    if (seen <= 0) continue;
    const int64_t row_token = args.qo_indptr[row] + token;
    attend_pair(args, args.q + row_token * args.q_stride + head * (shape.nope_dim + shape.rope_dim), head, seen, b,
                args.out + (row_token * shape.num_q_heads + head) * shape.v_dim, b.max[i], b.weight[i]);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace vayu::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vayu::ops {
HWY_EXPORT(attend_pairs);

void attend_expanded_cpu(const MlaExpandedArgs& args, int32_t row, int32_t first, int32_t count,
                         const MlaExpandedBuffers& buffers, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(attend_pairs)(args, row, first, count, buffers, begin, end);
}

}  // namespace vayu::ops
#endif
