#include "tokenizer/pipeline/pipeline_tokenizer.h"

#include <algorithm>

namespace vayu {
namespace {

// ICU and the merge heap count in 31 bits. Longer text is cut there, which may change ids at the cut.
constexpr size_t kMaxStretchBytes = size_t{1} << 30;

class PipelineTokenizer : public Tokenizer {
 public:
  explicit PipelineTokenizer(Pipeline pipeline) : p_(std::move(pipeline)), is_special_(p_.tokens.size()) {
    for (const AddedToken& token : p_.added) is_special_[token.id] = token.special;
    add_matchers(true);  // of equal texts the special token wins
    add_matchers(false);
    decoded_.reserve(p_.tokens.size());
    for (TokenId id = 0; id < p_.tokens.size(); ++id) decoded_.add(p_.decoder.token_bytes(p_.tokens[id], {}));
    max_token_bytes_ = find_max_token_bytes();
  }

  int32_t vocab_size() const override { return p_.tokens.size(); }
  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const override;
  std::string_view token_bytes(TokenId id) const override {
    if (!p_.tokens.contains(id)) return {};
    return is_special_[id] ? p_.tokens[id] : decoded_[id];
  }
  bool is_special(TokenId id) const override { return p_.tokens.contains(id) && is_special_[id]; }
  std::optional<TokenId> find(std::string_view token) const override;
  std::optional<TokenId> bos_id() const override { return p_.bos_id; }
  std::span<const TokenId> end_ids() const override { return p_.end_ids; }
  bool adds_bos() const override { return p_.bos_id && std::ranges::find(p_.prefix, *p_.bos_id) != p_.prefix.end(); }
  size_t max_token_bytes() const override { return max_token_bytes_; }
  bool strips_leading_space() const override { return false; }  // decode_rules() does it
  std::unique_ptr<DecodeRules> decode_rules(bool skip_special) const override;

  // Bytes of a token of the vocabulary in its place.
  std::string decoded(TokenId id, DecodeStep::Place place) const {
    if (!place.first && !place.last) return std::string(decoded_[id]);
    return p_.decoder.token_bytes(p_.tokens[id], place);
  }
  const DecodeChain& decoder() const { return p_.decoder; }

 private:
  void add_matchers(bool special);
  size_t find_max_token_bytes() const;
  void encode_stretch(NormalizedText text, const MarkerMatcher::Scope& scope, std::vector<TokenId>& ids) const;
  void encode_words(std::string_view text, bool at_start, std::vector<TokenId>& ids) const;

  const Pipeline p_;
  std::vector<bool> is_special_;  // (vocab_size)
  AddedTokenMatcher raw_, normalized_;
  PieceTable decoded_;  // (vocab_size) bytes inside a text
  size_t max_token_bytes_ = 0;
};

void PipelineTokenizer::add_matchers(bool special) {
  for (const AddedToken& token : p_.added) {
    if (token.special != special) continue;
    if (!token.normalized) {
      raw_.add(token.content, token);
      continue;
    }
    NormalizedText form{.text = token.content};
    if (p_.normalizer != nullptr) p_.normalizer->apply(form);
    normalized_.add(form.text, token);
  }
}

size_t PipelineTokenizer::find_max_token_bytes() const {
  const size_t shrink = p_.normalizer == nullptr ? 1 : p_.normalizer->max_shrink();
  const bool drops = p_.cutter != nullptr && p_.cutter->drops_text();
  if (!p_.every_byte_counts || shrink == 0 || drops) return 0;
  size_t longest = p_.pieces->max_bytes();
  for (const AddedToken& token : p_.added) {
    if (token.lstrip || token.rstrip) return 0;
    longest = std::max(longest, token.content.size());
  }
  return shrink * longest;
}

std::vector<TokenId> PipelineTokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 4 + 8);
  if (options.add_special) ids = p_.prefix;
  MarkerMatcher::Scope scope;
  if (options.parse_special) scope = {options.trusted.empty(), options.trusted};
  for (const AddedTokenMatcher::Part& part : raw_.cut(text, scope)) {
    if (part.token != nullptr) {
      ids.push_back(part.token->id);
      continue;
    }
    for (size_t begin = part.begin; begin < part.end; begin += kMaxStretchBytes) {
      const size_t end = std::min(part.end, begin + kMaxStretchBytes);
      NormalizedText stretch{.text = std::string(text.substr(begin, end - begin)), .at_start = begin == 0};
      if (!scope.all && !scope.trusted.empty() && !normalized_.empty()) {
        for (size_t i = begin; i < end; ++i) stretch.trusted.push_back(scope.allows(i));
      }
      encode_stretch(std::move(stretch), scope, ids);
    }
  }
  if (options.add_special) ids.insert(ids.end(), p_.suffix.begin(), p_.suffix.end());
  return ids;
}

