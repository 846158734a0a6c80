// An evaluation as one SVG picture: a bar of perplexity for each text, and for MoE models a heat map of expert load.
#pragma once

#include <string>

#include "apps/eval/report.h"

namespace vayu::eval {

// Stands alone (no fonts, scripts or links) and follows the reader's light or dark colour scheme.
std::string plot_svg(const EvalReport& report);

}  // namespace vayu::eval
