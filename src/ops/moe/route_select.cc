#include "ops/moe/route_select.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace vayu::ops {
namespace {

constexpr float kOut = -std::numeric_limits<float>::infinity();

void softmax(float* x, int32_t n) {
  const float peak = *std::max_element(x, x + n);
  double sum = 0;
  for (int32_t i = 0; i < n; ++i) sum += x[i] = std::exp(x[i] - peak);
  for (int32_t i = 0; i < n; ++i) x[i] = static_cast<float>(x[i] / sum);
}

float group_score(const float* choice, int32_t size) {
  float first = kOut;
  float second = kOut;
  for (int32_t i = 0; i < size; ++i) {
    if (choice[i] > first) {
      second = first;
      first = choice[i];
    } else {
      second = std::max(second, choice[i]);
    }
  }
  return size > 1 ? first + second : first;
}

// True when fewer than `kept` groups beat this one; on equal scores the lower index wins.
bool is_kept(const RouterShape& shape, const float* choice, int32_t group, int32_t size) {
  const float score = group_score(choice + group * size, size);
  int32_t better = 0;
  for (int32_t other = 0; other < shape.num_groups; ++other) {
    const float rival = group_score(choice + other * size, size);
    better += rival > score || (rival == score && other < group);
  }
  return better < shape.groups_kept;
}

void mask_groups(const RouterShape& shape, float* choice) {
  const int32_t size = shape.num_experts / shape.num_groups;
  constexpr int32_t kMaxGroups = 1024;
  bool kept[kMaxGroups];
  for (int32_t group = 0; group < shape.num_groups; ++group) kept[group] = is_kept(shape, choice, group, size);
  for (int32_t group = 0; group < shape.num_groups; ++group) {
    if (!kept[group]) std::fill_n(choice + group * size, size, kOut);
  }
}

}  // namespace

void select_experts(const RouterShape& shape, const float* bias, float* logits, float* choice, int32_t* ids,
                    float* weights) {
  const int32_t n = shape.num_experts;
  if (!std::all_of(logits, logits + n, [](float v) { return std::isfinite(v); })) {
    for (int32_t j = 0; j < shape.top_k; ++j) {
      ids[j] = j;
      weights[j] = std::numeric_limits<float>::quiet_NaN();
    }
    return;
  }
  float* scores = logits;
  if (shape.score == RouterScore::kSoftmax) {
    softmax(scores, n);
  } else {
    for (int32_t i = 0; i < n; ++i) scores[i] = 1.0f / (1.0f + std::exp(-scores[i]));
  }
  for (int32_t i = 0; i < n; ++i) choice[i] = bias ? scores[i] + bias[i] : scores[i];
  if (shape.num_groups > 1) mask_groups(shape, choice);
  float sum = 0;
  for (int32_t j = 0; j < shape.top_k; ++j) {
    ids[j] = static_cast<int32_t>(std::max_element(choice, choice + n) - choice);  // the first of equals
    choice[ids[j]] = kOut;
    weights[j] = scores[ids[j]];
    sum += weights[j];
  }
  const bool normalize = shape.normalize && shape.top_k > 1;
  for (int32_t j = 0; j < shape.top_k; ++j) {
    if (normalize) weights[j] /= sum + 1e-20f;
    weights[j] *= shape.scale;
  }
}

}  // namespace vayu::ops
