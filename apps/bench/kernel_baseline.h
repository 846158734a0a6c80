// What tools/bench_layer_baseline.py measured, checked against what it is to stand beside.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "base/result.h"
#include "model/config.h"

namespace vayu::bench {

struct Baseline {
  double eager_us = 0;
  double best_us = 0;
};

class KernelBaselines {
 public:
  // The text of a file of that name. kInvalidArgument where the file is of another model or context, kCorrupt where it
  // lacks a field or has one of another type; both name the file and the field. context 0: no decode rows are measured.
  static Result<KernelBaselines> parse(const std::string& text, const std::string& file, const std::string& model,
                                       const model::ModelConfig& config, int32_t context);
  static Result<KernelBaselines> read(const std::string& file, const std::string& model,
                                      const model::ModelConfig& config, int32_t context);

  bool empty() const { return shapes_.empty(); }
  std::optional<Baseline> find(const std::string& shape, const std::string& op) const;

 private:
  std::map<std::string, std::map<std::string, Baseline>> shapes_;
};

}  // namespace vayu::bench
