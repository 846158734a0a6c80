// The figures of an evaluation as a table and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/eval/evaluator.h"

namespace vayu::eval {

// One configuration of a model.
struct SideInfo {
  std::string name;               // short, for headings
  std::string description;        // what weights, KV cache and backend are
  nlohmann::ordered_json config;  // path and every option
};

struct EvalReport {
  SideInfo evaluated;
  std::optional<SideInfo> reference;
  WindowOptions windows;
  std::vector<TextScore> texts;
  TextScore total;  // of all texts, weighted by tokens
  std::vector<LayerLoad> expert_load;
};

std::string format_table(const EvalReport& report);
nlohmann::ordered_json to_json(const EvalReport& report);

}  // namespace vayu::eval
