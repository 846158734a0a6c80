// Penalties, bias and bans: a copy of the row with steps 2 to 4 of sample.h applied. A block edits its slice alone, so
// lists are walked by every block of the cluster and each takes the ids of its own. The arithmetic is that of the
// reference operation by operation (no fused multiply-add): the edited logits are equal bit for bit.
#pragma once

#include "ops/sampling/device_sample_select.cuh"

namespace vayu::ops {

constexpr uint32_t kSeen = 0x80000000u;  // over the count of output tokens

__device__ __forceinline__ bool holds(Slice slice, int32_t id) { return id >= slice.begin && id < slice.end; }

__device__ __forceinline__ float penalised(const DeviceSampleTask& task, float logit, uint32_t seen) {
  if (seen != 0) {
    logit = logit > 0 ? __fdiv_rn(logit, task.repetition_penalty) : __fmul_rn(logit, task.repetition_penalty);
  }
  const uint32_t count = seen & ~kSeen;
  if (count > 0) {
    const float frequency = __fmul_rn(static_cast<float>(count), task.frequency_penalty);
    logit = __fsub_rn(logit, __fadd_rn(frequency, task.presence_penalty));
  }
  return fminf(logit, FLT_MAX);
}

// The edited row serves as the counters first: word i becomes logit i.
__device__ inline void copy_with_penalties(const DeviceSampleArgs& args, const DeviceSampleTask& task,
                                           const float* logits, float* out, Slice slice) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  auto* counts = reinterpret_cast<uint32_t*>(out);
  for (int32_t i = slice.begin + thread; i < slice.end; i += kDrawThreads) counts[i] = 0;
  __syncthreads();
  for (int32_t i = thread; i < task.num_tokens; i += kDrawThreads) {
    const int32_t id = args.lists[task.tokens_begin + i];
    if (!holds(slice, id)) continue;
    if (i < task.prompt_len) {
      atomicOr(counts + id, kSeen);
    } else {
      atomicAdd(counts + id, 1u);
    }
  }
  if (thread == 0 && task.prev_index >= 0) {
    const int32_t id = args.prev_tokens[task.prev_index];
    if (holds(slice, id)) atomicAdd(counts + id, 1u);
  }
  __syncthreads();
  for (int32_t i = slice.begin + thread; i < slice.end; i += kDrawThreads) {
    out[i] = penalised(task, logits[i], __ldcg(counts + i));  // from L2, where the atomics went
  }
}

// Leaves only the tokens with a bias of +100 or more, if any of them is possible. Their logits wait in the list.
__device__ inline void keep_winners(const DeviceSampleArgs& args, const DeviceSampleTask& task, float* out, Row& row,
                                    DrawShared& s) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int32_t* ids = args.lists + task.bias_begin;
  const float* biases = reinterpret_cast<const float*>(ids + task.num_biases);
  float* kept = reinterpret_cast<float*>(args.lists + task.bias_begin + 2 * task.num_biases);
  if (thread == 0) s.edited.any_winner = 0;
  __syncthreads();
  for (int32_t i = thread; i < task.num_biases; i += kDrawThreads) {
    if (!holds(row.slice, ids[i]) || !(biases[i] >= 100)) continue;
    kept[i] = out[ids[i]];
    if (kept[i] > -kInfinity) s.edited.any_winner = 1;
  }
  cluster_sync();
  int32_t any = 0;
  for (int rank = 0; rank < row.blocks; ++rank) any |= peer(&s.edited, rank)->any_winner;
  cluster_sync();
  if (any == 0) return;
  for (int32_t i = row.slice.begin + thread; i < row.slice.end; i += kDrawThreads) out[i] = -kInfinity;
  __syncthreads();
  for (int32_t i = thread; i < task.num_biases; i += kDrawThreads) {
    if (holds(row.slice, ids[i]) && biases[i] >= 100) out[ids[i]] = kept[i];
  }
  __syncthreads();
}

