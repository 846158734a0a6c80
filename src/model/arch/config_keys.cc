#include "model/arch/config_keys.h"

#include <algorithm>
#include <cmath>

#include "loader/gguf.h"
#include "model/arch/limits.h"
#include "model/rope_frequencies.h"

namespace vayu::model {
namespace {

using loader::JsonConfig;

// The block that describes scaling, null when there is none.
Result<std::shared_ptr<const JsonConfig>> scaling_block(const JsonConfig& json) {
  VAYU_ASSIGN_OR_RETURN(auto newer, json.object_or_null("rope_parameters"));
  VAYU_ASSIGN_OR_RETURN(auto older, json.object_or_null("rope_scaling"));
  if (newer && older) return json.corrupt("rope_scaling", "stands next to rope_parameters");
  return newer ? newer : older;
}

Result<RopeScaling> scaling_kind(const JsonConfig& block) {
  VAYU_ASSIGN_OR_RETURN(const std::string older, block.text_or("type", ""));
  VAYU_ASSIGN_OR_RETURN(const std::string newer, block.text_or("rope_type", ""));
  if (!older.empty() && !newer.empty() && older != newer) {
    return block.corrupt(
        "type", fmt::format("'{}', but rope_type is '{}'", loader::printable(older), loader::printable(newer)));
  }
  const std::string& kind = newer.empty() ? older : newer;
  if (kind.empty() || kind == "default") return RopeScaling::kNone;
  if (kind == "linear") return RopeScaling::kLinear;
  if (kind == "llama3") return RopeScaling::kLlama3;
  if (kind == "yarn" || kind == "deepseek_yarn") return RopeScaling::kYarn;
  // Changes nothing up to the length the model was trained for, which is where max_context stays.
  if (kind == "dynamic") return RopeScaling::kNone;
  return block.unsupported(newer.empty() ? "type" : "rope_type",
                           fmt::format("RoPE scaling '{}' is not supported", loader::printable(kind)));
}

Status read_scaling(const JsonConfig& block, double trained_context, RopeConfig& rope) {
  VAYU_ASSIGN_OR_RETURN(rope.scaling, scaling_kind(block));
  if (rope.scaling == RopeScaling::kNone) return {};
  VAYU_ASSIGN_OR_RETURN(rope.factor, block.number("factor"));
  VAYU_ASSIGN_OR_RETURN(rope.original_context, block.number_or("original_max_position_embeddings", trained_context));
  if (rope.scaling == RopeScaling::kLlama3) {
    VAYU_ASSIGN_OR_RETURN(rope.low_freq_factor, block.number("low_freq_factor"));
    VAYU_ASSIGN_OR_RETURN(rope.high_freq_factor, block.number("high_freq_factor"));
  }
  if (rope.scaling != RopeScaling::kYarn) return {};
  VAYU_ASSIGN_OR_RETURN(rope.beta_fast, block.number_or("beta_fast", rope.beta_fast));
  VAYU_ASSIGN_OR_RETURN(rope.beta_slow, block.number_or("beta_slow", rope.beta_slow));
  VAYU_ASSIGN_OR_RETURN(rope.mscale, block.number_or("mscale", 0));
  VAYU_ASSIGN_OR_RETURN(rope.mscale_all_dim, block.number_or("mscale_all_dim", 0));
  VAYU_ASSIGN_OR_RETURN(rope.temperature, block.number_or("attention_factor", 0));
  VAYU_ASSIGN_OR_RETURN(rope.truncate, block.boolean_or("truncate", true));
  return {};
}

Status refuse_windows(const JsonConfig& json) {
  VAYU_ASSIGN_OR_RETURN(const bool used, json.boolean_or("use_sliding_window", json.has("sliding_window")));
  if (used && json.has("sliding_window")) {
    return json.unsupported("sliding_window", "attention over a window is not supported");
  }
  VAYU_ASSIGN_OR_RETURN(const std::vector<std::string> kinds, json.texts_or_empty("layer_types"));
  for (const std::string& kind : kinds) {
    if (kind == "full_attention") continue;
    return json.unsupported("layer_types", fmt::format("'{}' is not supported", loader::printable(kind)));
  }
  return {};
}

}  // namespace

Status expect_flag(const JsonConfig& json, std::string_view key, bool value) {
  VAYU_ASSIGN_OR_RETURN(const bool found, json.boolean_or(key, value));
  return found == value ? Status() : json.unsupported(key, fmt::format("{} is not supported", found));
}

Status expect_text(const JsonConfig& json, std::string_view key, std::string_view value) {
  VAYU_ASSIGN_OR_RETURN(const std::string found, json.text_or(key, std::string(value)));
  if (found == value) return {};
  return json.unsupported(key, fmt::format("'{}' is not supported, only '{}'", loader::printable(found), value));
}

Status read_common(const JsonConfig& json, ModelConfig& config) {
  VAYU_ASSIGN_OR_RETURN(config.vocab_size, json.integer("vocab_size", 1, kMaxVocab));
  VAYU_ASSIGN_OR_RETURN(config.hidden, json.integer("hidden_size", 1, 1 << 16));
  VAYU_ASSIGN_OR_RETURN(config.num_layers, json.integer("num_hidden_layers", 1, 1024));
  VAYU_ASSIGN_OR_RETURN(config.num_q_heads, json.integer("num_attention_heads", 1, 1024));
  VAYU_ASSIGN_OR_RETURN(config.ffn, json.integer("intermediate_size", 1, 1 << 20));
  VAYU_ASSIGN_OR_RETURN(const double eps, json.number_or("rms_norm_eps", 1e-6));
  if (!(eps > 0 && eps < 1)) return json.corrupt("rms_norm_eps", fmt::format("{} is outside 0 to 1", eps));
  config.norm_eps = static_cast<float>(eps);
  VAYU_ASSIGN_OR_RETURN(config.tied_head, json.boolean_or("tie_word_embeddings", false));
  VAYU_RETURN_IF_ERROR(expect_text(json, "hidden_act", "silu"));
  for (const std::string_view key : {"attention_bias", "mlp_bias", "use_bias", "use_qkv_bias"}) {
    VAYU_RETURN_IF_ERROR(expect_flag(json, key, false));
  }
  VAYU_ASSIGN_OR_RETURN(const int32_t next_n, json.integer_or("num_nextn_predict_layers", 0, 0, 1024));
  if (next_n != 0) return json.unsupported("num_nextn_predict_layers", "extra prediction layers are not supported");
  return refuse_windows(json);
}

Status read_gqa(const JsonConfig& json, ModelConfig& config) {
  VAYU_ASSIGN_OR_RETURN(config.num_kv_heads, json.integer_or("num_key_value_heads", config.num_q_heads, 1, 1024));
  if (config.num_q_heads % config.num_kv_heads != 0) {
    return json.corrupt("num_attention_heads", fmt::format("{} query heads do not divide among {} KV heads",
                                                           config.num_q_heads, config.num_kv_heads));
  }
  if (!json.has("head_dim") && config.hidden % config.num_q_heads != 0) {
    return json.corrupt("hidden_size", fmt::format("{} does not divide among {} heads, and head_dim is not given",
                                                   config.hidden, config.num_q_heads));
  }
  VAYU_ASSIGN_OR_RETURN(config.head_dim, json.integer_or("head_dim", config.hidden / config.num_q_heads, 2, 512));
  config.attention_scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  config.rope.rotary_dim = config.head_dim;
  return {};
}

Status read_rope(const JsonConfig& json, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  VAYU_ASSIGN_OR_RETURN(const int32_t stated, json.integer("max_position_embeddings", 1, kMaxContext));
  VAYU_ASSIGN_OR_RETURN(rope.base, json.number_or("rope_theta", rope.base));
  VAYU_ASSIGN_OR_RETURN(double fraction, json.number_or("partial_rotary_factor", 1.0));
  VAYU_ASSIGN_OR_RETURN(const auto block, scaling_block(json));
  if (block) {
    VAYU_ASSIGN_OR_RETURN(rope.base, block->number_or("rope_theta", rope.base));
    VAYU_ASSIGN_OR_RETURN(fraction, block->number_or("partial_rotary_factor", fraction));
    VAYU_RETURN_IF_ERROR(read_scaling(*block, stated, rope));
  }
  const double rotary = rope.rotary_dim * fraction;
  if (!(rotary >= 2) || rotary > rope.rotary_dim || std::fmod(rotary, 2) != 0) {
    return json.corrupt("partial_rotary_factor",
                        fmt::format("{} of {} dimensions is no even number of them", fraction, rope.rotary_dim));
  }
  rope.rotary_dim = static_cast<int32_t>(rotary);
  const Status usable = check_rope(rope);
  if (!usable.ok()) return make_error(usable.error().kind, "{}: {}", json.file(), usable.error().message);
  // Checkpoints state the length before scaling or after it; the larger one is meant.
  const int64_t scaled = scaled_context(rope, stated);
  config.max_context = static_cast<int32_t>(std::min<int64_t>(std::max<int64_t>(stated, scaled), kMaxContext));
  return {};
}

Status check_router(const ops::RouterShape& router) {
  if (router.num_experts % router.num_groups != 0) {
    return make_error(ErrorKind::kCorrupt, "{} experts do not divide among {} groups (n_group)", router.num_experts,
                      router.num_groups);
  }
  const int32_t reachable = router.groups_kept * (router.num_experts / router.num_groups);
  if (reachable >= router.top_k) return {};
  return make_error(ErrorKind::kCorrupt, "{} groups (topk_group) hold {} experts, but a token chooses {}",
                    router.groups_kept, reachable, router.top_k);
}

Status read_shared_experts(const JsonConfig& json, ModelConfig& config) {
  VAYU_ASSIGN_OR_RETURN(const int32_t shared, json.integer_or("num_shared_experts", 1, 1, 64));
  VAYU_ASSIGN_OR_RETURN(const int32_t width,
                        json.integer_or("moe_shared_expert_intermediate_size", config.moe.expert_ffn, 1, 1 << 20));
  config.moe.shared_ffn = shared * width;
  VAYU_ASSIGN_OR_RETURN(const int32_t every, json.integer_or("moe_layer_freq", 1, 1, 1024));
  if (every == 1) return {};
  return json.unsupported("moe_layer_freq", "layers without experts between layers with them are not supported");
}

Status read_experts(const JsonConfig& json, ModelConfig& config) {
  ops::RouterShape& router = config.moe.router;
  router.hidden = config.hidden;
  const std::string_view count = json.has("num_experts") ? "num_experts" : "n_routed_experts";
  VAYU_ASSIGN_OR_RETURN(router.num_experts, json.integer(count, 1, 65536));
  VAYU_ASSIGN_OR_RETURN(router.top_k, json.integer("num_experts_per_tok", 1, std::min(router.num_experts, 1024)));
  VAYU_ASSIGN_OR_RETURN(config.moe.expert_ffn, json.integer("moe_intermediate_size", 1, 1 << 20));
  VAYU_ASSIGN_OR_RETURN(router.num_groups, json.integer_or("n_group", 1, 1, router.num_experts));
  VAYU_ASSIGN_OR_RETURN(router.groups_kept, json.integer_or("topk_group", router.num_groups, 1, router.num_groups));
  const Status usable = check_router(router);
  if (!usable.ok()) return make_error(usable.error().kind, "{}: {}", json.file(), usable.error().message);
  VAYU_ASSIGN_OR_RETURN(const double scale, json.number_or("routed_scaling_factor", 1.0));
  router.scale = static_cast<float>(scale);
  VAYU_ASSIGN_OR_RETURN(router.normalize, json.boolean_or("norm_topk_prob", true));
  return {};
}

}  // namespace vayu::model
