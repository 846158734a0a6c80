// BPE with ranked merges over text whose spaces are written as U+2581 (tokenizer.ggml.pre = sarvam-moe): newline runs
// and the text between them are merged apart, characters without a token become byte tokens <0xNN>.
#include "tokenizer/bpe_model.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/pipeline/pipeline_tokenizer.h"
#include "tokenizer/vocab_tokenizer.h"

namespace vayu {
namespace {

std::string as_written(std::string_view token, TokenType) { return std::string(token); }

// Converters of before the format settled wrote the pieces' UTF-8 in the byte-level alphabet.
std::string from_byte_symbols(std::string_view token, TokenType type) {
  if (type == TokenType::kUserDefined) return std::string(token);
  return from_printable(token).value_or(std::string(token));
}

bool is_in_byte_symbols(const TokenizerSpec& spec) {
  const std::string mark = to_printable(kMetaspace);
  bool marked = false;
  for (const std::string& token : spec.tokens) {
    if (token.starts_with(kMetaspace)) return false;
    marked = marked || token.starts_with(mark);
  }
  return marked;
}

std::vector<AddedToken> find_added(const Vocabulary& vocab) {
  std::vector<AddedToken> added;
  for (TokenId id = 0; id < vocab.size(); ++id) {
    const TokenType type = vocab.type(id);
    if (vocab.bytes(id).empty()) continue;
    if (type == TokenType::kUserDefined || vocab.is_special(id)) {
      added.push_back({.content = std::string(vocab.bytes(id)), .id = id, .special = type != TokenType::kUserDefined});
    }
  }
  return added;
}

void fill_tables(const Vocabulary& vocab, Pipeline& pipeline) {
  std::vector<bool> is_added(vocab.size()), is_plain(vocab.size());
  for (TokenId id = 0; id < vocab.size(); ++id) is_plain[id] = vocab.is_plain(id);
  for (const AddedToken& token : pipeline.added) {
    is_added[token.id] = true;
    is_plain[token.id] = token.is_plain_piece();
  }
  auto pieces = std::make_unique<PieceTable>();
  for (TokenId id = 0; id < vocab.size(); ++id) {
    pipeline.tokens.add(vocab.bytes(id));
    pieces->add(is_plain[id] ? vocab.bytes(id) : std::string_view());
  }
  pipeline.tokens.index([&](TokenId id) { return is_added[id]; });
  pieces->index([](TokenId) { return true; });
  pipeline.pieces = std::move(pieces);
}

std::array<TokenId, 256> find_byte_ids(const Vocabulary& vocab) {
  std::array<TokenId, 256> ids = BpeOptions::no_bytes();
  for (TokenId id = 0; id < vocab.size(); ++id) {
    const auto byte = parse_byte_token(vocab.bytes(id));
    if (byte && !vocab.is_special(id)) ids[*byte] = id;
  }
  return ids;
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> make_escaped_bpe(const TokenizerSpec& spec) {
  VAYU_RETURN_IF_ERROR(check_added_marks(spec));
  const Vocabulary::ToBytes to_bytes = is_in_byte_symbols(spec) ? from_byte_symbols : as_written;
  VAYU_ASSIGN_OR_RETURN(const Vocabulary vocab, Vocabulary::make(spec, to_bytes));
  VAYU_ASSIGN_OR_RETURN(MergeTable merges, read_merges(spec, vocab, to_bytes));
  Pipeline pipeline;
  pipeline.added = find_added(vocab);
  fill_tables(vocab, pipeline);
  BpeOptions options{.byte_ids = find_byte_ids(vocab)};
  if (vocab.unknown_id && vocab.type(*vocab.unknown_id) != TokenType::kControl) options.unknown = *vocab.unknown_id;
  pipeline.every_byte_counts =
      options.unknown != kNoToken || std::ranges::find(options.byte_ids, kNoToken) == options.byte_ids.end();
  pipeline.model = std::make_unique<BpeModel>(*pipeline.pieces, std::move(merges), std::move(options));
  pipeline.normalizer = make_replace(Pattern::literal(" "), std::string(kMetaspace));
  pipeline.cutter = make_split(Pattern::scanned(PrePattern::kNewlineRuns), SplitBehavior::kIsolated, false);
  pipeline.decoder = DecodeChain::replace_then_bytes(std::string(kMetaspace), " ");
  pipeline.bos_id = vocab.bos_id;
  pipeline.end_ids = vocab.end_ids;
  if (spec.add_bos.value_or(false)) pipeline.prefix.push_back(*vocab.bos_id);
  if (spec.add_eos.value_or(false)) pipeline.suffix.push_back(*vocab.eos_id);
  return make_pipeline_tokenizer(std::move(pipeline));
}

}  // namespace vayu
