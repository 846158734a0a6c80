#include "ops/moe/device_route.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/data_format.h"

namespace vayu::ops {
namespace {

uint16_t half_bits(float v) {
  uint16_t bits;
  quantize_row(DataFormat::kF16, &v, &bits, 1);
  return bits;
}

float half_value(uint16_t bits) {
  float v;
  dequantize_row(DataFormat::kF16, &bits, &v, 1);
  return v;
}

int64_t byte_offset(int32_t padded, int32_t expert, int64_t column, int32_t part) {
  const int64_t tile = (column / kRouteChunk * 2 + part) * padded * 128;
  const int64_t piece = (column % kRouteChunk / 8) ^ (expert % 8);
  return tile + expert * 128 + piece * 16 + column % 8 * 2;
}

// The power of two that brings the largest magnitude of a row into [2^14, 2^15).
int row_exponent(const float* row, int64_t hidden) {
  float peak = 0;
  for (int64_t k = 0; k < hidden; ++k) peak = std::max(peak, std::fabs(row[k]));
  if (peak == 0 || !std::isfinite(peak)) return 0;
  return 14 - std::ilogb(peak);
}

}  // namespace

void split_router_weight(const float* weight, int64_t hidden, int32_t num_experts, void* out) {
  VAYU_CHECK(hidden > 0 && hidden % kRouteChunk == 0 && num_experts > 0 && num_experts <= kRouteMaxExperts,
             "router of {} experts over {} columns", num_experts, hidden);
  const int32_t padded = padded_experts(num_experts);
  auto* bytes = static_cast<uint8_t*>(out);
  std::memset(bytes, 0, router_weight_bytes(hidden, num_experts));
  for (int32_t expert = 0; expert < num_experts; ++expert) {
    const float* row = weight + expert * hidden;
    const int exponent = row_exponent(row, hidden);
    for (int64_t k = 0; k < hidden; ++k) {
      const float scaled = std::ldexp(row[k], exponent);
      const uint16_t upper = half_bits(scaled);
      const uint16_t lower = half_bits(scaled - half_value(upper));
      std::memcpy(bytes + byte_offset(padded, expert, k, 0), &upper, 2);
      std::memcpy(bytes + byte_offset(padded, expert, k, 1), &lower, 2);
    }
    const float scale = std::ldexp(1.0f, -exponent);
    std::memcpy(bytes + router_tiles_bytes(hidden, num_experts) + expert * 4, &scale, 4);
  }
}

double joined_router_weight(const void* split, int64_t hidden, int32_t num_experts, int32_t expert, int64_t column) {
  const auto* bytes = static_cast<const uint8_t*>(split);
  uint16_t parts[2];
  for (int32_t part = 0; part < 2; ++part) {
    std::memcpy(&parts[part], bytes + byte_offset(padded_experts(num_experts), expert, column, part), 2);
  }
  float scale;
  std::memcpy(&scale, bytes + router_tiles_bytes(hidden, num_experts) + expert * 4, 4);
  return (double{half_value(parts[0])} + half_value(parts[1])) * scale;
}

// Behind 256 bytes of counters: partial logits of the small kernel, at most 2 Ki / 16 blocks of them for 128 tokens, or
// a bit mask for every expert and (at the finest) 8 tokens of the large one.
int64_t device_route_scratch_bytes(const RouterShape& shape, int64_t max_tokens) {
  const int64_t padded = padded_experts(shape.num_experts);
  const int64_t partials = std::min<int64_t>(max_tokens, 128) * 16 * padded * 4;
  const int64_t masks = (max_tokens + 127) / 128 * 16 * padded * 4;
  return 256 + std::max(partials, masks);
}

}  // namespace vayu::ops
