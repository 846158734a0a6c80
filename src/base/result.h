// Result<T>: a value or an Error. For faults a caller is expected to handle: bad requests, bad files, full pools.
// Impossible states use VAYU_CHECK (base/check.h).
#pragma once

#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace vayu {

enum class ErrorKind {
  kInvalidArgument,    // the caller's input is wrong; `field` names it (HTTP 400)
  kUnauthorized,       // HTTP 401
  kNotFound,           // HTTP 404
  kTooLarge,           // over a documented limit (HTTP 413)
  kResourceExhausted,  // full now, may fit later (HTTP 429)
  kUnavailable,        // loading or draining (HTTP 503)
  kCorrupt,            // a file contradicts itself or its format
  kUnsupported,        // well-formed, but of a kind this build does not know
  kIo,                 // the operating system said no
  kCancelled,
  kInternal,  // HTTP 500
};

struct Error {
  ErrorKind kind = ErrorKind::kInternal;
  std::string message;
  std::string field;  // request field, tensor or file the error is about; may be empty
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & {
    VAYU_CHECK(ok(), "value() of an error: {}", error().message);
    return std::get<0>(state_);
  }
  const T& value() const& { return const_cast<Result*>(this)->value(); }
  T&& value() && { return std::move(value()); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : failed_(true), error_(std::move(error)) {}
  bool ok() const { return !failed_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const& { return error_; }
  Error&& error() && { return std::move(error_); }

 private:
  bool failed_ = false;
  Error error_;
};

using Status = Result<void>;

// Builds an Error with an fmt-style message.
template <class... Args>
Error make_error(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  return Error{kind, fmt::format(format, std::forward<Args>(args)...), {}};
}
template <class... Args>
Error field_error(std::string field, fmt::format_string<Args...> format, Args&&... args) {
  return Error{ErrorKind::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...), std::move(field)};
}

}  // namespace vayu

#define VAYU_CONCAT_(a, b) a##b
#define VAYU_CONCAT(a, b) VAYU_CONCAT_(a, b)

// Returns the error of `expr` (a Status or Result) from the enclosing function.
#define VAYU_RETURN_IF_ERROR(expr)                                \
  do {                                                            \
    auto vayu_status = (expr);                                    \
    if (!vayu_status.ok()) return std::move(vayu_status).error(); \
  } while (0)

// VAYU_ASSIGN_OR_RETURN(auto x, f()): x becomes the value, or the enclosing function returns the error.
#define VAYU_ASSIGN_OR_RETURN(decl, expr) VAYU_ASSIGN_OR_RETURN_(VAYU_CONCAT(vayu_result_, __LINE__), decl, expr)
#define VAYU_ASSIGN_OR_RETURN_(tmp, decl, expr) \
  auto tmp = (expr);                            \
  if (!tmp.ok()) return std::move(tmp).error(); \
  decl = std::move(tmp).value()
