// The tokenizer that tokenizer.json files describe: added tokens are cut out, the text between them is normalized and
// cut into words, a model turns words into tokens, a chain of decoders turns tokens back into text.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "tokenizer/piece_table.h"
#include "tokenizer/pipeline/added_tokens.h"
#include "tokenizer/pipeline/decode_chain.h"
#include "tokenizer/pipeline/normalizer.h"
#include "tokenizer/pipeline/word_cutter.h"
#include "tokenizer/subword_model.h"
#include "tokenizer/tokenizer.h"

namespace vayu {

struct Pipeline {
  PieceTable tokens;  // (vocab_size) as the file writes them; added tokens are indexed
  std::vector<AddedToken> added;
  NormalizerPtr normalizer;                  // may be null
  WordCutterPtr cutter;                      // may be null
  std::unique_ptr<const PieceTable> pieces;  // (vocab_size) as the model sees them; those it may make are indexed
  std::unique_ptr<const SubwordModel> model;
  bool every_byte_counts = false;       // no text becomes nothing, and no long text one token, in the model
  std::vector<TokenId> prefix, suffix;  // put around a text with EncodeOptions::add_special
  DecodeChain decoder;
  std::optional<TokenId> bos_id;
  std::vector<TokenId> end_ids;  // sorted
};

std::shared_ptr<const Tokenizer> make_pipeline_tokenizer(Pipeline pipeline);

}  // namespace vayu
