#include "tokenizer/pipeline/unigram_model.h"

#include <algorithm>

#include "tokenizer/utf8.h"

namespace vayu {
namespace {

constexpr double kUnknownPenalty = 10;  // below the worst piece, as in SentencePiece

ByteTrie make_trie(const PieceTable& pieces) {
  std::vector<std::pair<std::string_view, TokenId>> list;
  for (TokenId id = 0; id < pieces.size(); ++id) {
    if (pieces.find(pieces[id]) == id) list.emplace_back(pieces[id], id);
  }
  return ByteTrie(std::move(list));
}

uint32_t character_length(std::string_view text, size_t pos) {
  const Utf8Char c = decode_utf8(text, pos);
  return c.state == Utf8State::kValid ? c.length : 1;
}

}  // namespace

UnigramModel::UnigramModel(const PieceTable& pieces, UnigramOptions options)
    : pieces_(pieces), options_(std::move(options)), trie_(make_trie(pieces)) {
  unknown_score_ = std::ranges::min(options_.scores) - kUnknownPenalty;
}

void UnigramModel::find_best_steps(std::string_view word, std::vector<Step>& steps) const {
  const auto offer = [&](size_t begin, size_t end, double score, TokenId id) {
    Step& step = steps[end];
    const double total = steps[begin].score + score;
    if (step.length == 0 || total > step.score) step = {total, static_cast<uint32_t>(end - begin), id};
  };
  for (size_t pos = 0; pos < word.size();) {
    const uint32_t first = character_length(word, pos);
    bool has_character = false;
    int32_t node = ByteTrie::kRoot;
    for (size_t end = pos; end < word.size();) {
      node = trie_.child(node, static_cast<uint8_t>(word[end++]));
      if (node < 0) break;
      if (trie_.id(node) == kNoToken) continue;
      offer(pos, end, options_.scores[trie_.id(node)], trie_.id(node));
      has_character = has_character || end - pos == first;
    }
    if (!has_character) offer(pos, pos + first, unknown_score_, kNoToken);
    pos += first;
  }
}

void UnigramModel::encode(std::string_view word, std::vector<TokenId>& ids) const {
  std::vector<Step> steps(word.size() + 1);
  find_best_steps(word, steps);
  std::vector<std::pair<size_t, size_t>> path;  // [begin, end) of the pieces, last first
  for (size_t end = word.size(); end > 0; end -= steps[end].length) path.emplace_back(end - steps[end].length, end);
  // The unknown token may itself be a piece of the path; it and characters without a piece run together.
  const auto is_unknown = [&](size_t end) { return steps[end].id == kNoToken || steps[end].id == options_.unknown; };
  for (size_t i = path.size(); i > 0;) {
    auto [begin, end] = path[--i];
    if (!is_unknown(end)) {
      ids.push_back(steps[end].id);
      continue;
    }
    while (i > 0 && is_unknown(path[i - 1].second)) end = path[--i].second;
    push_unknown(word.substr(begin, end - begin), ids);
  }
}

void UnigramModel::push_unknown(std::string_view run, std::vector<TokenId>& ids) const {
  if (const TokenId whole = pieces_.find(run); whole != kNoToken) return ids.push_back(whole);
  const auto byte_id = [&](char c) { return options_.byte_ids[static_cast<uint8_t>(c)]; };
  if (options_.byte_fallback && std::ranges::none_of(run, [&](char c) { return byte_id(c) == kNoToken; })) {
    for (const char c : run) ids.push_back(byte_id(c));
  } else if (options_.unknown != kNoToken) {
    ids.push_back(options_.unknown);
  }
}

}  // namespace vayu
