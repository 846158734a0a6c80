#include "apps/placeholder_tokenizer.h"

#include "tokenizer/tokenizer_spec.h"

namespace vayu {

Result<std::shared_ptr<const Tokenizer>> placeholder_tokenizer(int32_t vocab_size) {
  constexpr int32_t kFirstWord = 3 + 256;
  if (vocab_size < kFirstWord) {
    return field_error("vocab_size", "a vocabulary of {} has no room for 256 bytes and 3 control tokens", vocab_size);
  }
  TokenizerSpec spec;
  spec.model = "llama";
  spec.tokens = {"<pad>", "<eos>", "<unk>"};
  spec.token_types = {3, 3, 2};
  for (int byte = 0; byte < 256; ++byte) {
    spec.tokens.push_back(fmt::format("<0x{:02X}>", byte));
    spec.token_types.push_back(6);
  }
  for (int32_t id = kFirstWord; id < vocab_size; ++id) {
    spec.tokens.push_back(fmt::format("\u2581w{}", id));
    spec.token_types.push_back(1);
  }
  spec.scores.assign(vocab_size, -1e9f);
  spec.eos_id = 1;
  spec.unknown_id = 2;
  spec.add_bos = false;
  return make_tokenizer(std::move(spec));
}

}  // namespace vayu
