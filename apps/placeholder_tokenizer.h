// A tokenizer for models without one (random weights in a built-in geometry): every byte of text is a token, and the
// rest of the vocabulary prints as numbered words, so that prompts and answers of any length can be made and counted.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "tokenizer/tokenizer.h"

namespace vayu {

// kInvalidArgument for a vocabulary with no room for the bytes.
Result<std::shared_ptr<const Tokenizer>> placeholder_tokenizer(int32_t vocab_size);

// The same as the text of a tokenizer.json.
Result<std::string> placeholder_tokenizer_json(int32_t vocab_size);

}  // namespace vayu
