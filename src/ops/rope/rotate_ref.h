// The definition of a rotation: the angle is a float product, as in the models' reference code; its sine and cosine are
// taken in double.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/rope/rope_kv_write.h"

namespace vayu::ops {

inline void rotate_ref(float* x, int rotary_dim, RopePairing pairing, const float* inv_freq, float attention_factor,
                       int32_t position) {
  const int half = rotary_dim / 2;
  const bool split = pairing == RopePairing::kHalfSplit;
  for (int i = 0; i < half; ++i) {
    const float angle = static_cast<float>(position) * inv_freq[i];
    const float c = static_cast<float>(std::cos(double{angle})) * attention_factor;
    const float s = static_cast<float>(std::sin(double{angle})) * attention_factor;
    float& a = x[split ? i : 2 * i];
    float& b = x[split ? i + half : 2 * i + 1];
    const float rotated_a = a * c - b * s;
    b = b * c + a * s;
    a = rotated_a;
  }
}

}  // namespace vayu::ops
