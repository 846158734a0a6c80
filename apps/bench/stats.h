// Statistics of a benchmark. Percentiles interpolate linearly between the two nearest ranks: position p/100 * (n-1) in
// the sorted values, as numpy.percentile does by default, so that figures compare with those of other clients.
#pragma once

#include <cstdint>
#include <vector>

namespace vayu::bench {

struct Summary {
  int64_t count = 0;
  double mean = 0, min = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;  // all 0 when count is 0
};

// sorted: ascending, not empty; 0 <= p <= 100.
double percentile(const std::vector<double>& sorted, double p);
Summary summarize(std::vector<double> values);

}  // namespace vayu::bench
