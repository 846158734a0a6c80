// How the interpreter reports errors inside itself: a thrown Fault, turned into an Error at the two doors (parse and
// render of chat_template.cc). Expression code stays readable; nothing is thrown past those doors.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/result.h"

namespace vayu::jinja {

struct Fault {
  ErrorKind kind;
  std::string message;
  bool verbatim = false;  // the template's own words (raise_exception): no line is put in front
};

template <class... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Fault{kind, fmt::format(format, std::forward<Args>(args)...)};
}
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Fault{ErrorKind::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...)};
}

}  // namespace vayu::jinja
