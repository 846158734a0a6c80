// The fields tools and tool_choice of a chat request.
#pragma once

#include "server/field_reader.h"

namespace vayu::server {

// `tools` becomes a list without null fields for the template, or null when the model is shown none: no tools, or
// tool_choice "none". Errors stick to the reader.
void read_tools(FieldReader& reader, Json* tools);

// Names of the functions in such a list, sorted.
std::vector<std::string> tool_names(const Json& tools);

}  // namespace vayu::server
