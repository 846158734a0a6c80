// The definition of the norm half of add_norm, shared with the combine of the experts.
#pragma once

#include <vector>

#include "ops/norm/add_norm.h"

namespace vayu::ops {

// Row `row` of y from the summed row; values are exact BF16.
void norm_row_ref(const AddNormArgs& args, int64_t row, const std::vector<float>& sum);

}  // namespace vayu::ops
