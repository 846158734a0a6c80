// Goldens of tests/golden/oracle: safetensors of F32 tensors, written by make_oracle_goldens.py and
// make_transformers_goldens.py.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace vayu::model::testing {

struct GoldenTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};

struct Golden {
  std::map<std::string, GoldenTensor> tensors;
  std::map<std::string, std::string> metadata;

  const GoldenTensor& at(const std::string& name) const { return tensors.at(name); }
  std::vector<int32_t> integers(const std::string& name) const {
    const std::vector<float>& values = at(name).values;
    return {values.begin(), values.end()};
  }
};

// VAYU_SOURCE_DIR in the environment: the tree is not where the test was built (tools/gpu_proof.sh).
inline std::string golden_path(const std::string& file) {
  const char* moved = std::getenv("VAYU_SOURCE_DIR");
  return std::string(moved ? moved : VAYU_SOURCE_DIR) + "/tests/golden/oracle/" + file;
}

inline std::string read_whole(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

inline Golden read_golden(const std::string& path) {
  const std::string data = read_whole(path);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, data.data(), sizeof(header_bytes));
  const auto header = nlohmann::json::parse(data.substr(8, header_bytes));
  Golden golden;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      golden.metadata = entry.get<std::map<std::string, std::string>>();
      continue;
    }
    GoldenTensor tensor;
    tensor.shape = entry["shape"].get<std::vector<int64_t>>();
    const size_t begin = entry["data_offsets"][0];
    const size_t end = entry["data_offsets"][1];
    tensor.values.resize((end - begin) / sizeof(float));
    std::memcpy(tensor.values.data(), data.data() + 8 + header_bytes + begin, end - begin);
    golden.tensors.emplace(name, std::move(tensor));
  }
  return golden;
}

}  // namespace vayu::model::testing
