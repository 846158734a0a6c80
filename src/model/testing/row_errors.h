// How far rows of logits are from those they should be, row by row.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace vayu::model::testing {

// Mean of |a - b| over the rms of b, of a row of a against that of b. A row of zeros is 0.8 away from one of normal
// values, a row of something else 1.13; one that is not finite 1e30.
struct RowErrors {
  double median = 0;
  double percentile90 = 0;
  double worst = 0;
  int64_t not_finite = 0;  // rows of a
};

// b may have more rows than a.
inline RowErrors row_errors(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  RowErrors found;
  std::vector<double> rows;
  for (size_t t = 0; t < a.size(); ++t) {
    double sum = 0, squares = 0;
    for (size_t v = 0; v < a[t].size(); ++v) {
      sum += std::fabs(double{a[t][v]} - b[t][v]);
      squares += double{b[t][v]} * b[t][v];
    }
    const auto count = static_cast<double>(a[t].size());
    const bool finite = std::isfinite(sum);
    found.not_finite += !finite;
    rows.push_back(finite ? sum / count / std::sqrt(squares / count) : 1e30);
  }
  std::sort(rows.begin(), rows.end());
  found.median = rows[rows.size() / 2];
  found.percentile90 = rows[rows.size() * 9 / 10];
  found.worst = rows.back();
  return found;
}

}  // namespace vayu::model::testing
