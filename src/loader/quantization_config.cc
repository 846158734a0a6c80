#include "loader/quantization_config.h"

#include "loader/gguf.h"

namespace vayu::loader {
namespace {

Status read_pair(const JsonConfig& json, std::string_view key, ScaleBlocks& blocks) {
  VAYU_ASSIGN_OR_RETURN(const std::vector<int32_t> size, json.integers_or_empty(key));
  if (size.empty()) return {};
  if (size.size() != 2 || size[0] < 1 || size[1] < 1) return json.corrupt(key, "is no pair of sizes");
  blocks = {size[0], size[1]};
  return {};
}

Status require_one_of(const JsonConfig& json, std::string_view key, std::string_view fallback,
                      std::initializer_list<std::string_view> known) {
  VAYU_ASSIGN_OR_RETURN(const std::string value, json.text_or(key, std::string(fallback)));
  for (const std::string_view name : known) {
    if (value == name) return {};
  }
  return json.unsupported(key, fmt::format("'{}' is not supported ({})", printable(value), fmt::join(known, ", ")));
}

Status read_groups(const JsonConfig& quantization, ScaleBlocks& blocks) {
  VAYU_RETURN_IF_ERROR(
      require_one_of(quantization, "format", "float-quantized", {"float-quantized", "naive-quantized", "dense"}));
  VAYU_ASSIGN_OR_RETURN(const auto groups, quantization.object_or_null("config_groups"));
  if (!groups) return {};
  for (const std::string& name : groups->keys()) {
    VAYU_ASSIGN_OR_RETURN(const auto group, groups->object_or_null(name));
    if (!group) continue;
    VAYU_ASSIGN_OR_RETURN(const auto weights, group->object_or_null("weights"));
    if (!weights) continue;
    VAYU_RETURN_IF_ERROR(require_one_of(*weights, "type", "float", {"float"}));
    VAYU_ASSIGN_OR_RETURN(const int32_t bits, weights->integer_or("num_bits", 8, 1, 64));
    if (bits != 8) return weights->unsupported("num_bits", fmt::format("{} bits are not supported (8)", bits));
    VAYU_RETURN_IF_ERROR(read_pair(*weights, "block_structure", blocks));
  }
  return {};
}

}  // namespace

Result<ScaleBlocks> scale_blocks(const JsonConfig& config) {
  ScaleBlocks blocks;
  VAYU_ASSIGN_OR_RETURN(const auto quantization, config.object_or_null("quantization_config"));
  if (!quantization) return blocks;
  VAYU_RETURN_IF_ERROR(
      require_one_of(*quantization, "quant_method", "", {"fp8", "fbgemm_fp8", "compressed-tensors", "modelopt"}));
  VAYU_ASSIGN_OR_RETURN(const std::string method, quantization->text("quant_method"));
  if (method == "compressed-tensors") {
    VAYU_RETURN_IF_ERROR(read_groups(*quantization, blocks));
  } else if (method == "modelopt") {
    VAYU_RETURN_IF_ERROR(
        require_one_of(*quantization, "quant_algo", "FP8", {"FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO"}));
  }
  VAYU_RETURN_IF_ERROR(read_pair(*quantization, "weight_block_size", blocks));
  return blocks;
}

}  // namespace vayu::loader
