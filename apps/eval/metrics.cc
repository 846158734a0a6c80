#include "apps/eval/metrics.h"

#include <algorithm>
#include <cmath>

namespace vayu::eval {

RowScore score_row(const float* logits, int64_t vocab_size, TokenId target) {
  RowScore score;
  for (int64_t i = 0; i < vocab_size; ++i) {
    score.finite &= std::isfinite(logits[i]);
    if (logits[i] > logits[score.top]) score.top = static_cast<TokenId>(i);
  }
  if (!score.finite) return score;
  const double max = logits[score.top];
  double sum = 0;
  for (int64_t i = 0; i < vocab_size; ++i) sum += std::exp(logits[i] - max);
  score.log_z = max + std::log(sum);
  score.nll = score.log_z - logits[target];
  return score;
}

double kl_divergence(const float* p, double p_log_z, const float* q, double q_log_z, int64_t vocab_size) {
  double sum = 0;
  for (int64_t i = 0; i < vocab_size; ++i) {
    const double log_p = p[i] - p_log_z;
    const double log_q = q[i] - q_log_z;
    sum += std::exp(log_p) * (log_p - log_q);
  }
  return std::max(sum, 0.0);  // rounding can leave nearly equal rows a hair below 0
}

double gini(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const double n = static_cast<double>(values.size());
  double sum = 0, weighted = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    sum += values[i];
    weighted += (2.0 * static_cast<double>(i + 1) - n - 1) * values[i];
  }
  return sum > 0 ? weighted / (n * sum) : 0;
}

}  // namespace vayu::eval
