// tokenizer.json files damaged in arbitrary places, and arbitrary text through whole pipelines.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "tokenizer/json_cases.h"
#include "tokenizer/tokenizer_json.h"

namespace vayu {
namespace {

// The same file with few tokens, so that damage often hits what matters.
std::string shrunk(JsonCases::Json file) {
  JsonCases::Json& model = file["model"];
  if (model["vocab"].is_array()) return file.dump();
  JsonCases::Json vocab = JsonCases::Json::object(), merges = JsonCases::Json::array();
  for (const auto& [piece, id] : model["vocab"].items()) {
    if (id < 300 || piece.starts_with("<0x")) vocab[piece] = vocab.size();
  }
  for (auto& token : file["added_tokens"]) {
    const std::string content = token["content"];
    if (!vocab.contains(content)) vocab[content] = vocab.size();
    token["id"] = vocab[content];
  }
  for (const auto& merge : model.value("merges", JsonCases::Json::array())) {
    if (!merge.is_array()) continue;
    const std::string left = merge[0], right = merge[1];
    if (vocab.contains(left) && vocab.contains(right) && vocab.contains(left + right)) merges.push_back(merge);
  }
  model["vocab"] = vocab;
  if (model.contains("merges")) model["merges"] = merges;
  file["post_processor"] = nullptr;
  return file.dump();
}

void check_text(const Tokenizer& tokenizer, const std::string& text, std::span<const uint8_t> mask, uint8_t flags) {
  const EncodeOptions options{.parse_special = (flags & 1) != 0,
                              .add_special = (flags & 2) != 0,
                              .trusted = flags & 4 ? mask : std::span<const uint8_t>()};
  const std::vector<TokenId> ids = tokenizer.encode(text, options);
  for (const TokenId id : ids) VAYU_CHECK(id >= 0 && id < tokenizer.vocab_size(), "id {}", id);
  StreamDecoder decoder(tokenizer, (flags & 8) != 0);
  std::string streamed;
  for (const TokenId id : ids) streamed += decoder.push(id);
  streamed += decoder.finish();
  VAYU_CHECK(streamed == tokenizer.decode(ids, (flags & 8) != 0), "stream differs from decode");
  if (const size_t most = tokenizer.max_token_bytes(); most > 0) {
    VAYU_CHECK(text.size() <= most * ids.size(), "{} bytes in {} tokens of at most {}", text.size(), ids.size(), most);
  }
}

}  // namespace
}  // namespace vayu

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace vayu;
  static const std::vector<std::string> files = [] {
    const JsonCases cases;
    std::vector<std::string> made;
    for (const std::string& name : cases.names()) made.push_back(shrunk(cases.compose(name)));
    return made;
  }();
  static const std::vector<std::shared_ptr<const Tokenizer>> tokenizers = [] {
    std::vector<std::shared_ptr<const Tokenizer>> made;
    for (const std::string& file : files) {
      auto tokenizer = parse_tokenizer_json(file, {});
      if (tokenizer.ok()) made.push_back(std::move(*tokenizer));
    }
    VAYU_CHECK(made.size() > 20, "only {} cases load", made.size());
    return made;
  }();
  if (size < 6) return 0;
  const uint8_t flags = data[0];
  const std::string text(reinterpret_cast<const char*>(data) + 6, size - 6);
  std::vector<uint8_t> mask(text.size());
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = (data[1] * (i + 1) * 37 >> (data[2] & 7)) & 1;
  if ((flags & 16) == 0) {
    check_text(*tokenizers[data[1] % tokenizers.size()], text, mask, flags);
    return 0;
  }
  // Text takes the place of a stretch of the file; sometimes it is another file of the folder.
  std::string file = files[data[1] % files.size()];
  const size_t at = (data[2] | data[3] << 8 | data[4] << 16) % file.size();
  if ((flags & 32) == 0) file.replace(at, data[5] % 32, text);
  ModelFolderTexts folder;
  if (flags & 32) (flags & 64 ? folder.config : folder.tokenizer_config) = text;
  const auto tokenizer = parse_tokenizer_json(file, folder);
  if (!tokenizer.ok()) {
    VAYU_CHECK(tokenizer.error().message.find(".json: ") != std::string::npos, "{}", tokenizer.error().message);
    return 0;
  }
  check_text(**tokenizer, "Hello <s> \xE0\xA4\x95 12\n\n\xFF  x", {}, flags);
  return 0;
}
