#include "tokenizer/vocab_tokenizer.h"

namespace vayu {
namespace {

constexpr std::string_view kMergesKey = "tokenizer.ggml.merges";

}  // namespace

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

Result<MergeTable> read_merges(const TokenizerSpec& spec, const Vocabulary& vocab, Vocabulary::ToBytes to_bytes) {
  if (spec.merges.empty()) return make_error(ErrorKind::kCorrupt, "{}: absent or empty", kMergesKey);
  MergeTable table;
  table.reserve(spec.merges.size());
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const std::string& merge = spec.merges[rank];
    const size_t space = merge.find(' ', 1);
    if (merge.size() > 2 * kMaxTokenBytes || space == std::string::npos || space + 1 == merge.size()) {
      return make_error(ErrorKind::kCorrupt, "{}: entry {} is not a pair of tokens", kMergesKey, rank);
    }
    const std::string left = to_bytes(std::string_view(merge).substr(0, space), TokenType::kNormal);
    const std::string right = to_bytes(std::string_view(merge).substr(space + 1), TokenType::kNormal);
    const TokenId left_id = vocab.find_plain(left);
    const TokenId right_id = vocab.find_plain(right);
    const TokenId result = vocab.find_plain(left + right);
    if (result == kNoToken && vocab.markers().find_whole(left + right) != kNoToken) continue;
    if (left_id == kNoToken || right_id == kNoToken || result == kNoToken) {
      return make_error(ErrorKind::kCorrupt, "{}: entry {} '{}' uses a token that is not in tokenizer.ggml.tokens",
                        kMergesKey, rank, merge);
    }
    table.insert(left_id, right_id, {static_cast<uint32_t>(rank), result});
  }
  return table;
}

}  // namespace vayu
