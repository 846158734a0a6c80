// VAYU_CHECK(condition, "format", args...): an impossible state ends the process, saying what went wrong. Never on a
// peer's data: that is a Result (base/result.h).
#pragma once

#include <fmt/format.h>

#include <string>

namespace vayu {
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);
}

#define VAYU_CHECK(condition, ...)                                                         \
  do {                                                                                     \
    if (!(condition)) [[unlikely]]                                                         \
      ::vayu::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (0)
