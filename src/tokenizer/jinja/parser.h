// Builds the tree of a template. Unknown statements, filters and tests are refused here, with their line.
#pragma once

#include <string_view>

#include "tokenizer/jinja/ast.h"

namespace vayu::jinja {

// Throws Fault: kUnsupported for constructs outside the supported set, kInvalidArgument for syntax errors, kTooLarge.
Template parse_template(std::string_view source);

}  // namespace vayu::jinja
