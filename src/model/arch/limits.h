// Far above any real model; they keep products of sizes inside 64 bits.
#pragma once

#include <cstdint>

namespace vayu::model {

constexpr int32_t kMaxVocab = 1 << 22;
constexpr int32_t kMaxContext = 1 << 24;

}  // namespace vayu::model
