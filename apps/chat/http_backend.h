#pragma once

#include "apps/chat/chat_backend.h"

namespace vayu::chat {

// Asks the server for its models; an empty `model` takes the first. Errors: no server there, key refused.
Result<std::unique_ptr<ChatBackend>> connect_http_backend(const std::string& url, const std::string& api_key,
                                                          const std::string& model);

}  // namespace vayu::chat
