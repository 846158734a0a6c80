// JSON from outside: depth, number of values and keys are checked by a first pass that builds nothing.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/result.h"

namespace vayu::server {

using Json = nlohmann::ordered_json;

// kInvalidArgument on malformed text, kTooLarge on over-deep nesting or too many values; `field` is the top-level key
// the fault lies in, when there is one. `what` starts the message.
Result<Json> parse_json(std::string_view text, std::string_view what = "The request body");

// Text of a value, valid UTF-8 whatever the strings hold, on one line.
std::string dump(const Json& value);

}  // namespace vayu::server
