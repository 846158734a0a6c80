// Bounds on one template and one render. They are far above what real chat templates need (a 100-turn conversation
// takes some ten thousand steps) and low enough that a hostile template ends within about a second.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vayu::jinja {

inline constexpr size_t kMaxSourceBytes = 1 << 20;
inline constexpr int kMaxParseDepth = 150;            // nested statements and expressions
inline constexpr int kMaxEvalDepth = 500;             // nested evaluations, macro calls included
inline constexpr int kMaxValueDepth = 200;            // lists in dicts in lists ...
inline constexpr int64_t kMaxSteps = 5'000'000;       // evaluated nodes, and items or characters walked by filters
inline constexpr int64_t kMaxTotalBytes = 512 << 20;  // of all strings and lists made during a render
inline constexpr size_t kMaxTextBytes = 32 << 20;     // one string, and the output
inline constexpr int64_t kMaxRange = 100'000;         // as jinja2's sandbox

}  // namespace vayu::jinja