void PipelineTokenizer::encode_stretch(NormalizedText text, const MarkerMatcher::Scope& scope,
                                       std::vector<TokenId>& ids) const {
  if (p_.normalizer != nullptr) p_.normalizer->apply(text);
  if (normalized_.empty()) return encode_words(text.text, text.at_start, ids);
  for (const auto& part : normalized_.cut(text.text, {scope.all, text.trusted})) {
    if (part.token != nullptr) {
      ids.push_back(part.token->id);
    } else {
      encode_words(std::string_view(text.text).substr(part.begin, part.end - part.begin),
                   text.at_start && part.begin == 0, ids);
    }
  }
}

void PipelineTokenizer::encode_words(std::string_view text, bool at_start, std::vector<TokenId>& ids) const {
  if (text.empty()) return;
  if (p_.cutter == nullptr) return p_.model->encode(text, ids);
  Words words{std::string(text), {{0, text.size(), at_start}}};
  p_.cutter->apply(words);
  for (const Words::Word& word : words.words) {
    p_.model->encode(std::string_view(words.text).substr(word.begin, word.end - word.begin), ids);
  }
}

std::optional<TokenId> PipelineTokenizer::find(std::string_view token) const {
  TokenId id = p_.tokens.find(token);
  if (id == kNoToken) id = p_.pieces->find(token);
  return id == kNoToken ? std::nullopt : std::optional<TokenId>(id);
}

class ChainRules : public DecodeRules {
 public:
  ChainRules(const PipelineTokenizer& tokenizer, bool skip_special)
      : tokenizer_(tokenizer), skip_special_(skip_special), leads_(tokenizer.decoder().leads()) {}

  std::string push(TokenId id) override {
    if (id < 0 || id >= tokenizer_.vocab_size() || (skip_special_ && tokenizer_.is_special(id))) return {};
    if (!tokenizer_.decoder().reads_last()) return take(joiner_.push(bytes_of(id, false)));
    std::string text;
    if (held_) text = take(joiner_.push(bytes_of(*held_, false)));
    held_ = id;
    return text;
  }

  std::string finish() override {
    std::string text;
    if (held_) text = take(joiner_.push(bytes_of(*held_, true)));
    held_.reset();
    text += take(joiner_.finish());
    if (!tokenizer_.decoder().needs_whole_text()) return text;
    std::string valid;
    const std::string whole = tokenizer_.decoder().finish_whole_text(std::move(whole_));
    if (append_valid_utf8(whole, valid) < whole.size()) valid += kReplacementUtf8;
    whole_.clear();
    return valid;
  }

 private:
  std::string bytes_of(TokenId id, bool last) {
    return tokenizer_.decoded(id, {.first = std::exchange(first_, false), .last = last});
  }

  // Applies what is left to do on the joined text.
  std::string take(std::string text) {
    if (tokenizer_.decoder().needs_whole_text()) {
      whole_ += text;
      return {};
    }
    for (DecodeStep::Lead& lead : leads_) {
      size_t cut = 0;
      for (; lead.count > 0 && cut < text.size(); --lead.count) {
        if (text.compare(cut, lead.character.size(), lead.character) != 0) {
          lead.count = 0;
          break;
        }
        cut += lead.character.size();
      }
      text.erase(0, cut);
    }
    return text;
  }

  const PipelineTokenizer& tokenizer_;
  const bool skip_special_;
  bool first_ = true;
  std::optional<TokenId> held_;  // a token whose text depends on whether another follows
  Utf8Joiner joiner_;
  std::vector<DecodeStep::Lead> leads_;  // counts: what may still be taken away
  std::string whole_;
};

std::unique_ptr<DecodeRules> PipelineTokenizer::decode_rules(bool skip_special) const {
  return std::make_unique<ChainRules>(*this, skip_special);
}

}  // namespace

std::shared_ptr<const Tokenizer> make_pipeline_tokenizer(Pipeline pipeline) {
  return std::make_shared<PipelineTokenizer>(std::move(pipeline));
}

}  // namespace vayu
