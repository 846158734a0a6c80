// The context is taken in chunks of 256 tokens that start at its multiples, whatever the step: each is expanded, every
// head attends to it, and chunks are merged in order by an online softmax (Milakov and Gimelshein, 2018).
#include "ops/attention/mla_expanded_attention.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "ops/attention/kv_element.h"
#include "ops/attention/mla_expanded_chunk.h"
#include "ops/cpu/thread_pool.h"
#include "ops/gemm/linear.h"

namespace vayu::ops {
namespace {

int64_t align_16(int64_t floats) { return (floats + 15) / 16 * 16; }

MlaExpandedBuffers place(const OpContext& ctx, const MlaExpandedShape& shape, int64_t max_tokens, float* base,
                         int64_t& floats) {
  floats = 0;
  const auto take = [&](int64_t n) {
    float* p = base ? base + floats : nullptr;
    floats += align_16(n);
    return p;
  };
  MlaExpandedBuffers b;
  b.latents = take(int64_t{kExpandedChunk} * shape.latent_dim);
  b.shared_key = take(int64_t{kExpandedChunk} * shape.rope_dim);
  b.k = take(int64_t{kExpandedChunk} * shape.num_q_heads * shape.nope_dim);
  b.v = take(int64_t{kExpandedChunk} * shape.num_q_heads * shape.v_dim);
  b.max = take(max_tokens * shape.num_q_heads);
  b.weight = take(max_tokens * shape.num_q_heads);
  b.workers = ctx.backend == Backend::kCpu ? take(ctx.pool->num_threads() * expanded_worker_floats(shape)) : nullptr;
  b.linear_scratch = take(0);
  return b;
}

void gather_chunk(const MlaExpandedArgs& args, int32_t row, int32_t first, int32_t count, const MlaExpandedBuffers& b) {
  const KvLayer& kv = args.kv;
  const int32_t* pages = args.page_table + args.kv_indptr[row];
  for (int32_t j = 0; j < count; ++j) {
    const int32_t page = pages[(first + j) / kv.page_size];
    const int32_t offset = (first + j) % kv.page_size;
    for (int32_t i = 0; i < kv.latent_dim; ++i) {
      b.latents[int64_t{j} * kv.latent_dim + i] = load_kv(kv, k_index(kv, page, 0, offset, i));
    }
    for (int32_t i = 0; i < args.shape.rope_dim; ++i) {
      b.shared_key[int64_t{j} * args.shape.rope_dim + i] = load_kv(kv, k_index(kv, page, 0, offset, kv.latent_dim + i));
    }
  }
}

void expand_chunk(const OpContext& ctx, const MlaExpandedArgs& args, int32_t count, const MlaExpandedBuffers& b) {
  linear(ctx, {.weight = args.latent_to_k, .x = b.latents, .y = b.k, .num_tokens = count, .scratch = b.linear_scratch});
  linear(ctx, {.weight = args.latent_to_v, .x = b.latents, .y = b.v, .num_tokens = count, .scratch = b.linear_scratch});
}

void divide_by_weight(const MlaExpandedArgs& args, int64_t tokens, int64_t first_token, const float* weight) {
  const MlaExpandedShape& shape = args.shape;
  for (int64_t i = 0; i < tokens * shape.num_q_heads; ++i) {
    float* out = args.out + (first_token * shape.num_q_heads + i) * shape.v_dim;
    for (int32_t d = 0; d < shape.v_dim; ++d) out[d] /= weight[i];
  }
}

}  // namespace

int64_t mla_expanded_scratch_bytes(const OpContext& ctx, const MlaExpandedShape& shape, int64_t max_tokens) {
  int64_t floats = 0;
  place(ctx, shape, max_tokens, nullptr, floats);
  return floats * static_cast<int64_t>(sizeof(float)) + linear_scratch_bytes(ctx, kExpandedChunk, shape.latent_dim);
}

void mla_expanded_attention(const OpContext& ctx, const MlaExpandedArgs& args) {
  const MlaExpandedShape& shape = args.shape;
  if (args.num_rows == 0) return;
  VAYU_CHECK(args.q && args.out && args.latent_to_k && args.latent_to_v && args.qo_indptr && args.kv_indptr &&
                 args.page_table && args.kv_lens && args.kv.pages && args.scratch,
             "null pointer");
  VAYU_CHECK(args.kv.latent_dim == shape.latent_dim && args.kv.head_dim == shape.latent_dim + shape.rope_dim,
             "a cache of {} + {}", args.kv.latent_dim, args.kv.head_dim - args.kv.latent_dim);
  for (int32_t row = 0; row < args.num_rows; ++row) {
    const int64_t first_token = args.qo_indptr[row];
    const int64_t tokens = args.qo_indptr[row + 1] - first_token;
    int64_t floats = 0;
    const MlaExpandedBuffers b = place(ctx, shape, tokens, static_cast<float*>(args.scratch), floats);
    std::fill_n(b.max, tokens * shape.num_q_heads, -INFINITY);
    std::fill_n(b.weight, tokens * shape.num_q_heads, 0.0f);
    std::fill_n(args.out + first_token * shape.num_q_heads * shape.v_dim, tokens * shape.num_q_heads * shape.v_dim,
                0.0f);
    for (int32_t first = 0; first < args.kv_lens[row]; first += kExpandedChunk) {
      const int32_t count = std::min(kExpandedChunk, args.kv_lens[row] - first);
      gather_chunk(args, row, first, count, b);
      expand_chunk(ctx, args, count, b);
      if (ctx.backend == Backend::kReference) {
        attend_expanded_ref(args, row, first, count, b, 0, shape.num_q_heads, 0);
        continue;
      }
      ctx.pool->parallel_for(shape.num_q_heads, 1, [&](int64_t begin, int64_t end, int worker) {
        attend_expanded_cpu(args, row, first, count, b, begin, end, worker);
      });
    }
    divide_by_weight(args, tokens, first_token, b.weight);
  }
}

}  // namespace vayu::ops
