// Rotary frequencies of a RopeConfig: computed once at load, read by every step.
#pragma once

#include <span>
#include <vector>

#include "base/result.h"
#include "model/config.h"

namespace vayu::model {

struct RopeFrequencies {
  std::vector<float> inv_freq;    // (rotary_dim / 2) radians a position
  float attention_factor = 1.0f;  // on cos and sin
};

// YaRN's temperature: 0.1 mscale ln(factor) + 1; 1 without scaling.
double yarn_mscale(double factor, double mscale);

// kCorrupt, naming the number, when a value cannot be computed with. rope_frequencies asks it too.
Status check_rope(const RopeConfig& rope);

// factors: (rotary_dim / 2) divisors of each frequency, as some checkpoints store them; empty: none.
// Errors: kUnsupported for factors together with a scaling kind; kCorrupt for values that are not usable.
Result<RopeFrequencies> rope_frequencies(const RopeConfig& rope, std::span<const float> factors);

// The longest context a scaled model serves: (original or stated length) * factor for linear and yarn, the stated
// length otherwise. stated_context: tokens, from the checkpoint.
int64_t scaled_context(const RopeConfig& rope, int64_t stated_context);

}  // namespace vayu::model
