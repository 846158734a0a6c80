#include "apps/placeholder_tokenizer.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "tokenizer/tokenizer_json.h"

namespace vayu {
namespace {

using Json = nlohmann::json;  // sorted: the ordered kind looks through all keys for each new one

constexpr int32_t kFirstWord = 3 + 256;
constexpr char kSpace[] = "\u2581";

Json special_token(int32_t id, const char* text) {
  return {{"id", id},        {"content", text},     {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

}  // namespace

Result<std::string> placeholder_tokenizer_json(int32_t vocab_size) {
  if (vocab_size < kFirstWord) {
    return field_error("vocab_size", "a vocabulary of {} has no room for 256 bytes and 3 control tokens", vocab_size);
  }
  Json vocab = {{"<pad>", 0}, {"<eos>", 1}, {"<unk>", 2}};
  for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = 3 + byte;
  for (int32_t id = kFirstWord; id < vocab_size; ++id) vocab[fmt::format("{}w{}", kSpace, id)] = id;
  const Json decoders = {{{"type", "Replace"}, {"pattern", {{"String", kSpace}}}, {"content", " "}},
                         {{"type", "ByteFallback"}},
                         {{"type", "Fuse"}}};
  const Json json = {
      {"version", "1.0"},
      {"added_tokens", {special_token(0, "<pad>"), special_token(1, "<eos>"), special_token(2, "<unk>")}},
      {"normalizer", nullptr},
      {"pre_tokenizer", nullptr},
      {"post_processor", nullptr},
      {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
      {"model",
       {{"type", "BPE"},
        {"unk_token", "<unk>"},
        {"fuse_unk", true},
        {"byte_fallback", true},
        {"vocab", std::move(vocab)},
        {"merges", Json::array()}}}};
  return json.dump();
}

Result<std::shared_ptr<const Tokenizer>> placeholder_tokenizer(int32_t vocab_size) {
  VAYU_ASSIGN_OR_RETURN(const std::string json, placeholder_tokenizer_json(vocab_size));
  return parse_tokenizer_json(json, {.generation_config = R"({"eos_token_id": 1})"});
}

}  // namespace vayu
