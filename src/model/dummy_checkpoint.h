// Seeded random weights in the shape of a recipe, made row by row as they are asked for: for performance work without a
// checkpoint, and for tests that compare with other implementations of the same rule (tests/golden/oracle).
//
// Element i of a tensor: z = mix(key + (i + 1) * 0x9E3779B97F4A7C15), key = mix(fnv1a64(name) + seed * the same), mix
// the finaliser of SplitMix64 (Steele, Lea, Flood, 2014); s = the sum of the four 16-bit fields of z, nearly normal;
// value = mean + (s - 131070) * (sigma / 37837.22659), in double, rounded once to float.
// (mean, sigma): embedding (0, 1), tied (0, 1 / sqrt(hidden)); norms (1, 0.3); router (0, 1.5 / sqrt(hidden));
// selection bias (0.2, 0.3); every other matrix (0, 1 / sqrt(fan in)).
#pragma once

#include <cstdint>
#include <memory>

#include "loader/checkpoint.h"
#include "model/recipe.h"

namespace vayu::model {

// Tensors under their published names, F32. `path` is for messages.
std::shared_ptr<const loader::Checkpoint> dummy_checkpoint(const Recipe& recipe, uint64_t seed, std::string path);

}  // namespace vayu::model
