// A text file as the token ids to score.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tokenizer/tokenizer.h"

namespace vayu::eval {

struct EvalText {
  std::string path;
  std::vector<TokenId> ids;  // the first is context only
  int64_t scored_bytes = 0;  // of the text that ids[1..] stand for
};

// A regular file or a pipe, whole. kIo names the path.
Result<std::string> read_text_file(const std::string& path);

// Encodes without special tokens and keeps the first max_tokens ids (0: all). kInvalidArgument, naming the path, when
// fewer than 2 tokens are left: there is nothing to score.
Result<EvalText> encode_text(const std::string& path, std::string_view text, const Tokenizer& tokenizer,
                             int64_t max_tokens);

}  // namespace vayu::eval
