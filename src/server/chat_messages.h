// Brings chat messages into the one form that templates are written for.
#pragma once

#include "base/result.h"
#include "server/json_guard.h"

namespace vayu::server {

// `messages`: a JSON list. In the result every message is an object with `role` and a string `content`:
// - content null, absent or [] becomes "", a list of text parts their texts put together;
// - null fields, empty tool_calls and null function_call are left out; other fields stay as they are;
// - tool-call arguments that are JSON text of an object become that object, "" and "null" an empty one; other text
// stays;
// - `reasoning` becomes `reasoning_content`;
// - role "developer" becomes "system".
// Errors: kInvalidArgument whose field is like messages[2].content[0]. Image, audio and file parts are refused.
Result<Json> normalise_messages(const Json& messages);

}  // namespace vayu::server
