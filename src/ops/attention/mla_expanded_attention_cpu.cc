// A head against one expanded chunk: its keys are turned round and its values brought together once, then tokens go in
// tiles of six through the register tile of paged attention. Every sum is a chain of its own, so a token's result does
// not depend on its tile.
#include "ops/attention/mla_expanded_chunk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/attention/mla_expanded_attention_cpu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/attention/tile-inl.h"
#include "ops/cpu/vector_math-inl.h"

#include <algorithm>
#include <cmath>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace vayu::ops {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kScoreStride = kExpandedChunk + 16;  // off a power of two
constexpr int kMaxVectors = kExpandedChunk / 4;        // of floats in a row of scores

struct HeadWork {
  const MlaExpandedArgs& args;
  const MlaExpandedBuffers& buffers;
  int32_t row;
  int32_t first;  // token of the context that the chunk starts with
  int32_t count;  // tokens in the chunk
  int64_t head;
  int64_t v_stride;  // v_dim, padded to whole vectors
  float* k;          // (nope_dim + rope_dim, kExpandedChunk)
  float* v;          // (kExpandedChunk, v_stride)
  float* scores;     // (kTileRows, kScoreStride)
  float* sums;       // (kTileRows, v_stride)

  int32_t visible(int64_t token) const { return std::clamp(visible_tokens(args, row, token) - first, 0, count); }
};

void gather_head(const HeadWork& work) {
  const MlaExpandedShape& shape = work.args.shape;
  const int64_t heads = shape.num_q_heads;
  for (int32_t j = 0; j < work.count; ++j) {
    const float* k = work.buffers.k + (j * heads + work.head) * shape.nope_dim;
    const float* shared = work.buffers.shared_key + int64_t{j} * shape.rope_dim;
    float* column = work.k + j;
    for (int32_t d = 0; d < shape.nope_dim; ++d) column[int64_t{d} * kExpandedChunk] = k[d];
    column += int64_t{shape.nope_dim} * kExpandedChunk;
    for (int32_t d = 0; d < shape.rope_dim; ++d) column[int64_t{d} * kExpandedChunk] = shared[d];
    float* v = work.v + j * work.v_stride;
    std::memcpy(v, work.buffers.v + (j * heads + work.head) * shape.v_dim, shape.v_dim * sizeof(float));
    std::fill(v + shape.v_dim, v + work.v_stride, 0.0f);
  }
}

// c (rows, vectors) += a (rows, depth) b (depth, vectors)
void multiply_all(int rows, int64_t vectors, const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                  int64_t depth, float* c, int64_t c_stride) {
  const int64_t lanes = hn::Lanes(hn::ScalableTag<float>());
  const float* columns[kMaxVectors];
  for (int64_t begin = 0; begin < vectors; begin += kMaxVectors) {
    const int some = static_cast<int>(std::min<int64_t>(kMaxVectors, vectors - begin));
    for (int i = 0; i < some; ++i) columns[i] = b + (begin + i) * lanes;
    multiply(rows, some, a, a_stride, columns, b_stride, depth, c + begin * lanes, c_stride);
  }
}

// Scores of one token become weights exp(score * scale - max); returns max and adds the weights up.
float softmax_row(float* scores, int32_t keys, float scale, float& sum) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const V lowest = hn::Set(d, -INFINITY);
  V max = lowest;
  for (int i = 0; i < keys; i += lanes) {
    V scaled = hn::Mul(hn::LoadU(d, scores + i), hn::Set(d, scale));
    if (i + lanes > keys) scaled = hn::IfThenElse(hn::FirstN(d, keys - i), scaled, lowest);
    hn::StoreU(scaled, d, scores + i);
    max = hn::Max(max, scaled);
  }
  max = hn::MaxOfLanes(d, max);
  V total = hn::Zero(d);
  for (int i = 0; i < keys; i += lanes) {
    const V weight = exp_vector(d, hn::Sub(hn::LoadU(d, scores + i), max));
    hn::StoreU(weight, d, scores + i);
    total = hn::Add(total, weight);
  }
  sum = hn::GetLane(hn::SumOfLanes(d, total));
  return hn::GetLane(max);
}

