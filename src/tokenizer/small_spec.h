// The small vocabularies of tests/golden/tokenizer_small.json, for tests.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tokenizer/tokenizer_spec.h"

namespace vayu {

// name: "bpe" or "sp".
inline TokenizerSpec small_spec(const std::string& name) {
  std::ifstream file(VAYU_SOURCE_DIR "/tests/golden/tokenizer_small.json");
  const nlohmann::json json = nlohmann::json::parse(file).at(name);
  TokenizerSpec spec;
  spec.model = name == "bpe" ? "gpt2" : "llama";
  spec.tokens = json.at("tokens").get<std::vector<std::string>>();
  spec.token_types = json.at("types").get<std::vector<int64_t>>();
  spec.merges = json.value("merges", std::vector<std::string>());
  spec.scores = json.value("scores", std::vector<float>());
  spec.bos_id = json.at("bos_id").get<int64_t>();
  spec.eos_id = json.at("eos_id").get<int64_t>();
  if (json.contains("unknown_id")) spec.unknown_id = json["unknown_id"].get<int64_t>();
  return spec;
}

inline std::vector<nlohmann::json> golden_lines(const std::string& name) {
  std::ifstream file(VAYU_SOURCE_DIR "/tests/golden/" + name);
  std::vector<nlohmann::json> rows;
  for (std::string line; std::getline(file, line);) rows.push_back(nlohmann::json::parse(line));
  return rows;
}

}  // namespace vayu
