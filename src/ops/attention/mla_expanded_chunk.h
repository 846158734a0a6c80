// One chunk of an expanded context, as mla_expanded_attention hands it to its backends.
#pragma once

#include <cstdint>

#include "ops/attention/mla_expanded_attention.h"

namespace vayu::ops {

constexpr int32_t kExpandedChunk = 256;  // tokens of context held expanded at a time

struct MlaExpandedBuffers {
  float* latents = nullptr;     // (chunk, latent_dim)
  float* shared_key = nullptr;  // (chunk, rope_dim)
  float* k = nullptr;           // (chunk, num_q_heads, nope_dim)
  float* v = nullptr;           // (chunk, num_q_heads, v_dim)
  float* max = nullptr;         // (tokens of the row, num_q_heads) of the scores so far
  float* weight = nullptr;      // (tokens of the row, num_q_heads) sum of exp(score - max)
  float* workers = nullptr;     // (threads, expanded_worker_floats) of the CPU backend
  float* linear_scratch = nullptr;
};

// Adds context [first, first + count) to heads [begin, end) of every token of the row; args.out holds sums not yet
// divided by their weight.
void attend_expanded_ref(const MlaExpandedArgs& args, int32_t row, int32_t first, int32_t count,
                         const MlaExpandedBuffers& buffers, int64_t begin, int64_t end, int worker);
void attend_expanded_cpu(const MlaExpandedArgs& args, int32_t row, int32_t first, int32_t count,
                         const MlaExpandedBuffers& buffers, int64_t begin, int64_t end, int worker);

int64_t expanded_worker_floats(const MlaExpandedShape& shape);  // mla_expanded_attention_cpu.cc

// How many tokens of the context a token of the row sees.
inline int32_t visible_tokens(const MlaExpandedArgs& args, int32_t row, int64_t token) {
  return static_cast<int32_t>(args.kv_lens[row] - (args.qo_indptr[row + 1] - args.qo_indptr[row] - 1 - token));
}

}  // namespace vayu::ops
