#include "apps/eval/windows.h"

#include <algorithm>

#include "base/check.h"

namespace vayu::eval {

std::vector<Window> plan_windows(int64_t num_tokens, int32_t window, int32_t stride) {
  VAYU_CHECK(num_tokens >= 2 && stride >= 1 && stride < window, "{} tokens, window {}, stride {}", num_tokens, window,
             stride);
  std::vector<Window> windows;
  int64_t scored = 1;
  for (int64_t begin = 0; scored < num_tokens; begin += stride) {
    const int64_t end = std::min(begin + window, num_tokens);
    windows.push_back({begin, end, scored});
    scored = end;
  }
  return windows;
}

std::vector<std::vector<StepRow>> plan_steps(const std::vector<Window>& windows, const StepLimits& limits) {
  VAYU_CHECK(limits.max_tokens >= 1 && limits.max_logits >= 1);
  std::vector<std::vector<StepRow>> steps;
  int32_t tokens_left = 0, logits_left = 0;
  const auto open_step = [&] {
    steps.emplace_back();
    tokens_left = limits.max_tokens;
    logits_left = limits.max_logits;
  };
  open_step();
  for (size_t index = 0; index < windows.size(); ++index) {
    const Window& window = windows[index];
    for (int32_t first = 0; first < window.num_inputs();) {
      const int32_t silent = std::max(0, window.first_logit() - first);  // inputs whose logits nobody wants
      const int32_t count = std::min({window.num_inputs() - first, tokens_left, silent + logits_left});
      if (count > 0) {
        steps.back().push_back({static_cast<int64_t>(index), first, count});
        tokens_left -= count;
        logits_left -= std::max(0, count - silent);
        first += count;
      }
      if (first < window.num_inputs()) open_step();
    }
  }
  return steps;
}

// The rest of one window, whole windows, and the front of one more; only the last window of a text is short.
int32_t max_rows_per_step(int32_t window, int32_t max_tokens) {
  return std::min(max_tokens, max_tokens / (window - 1) + 2);
}

}  // namespace vayu::eval
