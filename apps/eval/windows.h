// How a text is cut into sliding windows, and how windows are packed into ragged steps. Pure arithmetic.
#pragma once

#include <cstdint>
#include <vector>

namespace vayu::eval {

// Tokens [begin, end) of a text, run as a sequence of its own; tokens [score_begin, end) are scored in it. The last
// token is only a target, so a window has one input less than tokens.
struct Window {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t score_begin = 0;

  int32_t num_inputs() const { return static_cast<int32_t>(end - begin - 1); }
  int32_t first_logit() const { return static_cast<int32_t>(score_begin - begin - 1); }  // input whose logits count
};

// Every token but the first is scored once, with at least window - stride tokens of context, or all there are.
// num_tokens >= 2, 1 <= stride < window.
std::vector<Window> plan_windows(int64_t num_tokens, int32_t window, int32_t stride);

// Inputs [first, first + count) of a window.
struct StepRow {
  int64_t window = 0;
  int32_t first = 0;
  int32_t count = 0;
};

struct StepLimits {
  int32_t max_tokens = 0;
  int32_t max_logits = 0;
};

// Windows in order, each cut where a step is full and carried on as the first row of the next.
std::vector<std::vector<StepRow>> plan_steps(const std::vector<Window>& windows, const StepLimits& limits);

// Most rows of a step of plan_steps, so also the most windows whose keys and values must be kept at a time.
int32_t max_rows_per_step(int32_t window, int32_t max_tokens);

}  // namespace vayu::eval
