#include "server/http_message.h"

#include "server/json_guard.h"

namespace vayu::server {
namespace {

std::string_view error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "unavailable_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

}  // namespace

std::string_view status_text(int status) {
  switch (status) {
    case 100:
      return "Continue";
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    default:
      return "Status";
  }
}

int http_status(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument:
    case ErrorKind::kUnsupported:
      return 400;
    case ErrorKind::kUnauthorized:
      return 401;
    case ErrorKind::kNotFound:
      return 404;
    case ErrorKind::kTooLarge:
      return 413;
    case ErrorKind::kResourceExhausted:
      return 429;
    case ErrorKind::kUnavailable:
    case ErrorKind::kCancelled:
      return 503;
    case ErrorKind::kCorrupt:
    case ErrorKind::kIo:
    case ErrorKind::kInternal:
      return 500;
  }
  return 500;
}

std::string error_json(const Error& error, int status, std::string_view code) {
  Json body;
  Json& inner = body["error"];
  inner["message"] = error.message;
  inner["type"] = error_type(status);
  inner["param"] = error.field.empty() ? Json(nullptr) : Json(error.field);
  inner["code"] = code.empty() ? Json(nullptr) : Json(code);
  return dump(body);
}

HttpResponse error_response(const Error& error, std::string_view code) {
  HttpResponse response;
  response.status = http_status(error.kind);
  response.body = error_json(error, response.status, code);
  if (response.status == 503) response.headers.emplace_back("Retry-After", "2");
  if (response.status == 429) response.headers.emplace_back("Retry-After", "1");
  if (response.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

HttpResponse status_response(int status, std::string_view message) {
  HttpResponse response;
  response.status = status;
  response.body = error_json(Error{ErrorKind::kInvalidArgument, std::string(message), {}}, status);
  return response;
}

}  // namespace vayu::server
