// The passes of the sampler over a whole row of logits, in vectors; and the key by which candidates are ordered.
#pragma once

#include <bit>
#include <cstdint>

#include "core/types.h"

namespace vayu::ops {

// A candidate as one integer: descending order is (logit descending, id ascending). Never from a NaN.
inline uint64_t candidate_key(float logit, int64_t id) {
  const auto bits = std::bit_cast<uint32_t>(logit + 0.0f);  // -0 and 0 are a tie
  const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return (uint64_t{ordered} << 32) | (0xffffffffu - static_cast<uint32_t>(id));
}
inline TokenId candidate_id(uint64_t key) { return static_cast<TokenId>(0xffffffffu - static_cast<uint32_t>(key)); }

constexpr int kVectorsPerMaximum = 64;
// Room for the maxima of scan_logits, whatever the vector length.
inline int64_t max_maxima(int64_t vocab_size) { return vocab_size / kVectorsPerMaximum + 32; }

struct LogitScan {
  float max = 0;
  bool usable = false;     // neither NaN nor +inf, and something finite
  int64_t num_maxima = 0;  // written to `maxima`
};

// Also leaves the maxima of disjoint sets of at most 64 logits that cover the row: their k-th largest bounds the k-th
// largest logit from below.
LogitScan scan_logits(const float* logits, int64_t size, float* maxima);
// Index of the first logit equal to `value`, which must be there.
int64_t find_first(const float* logits, int64_t size, float value);
// Sum of exp((logit - max) * inverse_temperature), in double; the terms go to `weights` unless it is null.
double sum_weights(const float* logits, int64_t size, float max, float inverse_temperature, float* weights);
// Keys of all i with values[i] >= threshold; returns how many. keys: room for `size`.
int64_t collect_keys(const float* values, int64_t size, float threshold, const float* logits, uint64_t* keys);

}  // namespace vayu::ops
