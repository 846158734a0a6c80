#include "apps/eval/eval_text.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace vayu::eval {

Result<std::string> read_text_file(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return make_error(ErrorKind::kIo, "{}: is a folder", path);
  std::ifstream file(path, std::ios::binary);
  if (!file) return make_error(ErrorKind::kIo, "{}: cannot be read", path);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (file.bad()) return make_error(ErrorKind::kIo, "{}: cannot be read", path);
  return text;
}

Result<EvalText> encode_text(const std::string& path, std::string_view text, const Tokenizer& tokenizer,
                             int64_t max_tokens) {
  if (text.empty()) return field_error("--text", "{}: is empty", path);
  EvalText out{.path = path, .ids = tokenizer.encode(text, {.add_special = false})};
  if (out.ids.size() < 2) {
    return field_error("--text", "{}: {} token; nothing can be scored below 2", path, out.ids.size());
  }
  const size_t kept = max_tokens > 0 ? std::min<size_t>(out.ids.size(), max_tokens) : out.ids.size();
  // The file's bytes less those of tokens that are not scored: exact whatever normalisation the tokenizer does to
  // the rest.
  const auto bytes_of = [&](size_t i) { return static_cast<int64_t>(tokenizer.token_bytes(out.ids[i]).size()); };
  out.scored_bytes = static_cast<int64_t>(text.size()) - bytes_of(0);
  if (tokenizer.strips_leading_space() && tokenizer.token_bytes(out.ids[0]).starts_with(' ')) ++out.scored_bytes;
  for (size_t i = kept; i < out.ids.size(); ++i) out.scored_bytes -= bytes_of(i);
  out.scored_bytes = std::max<int64_t>(out.scored_bytes, 0);
  out.ids.resize(kept);
  return out;
}

}  // namespace vayu::eval
