// The tokenizer.json files of tests/golden/tokenizer_json_cases.json, put together as tokenizer_json_make.py does.
#pragma once

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace vayu {

class JsonCases {
 public:
  using Json = nlohmann::ordered_json;

  JsonCases() {
    std::ifstream file(VAYU_SOURCE_DIR "/tests/golden/tokenizer_json_cases.json");
    data_ = Json::parse(file);
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& [name, value] : data_.at("cases").items()) names.push_back(name);
    return names;
  }

  // A tokenizer.json file.
  Json compose(const std::string& name) const {
    const Json& spec = data_.at("cases").at(name);
    Json model = data_.at("models").at(spec.at("model").get<std::string>());
    if (spec.contains("options")) model.update(spec["options"]);
    if (model.contains("string_merges")) {
      model.erase("string_merges");
      for (Json& pair : model["merges"]) pair = pair[0].get<std::string>() + " " + pair[1].get<std::string>();
    }
    std::map<std::string, int64_t> ids;
    const Json& vocab = model.at("vocab");
    for (const auto& [key, value] : vocab.items()) {
      vocab.is_array() ? ids.emplace(value[0].get<std::string>(), ids.size()) : ids.emplace(key, value.get<int64_t>());
    }
    Json added = Json::array();
    for (Json token : spec.value("added_tokens", Json::array())) {
      token["id"] = ids.emplace(token.at("content").get<std::string>(), ids.size()).first->second;
      added.push_back(token);
    }
    Json out{{"version", "1.0"}, {"added_tokens", added}};
    for (const char* part : {"normalizer", "pre_tokenizer", "post_processor", "decoder"}) {
      out[part] = fill(spec.value(part, Json()), ids);
    }
    out["model"] = std::move(model);
    return out;
  }

 private:
  // Names of tokens become ids where ids belong, "charsmap" becomes the table.
  Json fill(Json part, const std::map<std::string, int64_t>& ids) const {
    if (part == "charsmap") return {{"type", "Precompiled"}, {"precompiled_charsmap", data_.at("charsmap")}};
    for (auto& [key, value] : part.items()) {
      if (!part.is_structured()) break;
      if (key == "ids") {
        for (Json& name : value) name = ids.at(name.get<std::string>());
      } else if (key == "sep" || key == "cls") {
        value[1] = ids.at(value[1].get<std::string>());
      } else if (value.is_structured() || value.is_string()) {
        value = fill(std::move(value), ids);
      }
    }
    return part;
  }

  Json data_;
};

}  // namespace vayu
