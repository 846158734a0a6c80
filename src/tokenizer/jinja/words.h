// What a template mentions, without running it.
#pragma once

#include "tokenizer/chat_template.h"
#include "tokenizer/jinja/ast.h"

namespace vayu::jinja {

// Comments are not part of the tree, so nothing in them counts.
TemplateWords collect_words(const Template& code);

}  // namespace vayu::jinja
