// Attention in vectors. Keys are taken in fixed chunks of 256: scores of a chunk, one softmax over them, weighted sum
// of the values; chunks are then merged in order. A token's arithmetic is therefore the same in a decode row, in a
// prefill chunk, on one thread or with its chunks spread over many.
//
// Prefill: up to 96 queries (tokens x the heads of a group) share 64 keys converted to float, in tiles of 6 queries.
// Decode: the heads of a group are one tile that reads the pages directly; the chunks of a long row go to all threads.
// Latent attention has heads enough in a decode row for the way of prefill; its values are the keys, turned round.
#include "ops/attention/paged_attention.h"

#include "ops/attention/attention_plan.h"
#include "ops/cpu/thread_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/attention/paged_attention_cpu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "ops/attention/key_block-inl.h"
#include "ops/attention/tile-inl.h"
#include "ops/cpu/vector_math-inl.h"

#include <algorithm>
#include <cmath>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace vayu::ops {
namespace HWY_NAMESPACE {
namespace {

// scores of all queries against keys [first, first + count) of the chunk that starts at `chunk_begin`.
template <class T>
void score_block(const Work& work, const KeyBlock<T>& block, int32_t chunk_begin, int32_t first, int count) {
  const int lanes = static_cast<int>(hn::Lanes(hn::ScalableTag<float>()));
  for (int q = 0; q < work.num_queries; q += kTileRows) {
    const int rows = std::min(kTileRows, work.num_queries - q);
    const int keys = std::min(count, work.visible(q + rows - 1) - first);
    if (keys <= 0) continue;
    float* scores = work.scores + q * work.scores_stride + (first - chunk_begin);
    const int vectors = (keys + lanes - 1) / lanes;
    for (int r = 0; r < rows; ++r) std::memset(scores + r * work.scores_stride, 0, vectors * lanes * sizeof(float));
    multiply(rows, vectors, work.q + q * work.dim, work.dim, block.k, block.k_stride, work.kv->head_dim, scores,
             work.scores_stride);
  }
}

// sums of queries [q, q + rows) += weights x values of keys [first, first + count).
template <class T>
void add_values(const Work& work, const KeyBlock<T>& block, int q, int rows, const float* weights, int first,
                int count) {
  const int64_t lanes = hn::Lanes(hn::ScalableTag<float>());
  const int vectors = static_cast<int>(work.v_dim / lanes);
  constexpr int kMaxVectors = 16;
  const T* columns[kMaxVectors];
  for (int begin = 0; begin < vectors; begin += kMaxVectors) {
    const int some = std::min(kMaxVectors, vectors - begin);
    for (int t = first; t < first + count;) {
      const int run = t / block.v_run;
      const int depth = std::min((run + 1) * block.v_run, first + count) - t;
      const T* v = block.v[run] + (t - run * block.v_run) * block.v_stride + begin * lanes;
      for (int i = 0; i < some; ++i) columns[i] = v + i * lanes;
      multiply(rows, some, weights + t, work.scores_stride, columns, block.v_stride, depth,
               work.sums + q * work.dim + begin * lanes, work.dim);
      t += depth;
    }
  }
}

template <class T>
void sum_block(const Work& work, const KeyBlock<T>& block, int32_t chunk_begin, int32_t first, int count) {
  for (int q = 0; q < work.num_queries; q += kTileRows) {
    const int rows = std::min(kTileRows, work.num_queries - q);
    const float* weights = work.scores + q * work.scores_stride + (first - chunk_begin);
    const int common = std::clamp(work.visible(q) - first, 0, count);
    if (common > 0) add_values(work, block, q, rows, weights, 0, common);
    // Later tokens of the tile see a few keys more. A masked value is never touched: 0 x NaN would not be 0.
    for (int r = 0; r < rows; ++r) {
      const int keys = std::min(work.visible(q + r) - first, count);
      if (keys > common) {
        add_values(work, block, q + r, 1, weights + r * work.scores_stride, common, keys - common);
      }
    }
  }
}

// Turns the scores of each query into weights exp((score - max) * scale); exact zeros fill the last vector.
void softmax_chunk(const Work& work, int32_t chunk_begin) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const V lowest = hn::Set(d, -INFINITY);
  const V scale = hn::Set(d, work.scale);
  for (int q = 0; q < work.num_queries; ++q) {
    const int keys = std::min(work.visible(q) - chunk_begin, kChunkKeys);
    if (keys <= 0) continue;
    float* scores = work.scores + q * work.scores_stride;
    const int full = keys / lanes * lanes;
    if (full < keys) {
      const V last = hn::IfThenElse(hn::FirstN(d, keys - full), hn::LoadU(d, scores + full), lowest);
      hn::StoreU(last, d, scores + full);
    }
    V max = lowest;
    for (int i = 0; i < keys; i += lanes) max = hn::Max(max, hn::LoadU(d, scores + i));
    max = hn::MaxOfLanes(d, max);
    V sum = hn::Zero(d);
    for (int i = 0; i < keys; i += lanes) {
      const V weight = exp_vector(d, hn::Mul(hn::Sub(hn::LoadU(d, scores + i), max), scale));
      hn::StoreU(weight, d, scores + i);
      sum = hn::Add(sum, weight);
    }
    work.max[q] = hn::GetLane(max);
    work.weight[q] = hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

// max, weight and sums of every query over one chunk of keys.
template <class Source>
void attend_chunk(const Work& work, int32_t chunk) {
  const int32_t begin = chunk * kChunkKeys;
  const int32_t end = std::min(begin + kChunkKeys, work.max_visible());
  KeyBlock<typename Source::Element> block;
  for (int32_t first = begin; first < end; first += kBlockKeys) {
    const int count = std::min(kBlockKeys, end - first);
    Source::keys(work, first, count, block);
    score_block(work, block, begin, first, count);
  }
  softmax_chunk(work, begin);
  std::memset(work.sums, 0, work.num_queries * work.dim * sizeof(float));
  for (int32_t first = begin; first < end; first += kBlockKeys) {
    const int count = std::min(kBlockKeys, end - first);
    Source::values(work, first, count, block);
    sum_block(work, block, begin, first, count);
  }
}

// Folds the next chunk of one query into what the chunks before it gave.
HWY_NOINLINE void merge_chunk(float* HWY_RESTRICT merged, float& merged_max, float& merged_weight,
                              const float* HWY_RESTRICT sums, float max, float weight, float scale, int64_t dim) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = hn::Lanes(d);
  const auto old_max = hn::Set(d, merged_max);
  const auto add_max = hn::Set(d, max);
  const auto new_max = hn::Max(old_max, add_max);
  const auto old_factor = exp_vector(d, hn::Mul(hn::Sub(old_max, new_max), hn::Set(d, scale)));
  const auto add_factor = exp_vector(d, hn::Mul(hn::Sub(add_max, new_max), hn::Set(d, scale)));
  for (int64_t i = 0; i < dim; i += lanes) {
    const auto added = hn::Mul(hn::LoadU(d, sums + i), add_factor);
    hn::StoreU(hn::MulAdd(hn::LoadU(d, merged + i), old_factor, added), d, merged + i);
  }
  const auto added = hn::Mul(hn::Set(d, weight), add_factor);
  merged_weight = hn::GetLane(hn::MulAdd(hn::Set(d, merged_weight), old_factor, added));
  merged_max = hn::GetLane(new_max);
}

void write_output(const float* merged, float weight, float* out, int v_dim) {
  const float inverse = 1.0f / weight;
  for (int i = 0; i < v_dim; ++i) out[i] = merged[i] * inverse;
}

template <class Source>
void attend_all(const Work& work) {
  attend_chunk<Source>(work, 0);
  std::memcpy(work.merged, work.sums, work.num_queries * work.dim * sizeof(float));
  std::memcpy(work.merged_max, work.max, work.num_queries * sizeof(float));
  std::memcpy(work.merged_weight, work.weight, work.num_queries * sizeof(float));
  for (int32_t chunk = 1; chunk * kChunkKeys < work.max_visible(); ++chunk) {
    attend_chunk<Source>(work, chunk);
    for (int q = 0; q < work.num_queries; ++q) {
      if (work.visible(q) <= chunk * kChunkKeys) continue;
      merge_chunk(work.merged + q * work.dim, work.merged_max[q], work.merged_weight[q], work.sums + q * work.dim,
                  work.max[q], work.weight[q], work.scale, work.dim);
    }
  }
}

template <class T>
void attend(const Work& work, int32_t chunk) {
  const bool direct = work.num_queries <= kTileRows && work.kv->page_size % 16 == 0 && work.kv->head_dim % 16 == 0 &&
                      work.kv->latent_dim == 0;
  if (chunk >= 0)
    return direct ? attend_chunk<DirectSource<T>>(work, chunk) : attend_chunk<ConvertedSource<T>>(work, chunk);
  return direct ? attend_all<DirectSource<T>>(work) : attend_all<ConvertedSource<T>>(work);
}

Work make_work(const PagedAttentionArgs& args, const AttentionLayout& layout, const AttentionUnit& unit, int head,
               float* buffers) {
  Work work;
  const int32_t row_tokens = args.qo_indptr[unit.row + 1] - args.qo_indptr[unit.row];
  work.kv = &args.kv;
  work.pages = args.page_table + args.kv_indptr[unit.row];
  work.head = head;
  work.group = args.num_q_heads / args.kv.num_kv_heads;
  work.num_queries = unit.num_tokens * work.group;
  work.first_visible = args.kv_lens[unit.row] - row_tokens + unit.first_token + 1;
  work.scale = args.scale;
  work.dim = layout.dim;
  work.v_dim = args.kv.latent_dim > 0 ? (args.kv.latent_dim + 15) / 16 * 16 : layout.dim;
  work.scores_stride = layout.scores_stride;
  const auto take = [&buffers](int64_t floats) {
    float* p = buffers;
    buffers += floats;
    return p;
  };
  const int64_t n = layout.max_queries;
  work.q = take(n * layout.dim);
  work.sums = take(n * layout.dim);
  work.merged = take(n * layout.dim);
  work.block = take(kBlockKeys * layout.dim);
  work.scores = take(n * layout.scores_stride);
  work.max = take(n);
  work.weight = take(n);
  work.merged_max = take(n);
  work.merged_weight = take(n);
  const float* q = args.q + (args.qo_indptr[unit.row] + unit.first_token) * args.q_stride +
                   int64_t{head} * work.group * args.kv.head_dim;
  for (int i = 0; i < work.num_queries; ++i) {
    std::memcpy(work.q + i * work.dim, q + i / work.group * args.q_stride + i % work.group * args.kv.head_dim,
                args.kv.head_dim * sizeof(float));
  }
  return work;
}

// One unit of one KV head. partials: (num_q_heads, partial_floats) of the unit when it is a chunk of a split row.
void run_unit(const PagedAttentionArgs& args, const AttentionLayout& layout, const AttentionUnit& unit, int head,
              float* buffers, float* partials) {
  const Work work = make_work(args, layout, unit, head, buffers);
  switch (args.kv.format) {
    case KvFormat::kF32:
      attend<float>(work, unit.chunk);
      break;
    case KvFormat::kF16:
      attend<hwy::float16_t>(work, unit.chunk);
      break;
    case KvFormat::kBF16:
      attend<hwy::bfloat16_t>(work, unit.chunk);
      break;
  }
  const int64_t first_head = int64_t{head} * work.group;
  for (int q = 0; q < work.num_queries; ++q) {
    if (unit.chunk >= 0) {
      float* partial = partials + (first_head + q) * layout.partial_floats;
      std::memcpy(partial, work.sums + q * work.dim, work.dim * sizeof(float));
      partial[work.dim] = work.max[q];
      partial[work.dim + 1] = work.weight[q];
    } else {
      const int64_t token = args.qo_indptr[unit.row] + unit.first_token + q / work.group;
      write_output(work.merged + q * work.dim, work.merged_weight[q],
                   args.out + (token * args.num_q_heads + first_head + q % work.group) * args.kv.v_dim(),
                   args.kv.v_dim());
    }
  }
}

// Merges the chunks of one split row, in order, into its output. partials: (num_chunks, num_q_heads, partial_floats).
void merge_row(const PagedAttentionArgs& args, const AttentionLayout& layout, int32_t row, int num_chunks,
               float* partials) {
  const int64_t chunk_stride = args.num_q_heads * layout.partial_floats;
  for (int h = 0; h < args.num_q_heads; ++h) {
    float* merged = partials + h * layout.partial_floats;
    float* state = merged + layout.dim;
    for (int c = 1; c < num_chunks; ++c) {
      const float* next = merged + c * chunk_stride;
      merge_chunk(merged, state[0], state[1], next, next[layout.dim], next[layout.dim + 1], args.scale, layout.dim);
    }
    write_output(merged, state[1], args.out + (int64_t{args.qo_indptr[row]} * args.num_q_heads + h) * args.kv.v_dim(),
                 args.kv.v_dim());
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace vayu::ops
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace vayu::ops {
HWY_EXPORT(run_unit);
HWY_EXPORT(merge_row);

int64_t paged_attention_cpu_scratch_bytes(const OpContext& ctx, int32_t num_q_heads, int32_t head_dim,
                                          int64_t max_tokens, int64_t max_context) {
  return AttentionLayout(ctx.pool->num_threads(), num_q_heads, head_dim, max_tokens, max_context).total_bytes;
}

void paged_attention_cpu(const OpContext& ctx, const PagedAttentionArgs& args) {
  constexpr int64_t kInlineProducts = 16 << 10;  // a microsecond or two of work: less than it pays to wake a thread for
  const int32_t max_context = *std::max_element(args.kv_lens, args.kv_lens + args.num_rows);
  const int32_t num_tokens = args.qo_indptr[args.num_rows] - args.qo_indptr[0];
  const AttentionLayout layout(ctx.pool->num_threads(), args.num_q_heads, args.kv.head_dim, num_tokens, max_context);
  AttentionUnit* units = layout.units(args.scratch);
  const int64_t num_units = plan_attention(args, layout, units);
  const int num_kv_heads = args.kv.num_kv_heads;
  const auto run = HWY_DYNAMIC_DISPATCH(run_unit);
  auto run_items = [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; ++i) {
      const AttentionUnit& unit = units[i / num_kv_heads];
      float* partials = unit.chunk >= 0 ? layout.partials(args.scratch, unit.partial) : nullptr;
      run(args, layout, unit, static_cast<int>(i % num_kv_heads), layout.worker(args.scratch, worker), partials);
    }
  };
  if (int64_t{num_tokens} * max_context * args.num_q_heads * args.kv.head_dim <= kInlineProducts) {
    run_items(0, num_units * num_kv_heads, 0);
  } else {
    ctx.pool->parallel_for(num_units * num_kv_heads, 1, run_items);
  }
  for (int64_t u = 0; u < num_units; ++u) {
    if (units[u].chunk != 0) continue;
    HWY_DYNAMIC_DISPATCH(merge_row)
    (args, layout, units[u].row, num_key_chunks(args.kv_lens[units[u].row]),
     layout.partials(args.scratch, units[u].partial));
  }
}

}  // namespace vayu::ops
#endif
