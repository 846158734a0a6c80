// What is measured of logits and of counts. All sums in double, in order, so that equal logits give equal figures.
#pragma once

#include <cstdint>
#include <vector>

#include "core/types.h"

namespace vayu::eval {

struct RowScore {
  double log_z = 0;  // log of the sum of exp(logit)
  double nll = 0;    // -log p(target), nats
  TokenId top = 0;   // most likely token; lowest id on a tie
  bool finite = true;
};

// logits: (vocab_size). A row with a logit that is not finite has finite == false and nothing else of use.
RowScore score_row(const float* logits, int64_t vocab_size, TokenId target);

// KL(p || q) in nats of two rows (vocab_size) of finite logits with their log_z; never negative, 0 for equal rows.
double kl_divergence(const float* p, double p_log_z, const float* q, double q_log_z, int64_t vocab_size);

// Gini coefficient: 0 when all values are equal, (n - 1) / n when one of n has everything; 0 when all are 0.
double gini(std::vector<double> values);

}  // namespace vayu::eval