__device__ inline void apply_bias_and_bans(const DeviceSampleArgs& args, const DeviceSampleTask& task, float* out,
                                           Row& row, DrawShared& s) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int32_t* ids = args.lists + task.bias_begin;
  const float* biases = reinterpret_cast<const float*>(ids + task.num_biases);
  for (int32_t i = thread; i < task.num_biases; i += kDrawThreads) {
    if (!holds(row.slice, ids[i]) || biases[i] >= 100) continue;
    out[ids[i]] = biases[i] <= -100 ? -kInfinity : __fadd_rn(out[ids[i]], biases[i]);
  }
  __syncthreads();
  for (int32_t i = thread; i < task.num_banned; i += kDrawThreads) {
    const int32_t id = args.lists[task.banned_begin + i];
    if (holds(row.slice, id)) out[id] = -kInfinity;
  }
  __syncthreads();
  if (task.num_biases > 0) keep_winners(args, task, out, row, s);
}

// Maximum and minimum of the edited row, and the maxima of parts of it. Returns the maximum's key, 0 when nothing is
// possible.
__device__ inline uint64_t scan_edited(Row& row, DrawShared& s) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) s.edited = {0, kInfinity, 0};
  uint64_t max = 0;
  float min = kInfinity;
  for_each_token(row, 0, kHighestKey, [&](float logit, uint64_t key) {
    max = key > max ? key : max;
    min = fminf(min, logit);
  });
  const uint64_t own_max = max;
#pragma unroll
  for (int offset = 1; offset < kEditGroup; offset *= 2) {
    const uint64_t other = __shfl_xor_sync(kWholeWarp, max, offset);
    max = other > max ? other : max;
  }
  if (thread % kEditGroup == 0) s.maxima[thread / kEditGroup] = max > 0 ? logit_of(max) : -kInfinity;
  const uint64_t lowest = key_of(min, INT32_MAX);  // orders like min
  s.local_keys[thread] = lowest;
  __syncthreads();
  if (own_max > 0) {
    atomicMax(reinterpret_cast<unsigned long long*>(&s.edited.max), static_cast<unsigned long long>(own_max));
  }
  for (int half = kDrawThreads / 2; half > 0; half /= 2) {
    if (thread < half && s.local_keys[thread + half] < s.local_keys[thread]) {
      s.local_keys[thread] = s.local_keys[thread + half];
    }
    __syncthreads();
  }
  if (thread == 0) s.edited.min = logit_of(s.local_keys[0]);
  cluster_sync();
  uint64_t key = 0;
  min = kInfinity;
  for (int rank = 0; rank < row.blocks; ++rank) {
    const EditedScan part = *peer(&s.edited, rank);
    key = part.max > key ? part.max : key;
    min = fminf(min, part.min);
  }
  cluster_sync();
  row.max = logit_of(key);
  row.min = min;
  return key;
}

// Makes the edited copy the row; returns the key of its most likely token, 0 when none is possible.
__device__ __noinline__ uint64_t edit_row(const DeviceSampleArgs& args, const DeviceSampleTask& task, DrawShared& s) {
  Row row = s.row;
  const int64_t stride = (int64_t{args.vocab_size} + 3) / 4 * 4;  // padded_vocab
  float* out = args.edited + task.edit_row * stride;
  if (task.flags & kSamplePenalties) {
    copy_with_penalties(args, task, row.logits, out, row.slice);
  } else {
    for (int32_t i = row.slice.begin + static_cast<int32_t>(threadIdx.x); i < row.slice.end; i += kDrawThreads) {
      out[i] = row.logits[i];
    }
  }
  __syncthreads();
  apply_bias_and_bans(args, task, out, row, s);
  row.logits = out;
  row.aligned = rows_aligned(args.edited, stride);
  const uint64_t best = scan_edited(row, s);
  change_row(s, [&](Row& shared) { shared = row; });
  return best;
}

}  // namespace vayu::ops
