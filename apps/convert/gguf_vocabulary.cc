#include "apps/convert/gguf_vocabulary.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

namespace vayu {
namespace {

using Json = nlohmann::json;

constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6;

bool is_byte_token(const std::string& text) {
  return text.size() == 6 && text.starts_with("<0x") && text.back() == '>';
}

// "left right", however the file spells a merge.
std::vector<std::string> merges_of(const Json& model) {
  std::vector<std::string> merges;
  for (const Json& merge : model.value("merges", Json::array())) {
    merges.push_back(merge.is_string() ? merge.get<std::string>()
                                       : merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>());
  }
  return merges;
}

struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
};

Vocabulary vocabulary_of(const Json& json, int32_t rows) {
  Vocabulary out;
  for (int32_t id = 0; id < rows; ++id) out.tokens.push_back("[PAD" + std::to_string(id) + "]");
  out.types.assign(rows, kUnused);
  const Json& model = json.at("model");
  const std::string unknown = model.contains("unk_token") && model["unk_token"].is_string() ? model["unk_token"] : "";
  for (const auto& [text, id] : model.at("vocab").items()) {
    const auto i = id.get<size_t>();
    if (i >= out.tokens.size()) continue;  // the loader has refused this already
    out.tokens[i] = text;
    out.types[i] = is_byte_token(text) ? kByte : text == unknown ? kUnknown : kNormal;
  }
  for (const Json& added : json.value("added_tokens", Json::array())) {
    const auto i = added.at("id").get<size_t>();
    if (i >= out.tokens.size()) continue;
    out.tokens[i] = added.at("content").get<std::string>();
    out.types[i] = added.value("special", false) ? kControl : kUserDefined;
  }
  return out;
}

}  // namespace

Status write_gguf_vocabulary(const ModelFiles& files, loader::GgufWriter& writer) {
  if (!files.source.chat_template.empty()) writer.add_string("tokenizer.chat_template", files.source.chat_template);
  const int32_t rows = files.recipe.config.vocab_size;
  if (files.source.tokenizer_json.empty()) {
    writer.add_string("tokenizer.ggml.model", "none");
    return {};
  }
  std::ifstream in(files.source.tokenizer_json, std::ios::binary);
  const Json json = Json::parse(in, nullptr, false);
  const bool known = json.is_object() && json.contains("model") && json["model"].value("type", "") == "BPE" &&
                     json["model"].value("byte_fallback", false);
  if (!known) {
    return make_error(ErrorKind::kUnsupported, "{}: only BPE with byte fallback can be written to GGUF",
                      files.source.tokenizer_json);
  }
  const Vocabulary vocabulary = vocabulary_of(json, rows);
  writer.add_string("tokenizer.ggml.model", "gpt2");
  writer.add_string("tokenizer.ggml.pre", "sarvam-moe");
  writer.add_strings("tokenizer.ggml.tokens", vocabulary.tokens);
  writer.add_i32s("tokenizer.ggml.token_type", vocabulary.types);
  writer.add_strings("tokenizer.ggml.merges", merges_of(json["model"]));
  writer.add_bool("tokenizer.ggml.add_bos_token", files.tokenizer->adds_bos());
  if (const auto eos = files.tokenizer->find(files.eos_token); !files.eos_token.empty() && eos) {
    writer.add_u32("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(*eos));
  }
  return {};
}

}  // namespace vayu
