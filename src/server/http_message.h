// HTTP requests and responses as the routes see them; sockets and framing are the session's business.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace vayu::server {

struct HttpRequest {
  std::string method;
  std::string path;  // normalised
  std::string body;
  std::string request_id;  // the client's X-Request-Id if it is well-formed, else our own
  std::string tenant;      // label of the API key that was used; empty without keys
  int64_t arrival_us = 0;  // Clock time the header was complete
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
};

std::string_view status_text(int status);
int http_status(ErrorKind kind);

// {"error": {message, type, param, code}} with the status of the error's kind; `code` may be empty.
std::string error_json(const Error& error, int status, std::string_view code = {});
HttpResponse error_response(const Error& error, std::string_view code = {});
// For faults that HTTP has a status for and ErrorKind has not (403, 405, 408, 409, 415, 431).
HttpResponse status_response(int status, std::string_view message);

}  // namespace vayu::server
