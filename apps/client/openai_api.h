// What the OpenAI API says, read by a client: events of a stream, usage, errors, the model list.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "apps/client/http_client.h"
#include "base/result.h"

namespace vayu::client {

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, where the server says
};

struct StreamEvent {
  bool done = false;       // the [DONE] mark
  bool has_token = false;  // brings a token: text, or on /v1/completions an empty text without finish_reason (a token
                           // whose characters are not complete, or a marker). A chat event that only tells the role
                           // has none.
  std::string text;
  std::string reasoning;      // what the model thinks before it answers
  std::string finish_reason;  // empty: not finished
  std::optional<Usage> usage;
  std::optional<Error> error;  // an error event
};

// One data payload of /v1/chat/completions or /v1/completions. Error: it is not JSON of that kind ("protocol").
Result<StreamEvent> parse_stream_event(std::string_view data);

// Error of an answer that is not 2xx: kind by status, the server's own message, label "http <status>".
Error http_error(const HttpResponse& response);

// The first model of /v1/models.
Result<std::string> first_model(BlockingClient& client);

}  // namespace vayu::client
