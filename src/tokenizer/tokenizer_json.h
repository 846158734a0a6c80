// Tokenizers of Hugging Face model folders: tokenizer.json, with what the folder's other files say about special
// tokens.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "tokenizer/tokenizer.h"

namespace vayu {

// Texts of the files beside tokenizer.json; empty for a file that is not there.
struct ModelFolderTexts {
  std::string_view tokenizer_config;   // bos_token, eos_token, add_bos_token, add_eos_token
  std::string_view generation_config;  // eos_token_id
  std::string_view config;             // eos_token_id, bos_token_id, also inside text_config
};

// Parts understood: docs/architecture.md names none; unknown kinds are kUnsupported with the path of the part. A file
// that is cut, too large (256 MiB, 64 levels, 2^24 tokens) or contradicts itself or the other texts is kCorrupt or
// kTooLarge. Every message starts with the file's name and, where there is one, the path in it.
//
// end_ids() is the union of generation_config's and config's eos_token_id, tokenizer_config's eos_token and the added
// tokens whose text is a well-known end (end_markers.h). add_bos_token and add_eos_token overrule the post-processor.
// Where tokenizer_config is empty, BOS is config's bos_token_id, if the post-processor puts it in front.
//
// Against the reference library (`tokenizers`): ids and text are equal for valid UTF-8 with all special tokens allowed,
// but invalid bytes out of a decode are one U+FFFD for each maximal bad sequence, not one a byte token, and text that
// merely spells an added token never becomes it unless EncodeOptions says so. Runs of white space are the exception.
// An added token shows the text that the file gives it (version 0.23 of the reference shows its normalized form).
Result<std::shared_ptr<const Tokenizer>> parse_tokenizer_json(std::string_view text, const ModelFolderTexts& folder);

// The same from the file at `path`; kIo when it cannot be read.
Result<std::shared_ptr<const Tokenizer>> load_tokenizer_json(const std::string& path, const ModelFolderTexts& folder);

}  // namespace vayu
