#include "tokenizer/vocab_tokenizer.h"

namespace vayu {

std::vector<TokenId> VocabTokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 4 + 8);
  if (options.add_special && adds_bos_) ids.push_back(*vocab_.bos_id);

  const MarkerMatcher& markers = vocab_.markers();
  MarkerMatcher::Scope scope;
  if (options.parse_special) scope = {options.trusted.empty(), options.trusted};
  size_t start = 0;  // of the plain stretch before `pos`
  size_t pos = markers.next_candidate(text, 0);
  while (pos < text.size()) {
    const MarkerMatcher::Match match = markers.longest_at(text, pos, scope);
    if (match.id == kNoToken) {
      pos = markers.next_candidate(text, pos + 1);
      continue;
    }
    encode_stretch(text.substr(start, pos - start), ids);
    ids.push_back(match.id);
    start = pos + match.length;
    pos = markers.next_candidate(text, start);
  }
  encode_stretch(text.substr(start), ids);

  if (options.add_special && adds_eos_) ids.push_back(*vocab_.eos_id);
  return ids;
}

void VocabTokenizer::encode_stretch(std::string_view text, std::vector<TokenId>& ids) const {
  while (!text.empty()) {
    encode_text(text.substr(0, kMaxStretchBytes), ids);
    text.remove_prefix(std::min(text.size(), kMaxStretchBytes));
  }
}

std::optional<TokenId> VocabTokenizer::find(std::string_view token) const {
  if (token.empty()) return std::nullopt;
  const TokenId marker = vocab_.markers().find_whole(token);
  const TokenId id = marker != kNoToken ? marker : vocab_.find_plain(token);
  return id == kNoToken ? std::nullopt : std::optional<TokenId>(id);
}

Status check_added_marks(const TokenizerSpec& spec) {
  if (spec.add_bos.value_or(false) && !spec.bos_id) {
    return make_error(ErrorKind::kCorrupt,
                      "tokenizer.ggml.add_bos_token is true but tokenizer.ggml.bos_token_id is absent");
  }
  if (spec.add_eos.value_or(false) && !spec.eos_id) {
    return make_error(ErrorKind::kCorrupt,
                      "tokenizer.ggml.add_eos_token is true but tokenizer.ggml.eos_token_id is absent");
  }
  return {};
}

}  // namespace vayu
