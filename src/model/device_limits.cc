#include "model/device_limits.h"

#include <algorithm>
#include <array>
#include <span>

#include "ops/attention/device_decode.h"
#include "ops/attention/device_mla.h"
#include "ops/attention/device_mla_prefill.h"
#include "ops/gemm/cuda_matrix.h"
#include "ops/gemm/device_gemm.h"
#include "ops/gemm/device_head_linear.h"
#include "ops/gemm/stream_linear.h"
#include "ops/moe/device_combine.h"
#include "ops/moe/device_route.h"
#include "ops/norm/add_norm.h"
#include "ops/norm/quantize_rows.h"
#include "ops/rope/device_rope.h"
#include "ops/sampling/device_sample.h"

namespace vayu::model {
namespace {

constexpr int64_t kRowUnit = 16;                            // elements: rows of BF16 and FP8 are whole 16 bytes
constexpr int32_t kMaxStepTokens = 1 << 20;                 // as on the CPU
constexpr int32_t kMaxPages = INT32_MAX / kDevicePageSize;  // slots are 32-bit
// Of a matrix in BF16: a row is staged as a whole on its way to the device.
constexpr int64_t kMaxCols = ops::WeightStaging::kPlaceBytes / int64_t{sizeof(ops::Bf16)};

// Where one op behind another is narrower, its limit is the one that is checked.
static_assert(ops::kRouteMaxExperts <= ops::kDeviceGemmMaxGroups);
static_assert(ops::kRouteMaxTopK <= ops::kCombineMaxTopK);
static_assert(ops::kMaxDeviceVocab <= int64_t{ops::kStreamLinearMaxTiles} * 128);
static_assert(ops::kDecodeMaxWidth <= ops::kMaxQuantizedCols);
static_assert(kMaxCols % ops::kScaleGroup == 0, "padding takes a width no further");

struct Limit {
  const char* field;  // of config.json
  int64_t value;
  int64_t most;
  int64_t unit = 1;       // the value is a multiple of it
  const char* with = "";  // what else makes up the value, behind the field
};

Error unsupported(std::string field, std::string message) {
  return Error{ErrorKind::kUnsupported, std::move(message), std::move(field)};
}

Status check_all(std::span<const Limit> limits) {
  for (const Limit& limit : limits) {
    if (limit.value <= limit.most && limit.value % limit.unit == 0) continue;
    const std::string kind = limit.unit > 1 ? fmt::format("multiples of {} ", limit.unit) : "";
    return unsupported(limit.field, fmt::format("{}{} is {}: the CUDA backend takes {}up to {}", limit.field,
                                                limit.with, limit.value, kind, limit.most));
  }
  return {};
}

Status check_widths(const ModelConfig& config) {
  const int64_t unit = config.has_moe() ? ops::kRouteChunk : kRowUnit;
  return check_all(std::array{
      Limit{"vocab_size", config.vocab_size, ops::kMaxDeviceVocab},
      Limit{"hidden_size", config.hidden, ops::kMaxNormHidden, unit}, Limit{"intermediate_size", config.ffn, kMaxCols},
      Limit{"moe_intermediate_size", config.moe.expert_ffn, kMaxCols},
      Limit{"moe_shared_expert_intermediate_size", config.moe.shared_ffn, kMaxCols, 1, ", times num_shared_experts,"}});
}

Status check_router(const ModelConfig& config) {
  const ops::RouterShape& router = config.moe.router;
  return check_all(std::array{Limit{"num_experts", router.num_experts, ops::kRouteMaxExperts},
                              Limit{"num_experts_per_tok", router.top_k, ops::kRouteMaxTopK},
                              Limit{"n_group", router.num_groups, ops::kRouteMaxGroups}});
}

Status check_attention(const ModelConfig& config) {
  if (!ops::decode_takes_head_dim(config.head_dim)) {
    return unsupported("head_dim",
                       fmt::format("head_dim is {}: the CUDA backend takes 32, 64 and 128", config.head_dim));
  }
  if (config.num_q_heads > ops::kDecodeMaxGroup * config.num_kv_heads || config.q_width() > ops::kDecodeMaxWidth) {
    return unsupported("num_attention_heads",
                       fmt::format("num_attention_heads is {}, of {} dimensions, over num_key_value_heads {}: the CUDA "
                                   "backend takes up to {} a key head, and {} dimensions together",
                                   config.num_q_heads, config.head_dim, config.num_kv_heads, ops::kDecodeMaxGroup,
                                   ops::kDecodeMaxWidth));
  }
  const int32_t unit = config.rope.pairing == ops::RopePairing::kHalfSplit ? ops::kHalfSplitUnit : 2;
  if (config.rope.rotary_dim % unit == 0) return {};
  return unsupported("partial_rotary_factor",
                     fmt::format("partial_rotary_factor leaves rotary_dim {} of head_dim {}: the CUDA backend takes "
                                 "multiples of {}",
                                 config.rope.rotary_dim, config.head_dim, unit));
}

Status check_latent_attention(const ModelConfig& config, const InputForms& inputs) {
  const MlaConfig& mla = config.mla;
  if (mla.form == MlaForm::kExpanded && !mla.expands_prompts) {
    return unsupported("--mla-attention",
                       fmt::format("the CUDA backend expands latents for heads of {} + {} and values of {} alone: "
                                   "--mla-attention absorbed",
                                   ops::kMlaPrefillNope, ops::kMlaPrefillRope, ops::kMlaPrefillValue));
  }
  VAYU_RETURN_IF_ERROR(check_all(std::array{
      Limit{"num_attention_heads", config.num_q_heads, ops::kMlaMaxHeads},
      Limit{"kv_lora_rank", mla.latent_dim, std::min(ops::kMlaMaxLatentDim, ops::kHeadLinearMaxDim), kRowUnit},
      Limit{"qk_nope_head_dim", mla.nope_dim, ops::kHeadLinearMaxDim, kRowUnit},
      Limit{"qk_rope_head_dim", mla.rope_dim, ops::kMaxRotatedDim, ops::kHalfSplitUnit},
      Limit{"v_head_dim", mla.v_dim, ops::kHeadLinearMaxDim, kRowUnit},
      Limit{"kv_lora_rank", config.head_dim, ops::kMlaMaxRowDim, 1, " and qk_rope_head_dim together"}}));
  if (config.rope.rotary_dim != mla.rope_dim) {
    return unsupported(
        "partial_rotary_factor",
        fmt::format("partial_rotary_factor leaves rotary_dim {} of qk_rope_head_dim {}: the CUDA backend "
                    "rotates all of it",
                    config.rope.rotary_dim, mla.rope_dim));
  }
  if (!inputs.attention.f8 || config.attention_width() <= ops::kMaxQuantizedCols) return {};
  return unsupported(
      "v_head_dim",
      fmt::format("num_attention_heads {} times v_head_dim {} is {}: with an output projection in FP8 the "
                  "CUDA backend takes up to {}",
                  config.num_q_heads, mla.v_dim, config.attention_width(), ops::kMaxQuantizedCols));
}

Status check_flag(const char* flag, int64_t value, int64_t least, int64_t most, const char* why) {
  if (value >= least && value <= most) return {};
  return field_error(flag, "{} is {}: the CUDA backend takes {} to {}, {}", flag, value, least, most, why);
}

}  // namespace

int32_t max_device_step_tokens(const ModelConfig& config) {
  int32_t most = kMaxStepTokens;
  if (config.has_moe()) most = std::min(most, ops::kRouteMaxTokens);
  if (config.has_mla()) most = std::min(most, ops::kMlaMaxTokens);
  return most;
}

Status check_device_flags(const ModelConfig& config, const DeviceModelOptions& options) {
  const char* step_limit = config.has_mla()   ? "with latent attention"
                           : config.has_moe() ? "with experts"
                                              : "whatever the model";
  const int32_t most_tokens = max_device_step_tokens(config);
  VAYU_RETURN_IF_ERROR(check_flag("--max-num-seqs", options.max_rows, 1, most_tokens, step_limit));
  VAYU_RETURN_IF_ERROR(
      check_flag("--max-num-batched-tokens", options.max_step_tokens, options.max_rows, most_tokens, step_limit));
  VAYU_RETURN_IF_ERROR(
      check_flag("--max-model-len", options.max_context, 1, config.max_context, "the context of the model"));
  return check_flag("--max-total-tokens", int64_t{options.num_pages} * kDevicePageSize, 0,
                    int64_t{kMaxPages} * kDevicePageSize, "slots that have a number");
}

Status check_device_limits(const ModelConfig& config, const DeviceModelOptions& options, const InputForms& inputs) {
  VAYU_RETURN_IF_ERROR(config.has_mla() ? check_latent_attention(config, inputs) : check_attention(config));
  if (config.has_moe()) VAYU_RETURN_IF_ERROR(check_router(config));
  VAYU_RETURN_IF_ERROR(check_widths(config));
  return check_device_flags(config, options);
}

}  // namespace vayu::model