// Folds the sums of a chunk into what the chunks before it gave.
void merge_row(float* out, const float* sums, int32_t v_dim, float chunk_max, float chunk_weight, float& max,
               float& weight) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  const float new_max = std::max(max, chunk_max);
  const auto keep = exp_vector(d, hn::Set(d, max - new_max));  // 0 for the first chunk
  const auto add = exp_vector(d, hn::Set(d, chunk_max - new_max));
  const auto merged = [&](auto old, auto sum) HWY_ATTR { return hn::MulAdd(old, keep, hn::Mul(sum, add)); };
  int32_t i = 0;
  for (; i + lanes <= v_dim; i += lanes) hn::StoreU(merged(hn::LoadU(d, out + i), hn::LoadU(d, sums + i)), d, out + i);
  if (i < v_dim) {
    store_tail(merged(load_tail(d, out + i, v_dim - i), load_tail(d, sums + i, v_dim - i)), d, out + i, v_dim - i);
  }
  weight = hn::GetLane(merged(hn::Set(d, weight), hn::Set(d, chunk_weight)));
  max = new_max;
}

// Tokens [token, token + rows) of the row.
void attend_tile(const HeadWork& work, int64_t token, int rows) {
  const MlaExpandedArgs& args = work.args;
  const MlaExpandedShape& shape = args.shape;
  const int64_t lanes = hn::Lanes(hn::ScalableTag<float>());
  const int32_t keys = work.visible(token + rows - 1);
  if (keys == 0) return;
  const int64_t first_token = args.qo_indptr[work.row] + token;
  const int64_t q_dim = shape.nope_dim + shape.rope_dim;
  std::fill_n(work.scores, rows * kScoreStride, 0.0f);
  multiply_all(rows, (keys + lanes - 1) / lanes, args.q + first_token * args.q_stride + work.head * q_dim,
               args.q_stride, work.k, kExpandedChunk, q_dim, work.scores, kScoreStride);
  float max[kTileRows];
  float weight[kTileRows];
  for (int r = 0; r < rows; ++r) {
    max[r] = softmax_row(work.scores + r * kScoreStride, work.visible(token + r), args.scale, weight[r]);
  }

  std::fill_n(work.sums, rows * work.v_stride, 0.0f);
  const int32_t common = work.visible(token);
  multiply_all(rows, work.v_stride / lanes, work.scores, kScoreStride, work.v, work.v_stride, common, work.sums,
               work.v_stride);
  for (int r = 0; r < rows; ++r) {
    // Later tokens of the tile see a few keys more. A masked value is never touched: 0 x NaN would not be 0.
    const int32_t more = work.visible(token + r) - common;
    multiply_all(1, work.v_stride / lanes, work.scores + r * kScoreStride + common, kScoreStride,
                 work.v + common * work.v_stride, work.v_stride, more, work.sums + r * work.v_stride, work.v_stride);
    if (common + more == 0) continue;
    const int64_t pair = (token + r) * shape.num_q_heads + work.head;
    merge_row(args.out + ((first_token + r) * shape.num_q_heads + work.head) * shape.v_dim,
              work.sums + r * work.v_stride, shape.v_dim, max[r], weight[r], work.buffers.max[pair],
              work.buffers.weight[pair]);
  }
}

void attend_heads(const MlaExpandedArgs& args, int32_t row, int32_t first, int32_t count, const MlaExpandedBuffers& b,
                  int64_t begin, int64_t end, int worker) {
  const MlaExpandedShape& shape = args.shape;
  const int64_t tokens = args.qo_indptr[row + 1] - args.qo_indptr[row];
  const int64_t v_stride = (shape.v_dim + 15) / 16 * 16;
  float* k = b.workers + worker * expanded_worker_floats(shape);
  float* v = k + int64_t{shape.nope_dim + shape.rope_dim} * kExpandedChunk;
  float* scores = v + v_stride * kExpandedChunk;
  for (int64_t head = begin; head < end; ++head) {
    const HeadWork work{args, b, row, first, count, head, v_stride, k, v, scores, scores + kTileRows * kScoreStride};
    gather_head(work);
    for (int64_t t = 0; t < tokens; t += kTileRows) {
      attend_tile(work, t, static_cast<int>(std::min<int64_t>(kTileRows, tokens - t)));
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace vayu::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vayu::ops {
HWY_EXPORT(attend_heads);

int64_t expanded_worker_floats(const MlaExpandedShape& shape) {
  constexpr int64_t kMaxTileRows = 6;  // kTileRows of tile-inl.h
  const int64_t v_stride = (shape.v_dim + 15) / 16 * 16;
  const int64_t floats = (shape.nope_dim + shape.rope_dim + v_stride) * int64_t{kExpandedChunk} +
                         kMaxTileRows * (kExpandedChunk + 16 + v_stride);
  return (floats + 15) / 16 * 16;
}

void attend_expanded_cpu(const MlaExpandedArgs& args, int32_t row, int32_t first, int32_t count,
                         const MlaExpandedBuffers& buffers, int64_t begin, int64_t end, int worker) {
  HWY_DYNAMIC_DISPATCH(attend_heads)(args, row, first, count, buffers, begin, end, worker);
}

}  // namespace vayu::ops
#endif
