#include "apps/bench/stats.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace vayu::bench {

double percentile(const std::vector<double>& sorted, double p) {
  VAYU_CHECK(!sorted.empty() && p >= 0 && p <= 100, "percentile {} of {} values", p, sorted.size());
  const double position = p / 100 * static_cast<double>(sorted.size() - 1);
  const size_t below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (position - static_cast<double>(below));
}

Summary summarize(std::vector<double> values) {
  Summary summary;
  if (values.empty()) return summary;
  std::sort(values.begin(), values.end());
  summary.count = static_cast<int64_t>(values.size());
  summary.mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  summary.min = values.front();
  summary.p50 = percentile(values, 50);
  summary.p90 = percentile(values, 90);
  summary.p95 = percentile(values, 95);
  summary.p99 = percentile(values, 99);
  summary.max = values.back();
  return summary;
}

}  // namespace vayu::bench
