#include "model/device_step.h"

#include <algorithm>

#include "base/check.h"
#include "ops/activation/device_silu_mul.h"
#include "ops/attention/device_decode.h"
#include "ops/attention/device_prefill.h"
#include "ops/cuda/num_sms.h"
#include "ops/gemm/device_gather.h"
#include "ops/gemm/device_gemm.h"
#include "ops/gemm/device_head_linear.h"
#include "ops/gemm/stream_linear.h"
#include "ops/moe/device_combine.h"
#include "ops/moe/device_route.h"
#include "ops/moe/stream_experts.h"
#include "ops/norm/add_norm.h"
#include "ops/norm/quantize_rows.h"
#include "ops/rope/device_rope.h"
#include "ops/rope/device_rope_mla.h"
#include "telemetry/nvtx_range.h"

namespace vayu::model {
namespace {

using ops::ActRows;
using ops::Bf16;
using ops::CudaStream;
using ops::DeviceMatrix;

constexpr float kLatentNormEps = 1e-6f;  // fixed in the model's own code, whatever the configuration says

class StepLauncher {
 public:
  StepLauncher(const DeviceStepContext& context, const StepShape& shape, CudaStream stream)
      : c_(context), config_(context.config), act_(context.act), shape_(shape), stream_(stream) {
    batch_ = context.inputs.batch;
    batch_.num_tokens = shape.num_tokens;
    batch_.num_rows = shape.num_rows;
  }

  void run() {
    embed();
    run_layers(0, config_.num_layers);
    run_head();
  }

  void run_layers(int32_t first, int32_t count) {
    for (int32_t layer = first; layer < first + count; ++layer) run_layer(layer);
  }

 private:
  StepScope scope(StepOperator op, int32_t layer) const { return StepScope(c_.options.observer, op, layer, stream_); }

  void embed() {
    gather();
    const StepScope watched = scope(StepOperator::kInputNorm, 0);
    ops::add_norm_cuda(stream_, attention_norm_args(&c_.weights.layers.front(), nullptr));
  }

  void gather() {
    const StepScope watched = scope(StepOperator::kEmbedding, 0);
    ops::gather_rows_cuda(stream_, {.table = static_cast<const Bf16*>(c_.weights.embedding.data),
                                    .ids = c_.inputs.token_ids,
                                    .y = act_.residual,
                                    .table_rows = config_.vocab_size,
                                    .num_rows = shape_.num_tokens,
                                    .cols = config_.hidden,
                                    .prev_index = c_.options.prev_tokens ? c_.inputs.prev_index : nullptr,
                                    .prev_tokens = c_.options.prev_tokens});
  }

  void run_layer(int32_t index) {
    const NvtxRange range("layer");
    const DeviceLayer& layer = c_.weights.layers[index];
    attention(layer, index);
    mlp_norm(layer, index);
    const bool last = index + 1 == config_.num_layers;
    const DeviceLayer* next = last ? nullptr : &c_.weights.layers[index + 1];
    if (layer.moe) {
      experts(layer, index, next);
      delta_pending_ = false;
      return;
    }
    const StepScope watched = scope(StepOperator::kDenseMlp, index);
    mlp(layer, act_.delta);
    delta_pending_ = last;
    if (!last) ops::add_norm_cuda(stream_, attention_norm_args(next, act_.delta));
  }

  void mlp_norm(const DeviceLayer& layer, int32_t index) {
    const StepScope watched = scope(StepOperator::kMlpNorm, index);
    RowForms readers{.bf16 = layer.moe};  // the router
    if (layer.gate_up.rows > 0) readers.add(layer.gate_up.scale);
    if (layer.moe) readers.add(layer.expert_gate_up.scale);
    ops::add_norm_cuda(stream_, norm_args(layer.mlp_norm, act_.delta, readers));
  }

  // Of the norm before a layer's attention; null behind the last layer, where nothing is normed.
  ops::AddNormArgs attention_norm_args(const DeviceLayer* layer, const Bf16* delta) const {
    RowForms readers;
    if (layer != nullptr) readers.add(layer->qkv.scale);
    return norm_args(layer != nullptr ? layer->attention_norm : nullptr, delta, readers);
  }

  ops::AddNormArgs norm_args(const float* weight, const Bf16* delta, const RowForms& readers) const {
    const bool both = readers.f8 && readers.bf16;
    return {.residual = act_.residual,
            .delta = delta,
            .weight = weight,
            .eps = config_.norm_eps,
            .num_rows = shape_.num_tokens,
            .hidden = config_.hidden,
            .y = readers.f8 ? act_.x.f8 : act_.x.bf16,
            .y_bf16 = both ? static_cast<Bf16*>(act_.x.bf16.data) : nullptr};
  }

  void linear(const DeviceMatrix& weight, const ActRows& x, Bf16* y) {
    const ops::StreamLinearArgs few{
        .weight = weight, .x = x, .num_rows = shape_.num_tokens, .y = y, .workspace = act_.linear_workspace};
    if (shape_.num_tokens <= kStreamRows && ops::stream_linear_fits(few)) {
      ops::stream_linear_cuda(stream_, few);
      return;
    }
    ActRows out;
    out.data = y;
    out.cols = weight.rows;
    ops::device_gemm_cuda(stream_, {.weight = weight, .x = x, .out = out, .num_rows = shape_.num_tokens});
  }

  void attention(const DeviceLayer& layer, int32_t index) {
    {
      const StepScope watched = scope(StepOperator::kQkv, index);
      linear(layer.qkv, act_.x.of(layer.qkv), act_.qkv);
    }
    ops::DeviceKvLayer kv = device_kv_shape(config_, c_.options.kv_format);
    kv.pages = c_.kv + index * int64_t{c_.options.num_pages} * kv.page_bytes();
    if (config_.has_mla()) {
      rotate_latent(layer, index, kv);
      attend_latent(layer, index, kv);
    } else {
      rotate(layer, index, kv);
      attend(layer, index, kv);
    }
    const StepScope watched = scope(StepOperator::kOutputProjection, index);
    quantize_attention(layer);
    linear(layer.attention_output, act_.attention.of(layer.attention_output), act_.delta);
  }

  ops::DeviceRotation rotation() const {
    return {.inv_freq = c_.weights.inv_freq,
            .attention_factor = c_.weights.attention_factor,
            .pairing = config_.rope.pairing,
            .rotary_dim = config_.rope.rotary_dim};
  }

  void rotate(const DeviceLayer& layer, int32_t index, const ops::DeviceKvLayer& kv) {
    const StepScope watched = scope(StepOperator::kQkNormRope, index);
    ops::device_rope_kv_write_cuda(stream_, {.qkv = act_.qkv,
                                             .positions = batch_.positions,
                                             .slot_mapping = batch_.slot_mapping,
                                             .rotation = rotation(),
                                             .q_norm = layer.q_norm,
                                             .k_norm = layer.k_norm,
                                             .norm_eps = config_.norm_eps,
                                             .num_q_heads = config_.num_q_heads,
                                             .num_tokens = shape_.num_tokens,
                                             .kv = kv});
  }

  // Rows of one token through the decode kernel, which quantises its output itself when there are no others.
  void attend(const DeviceLayer& layer, int32_t index, const ops::DeviceKvLayer& kv) {
    const StepScope watched = scope(StepOperator::kAttention, index);
    const bool mixed = shape_.num_tiles > 0;
    // More rows than the kernel takes at once: prompts of models without a prompt kernel, a row a token.
    for (int32_t first = 0; first < shape_.num_decode_rows; first += ops::kDecodeMaxRows) {
      ops::decode_attention_cuda(stream_,
                                 {.batch = batch_,
                                  .decode_rows = c_.inputs.decode_rows + first,
                                  .num_decode_rows = std::min(ops::kDecodeMaxRows, shape_.num_decode_rows - first),
                                  .max_context = shape_.max_context,
                                  .q = act_.qkv,
                                  .q_stride = config_.qkv_width(),
                                  .num_q_heads = config_.num_q_heads,
                                  .scale = config_.attention_scale,
                                  .kv = kv,
                                  .keys_settled = has_prefill_kernel(config_),
                                  .out = mixed ? act_.attention.bf16 : act_.attention.of(layer.attention_output),
                                  .scratch = act_.attention_scratch});
    }
    if (!mixed) return;
    ops::device_prefill_cuda(stream_, {.q = act_.qkv,
                                       .q_stride = config_.qkv_width(),
                                       .out = attention_rows(),
                                       .kv = kv,
                                       .batch = batch_,
                                       .num_q_heads = config_.num_q_heads,
                                       .scale = config_.attention_scale,
                                       .rows = ops::PrefillRows::kMultiToken,
                                       .passes = shape_.passes,
                                       .num_passes = shape_.num_passes,
                                       .items = c_.inputs.prefill_items,
                                       .merges = c_.inputs.prefill_merges,
                                       .parts = act_.prefill_parts,
                                       .wide_sources = c_.inputs.wide_sources,
                                       .wide_pages = act_.wide_pages});
  }

  // When all rows are absorbed, the rotated parts of the queries also go to their place in q_latent.
  void rotate_latent(const DeviceLayer& layer, int32_t index, const ops::DeviceKvLayer& kv) {
    const StepScope watched = scope(StepOperator::kQkNormRope, index);
    ops::device_mla_rope_kv_write_cuda(stream_, {.q_kv = act_.qkv,
                                                 .positions = batch_.positions,
                                                 .slot_mapping = batch_.slot_mapping,
                                                 .rotation = rotation(),
                                                 .latent_norm = layer.latent_norm,
                                                 .norm_eps = kLatentNormEps,
                                                 .nope_dim = config_.mla.nope_dim,
                                                 .num_heads = config_.num_q_heads,
                                                 .num_tokens = shape_.num_tokens,
                                                 .kv = kv,
                                                 .q_latent = shape_.latent.num_passes == 0 ? act_.q_latent : nullptr});
  }

  void attend_latent(const DeviceLayer& layer, int32_t index, const ops::DeviceKvLayer& kv) {
    const StepScope watched = scope(StepOperator::kAttention, index);
    launch_latent_attention(c_, shape_, layer, kv, stream_);
  }

  // Where attention writes BF16.
  Bf16* attention_rows() const { return static_cast<Bf16*>(act_.attention.bf16.data); }

  // Rows of one token alone leave the decode kernel quantised.
  void quantize_attention(const DeviceLayer& layer) {
    if (!layer.attention_output.is_f8() || (shape_.num_tiles == 0 && !config_.has_mla())) return;
    ops::quantize_rows_cuda(stream_, {.x = attention_rows(),
                                      .x_stride = config_.attention_width(),
                                      .num_rows = shape_.num_tokens,
                                      .y = act_.attention.f8});
  }

  // A dense MLP, or the shared expert.
  void mlp(const DeviceLayer& layer, Bf16* out) {
    const ActRows& x = act_.x.of(layer.gate_up);
    const ActRows inner = mlp_rows(layer);
    const ops::StreamLinearArgs few{.weight = layer.gate_up,
                                    .x = x,
                                    .num_rows = shape_.num_tokens,
                                    .y = act_.gate_up,
                                    .workspace = act_.linear_workspace};
    if (shape_.num_tokens <= kStreamRows && ops::stream_linear_fits(few)) {
      ops::stream_linear_cuda(stream_, few);
      ops::device_silu_mul_cuda(stream_, {.gate_up = act_.gate_up, .num_rows = shape_.num_tokens, .y = inner});
    } else {
      ops::device_gemm_cuda(
          stream_, {.weight = layer.gate_up, .x = x, .out = inner, .swiglu = true, .num_rows = shape_.num_tokens});
    }
    linear(layer.down, inner, out);
  }

  // The rows between its products.
  ActRows mlp_rows(const DeviceLayer& layer) const {
    ActRows inner = act_.mlp.of(layer.down);
    inner.cols = layer.gate_up.rows / 2;
    return inner;
  }

  void route(const DeviceLayer& layer, int32_t index) {
    const ops::RouterShape& router = config_.moe.router;
    const StepScope watched = scope(StepOperator::kRouter, index);
    ops::device_route_cuda(stream_, {.shape = router,
                                     .x = static_cast<const Bf16*>(act_.x.bf16.data),
                                     .weight = layer.router,
                                     .bias = layer.router_bias,
                                     .num_tokens = shape_.num_tokens,
                                     .num_valid_tokens = c_.inputs.num_valid,
                                     .expert_ids = act_.expert_ids,
                                     .expert_weights = act_.expert_weights,
                                     .expert_indptr = act_.expert_indptr,
                                     .sorted_tokens = act_.sorted_tokens,
                                     .pair_position = act_.pair_position,
                                     .scratch = act_.route_scratch});
  }

  // Returns the shared expert's rows where the same launch made them, else null.
  const Bf16* routed_experts(const DeviceLayer& layer, int32_t index) {
    const ops::RouterShape& router = config_.moe.router;
    const int32_t pairs = shape_.num_tokens * router.top_k;
    const StepScope watched = scope(StepOperator::kRoutedExperts, index);
    const ActRows& inner = act_.expert_mlp.of(layer.expert_down);
    const bool fused = layer.gate_up.rows > 0 && layer.gate_up.rows == 2 * inner.cols &&
                       layer.gate_up.scale == layer.expert_gate_up.scale && layer.down.scale == layer.expert_down.scale;
    ops::StreamExpertsArgs few{.gate_up = layer.expert_gate_up,
                               .down = layer.expert_down,
                               .shared_gate_up = fused ? layer.gate_up : DeviceMatrix{},
                               .shared_down = fused ? layer.down : DeviceMatrix{},
                               .x = act_.x.of(layer.expert_gate_up),
                               .num_tokens = shape_.num_tokens,
                               .num_experts = router.num_experts,
                               .top_k = router.top_k,
                               .ffn = static_cast<int32_t>(inner.cols),
                               .expert_indptr = act_.expert_indptr,
                               .sorted_tokens = act_.sorted_tokens,
                               .h = inner,
                               .out = act_.expert_out,
                               .workspace = act_.experts_workspace};
    few.half_tiles = ops::stream_experts_halves_pay(few, ops::num_sms());
    if (few.half_tiles && inner.is_f8()) few.h.scale_group = ops::kScaleGroup / 2;
    if (shape_.num_tokens <= c_.options.max_experts_stream && ops::stream_experts_fits(few)) {
      ops::stream_experts_cuda(stream_, few);
      return fused ? act_.expert_out + int64_t{pairs} * config_.hidden : nullptr;
    }
    multiply_experts(layer, pairs);
    return nullptr;
  }

  // Whether this step's shared expert goes to the second stream, beside the router and the routed experts. Up to
  // kStreamRows the linears would share a workspace with those of the first stream.
  bool has_side(const DeviceLayer& layer) const {
    return c_.side.stream != nullptr && layer.gate_up.rows > 0 &&
           shape_.num_tokens > std::max(c_.options.max_experts_stream, kStreamRows);
  }

  // From the fork, behind the norm, to the join. It reads x and writes mlp and delta. The first stream reads x too, and
  // has no use for the other two between the norm, which was the last to read delta, and the join. Both products may
  // start when there is room for their blocks, so the router, whose blocks need each other, is launched first; none of
  // these waits for anything the router does.
  void shared_expert_beside(const DeviceLayer& layer, int32_t index) {
    const CudaStream stream = c_.side.stream;
    const StepScope named(nullptr, StepOperator::kSharedExpert, index, stream);
    c_.side.fork.hold_back(stream);
    const ActRows inner = mlp_rows(layer);
    ActRows out;
    out.data = act_.delta;
    out.cols = layer.down.rows;
    ops::device_gemm_cuda(stream, {.weight = layer.gate_up,
                                   .x = act_.x.of(layer.gate_up),
                                   .out = inner,
                                   .swiglu = true,
                                   .num_rows = shape_.num_tokens});
    ops::device_gemm_cuda(stream, {.weight = layer.down, .x = inner, .out = out, .num_rows = shape_.num_tokens});
    c_.side.join.record(stream);
  }

  void experts(const DeviceLayer& layer, int32_t index, const DeviceLayer* next) {
    const bool side = has_side(layer);
    if (side) c_.side.fork.record(stream_);
    route(layer, index);
    if (side) shared_expert_beside(layer, index);
    const Bf16* shared_out = routed_experts(layer, index);
    if (side) {
      c_.side.join.hold_back(stream_);
      shared_out = act_.delta;
    } else if (layer.gate_up.rows > 0 && shared_out == nullptr) {
      const StepScope watched = scope(StepOperator::kSharedExpert, index);
      mlp(layer, act_.delta);
      shared_out = act_.delta;
    }
    const StepScope watched = scope(StepOperator::kCombine, index);
    ops::combine_add_norm_cuda(stream_, {.expert_out = act_.expert_out,
                                         .pair_position = act_.pair_position,
                                         .weights = act_.expert_weights,
                                         .top_k = config_.moe.router.top_k,
                                         .norm = attention_norm_args(next, shared_out)});
  }

  void multiply_experts(const DeviceLayer& layer, int32_t pairs) {
    const int32_t num_experts = config_.moe.router.num_experts;
    const ActRows& inner = act_.expert_mlp.of(layer.expert_down);
    ops::device_gemm_cuda(stream_, {.weight = layer.expert_gate_up,
                                    .x = act_.x.of(layer.expert_gate_up),
                                    .out = inner,
                                    .swiglu = true,
                                    .num_rows = pairs,
                                    .num_groups = num_experts,
                                    .group_indptr = act_.expert_indptr,
                                    .x_rows = act_.sorted_tokens});
    ActRows out;
    out.data = act_.expert_out;
    out.cols = config_.hidden;
    ops::device_gemm_cuda(stream_, {.weight = layer.expert_down,
                                    .x = inner,
                                    .out = out,
                                    .num_rows = pairs,
                                    .num_groups = num_experts,
                                    .group_indptr = act_.expert_indptr});
  }

  void run_head() {
    if (shape_.num_logits == 0) return;
    const StepScope watched = scope(StepOperator::kHead, config_.num_layers);
    const ActRows& input = act_.head_input.of(c_.weights.head);
    ops::add_norm_cuda(stream_, {.residual = act_.residual,
                                 .delta = delta_pending_ ? act_.delta : nullptr,
                                 .row_ids = c_.inputs.logit_rows,
                                 .weight = c_.weights.output_norm,
                                 .eps = config_.norm_eps,
                                 .num_rows = shape_.num_logits,
                                 .hidden = config_.hidden,
                                 .y = input});
    for (int32_t first = 0; first < shape_.num_logits; first += kStreamRows) {
      ops::StreamLinearArgs head{.weight = c_.weights.head,
                                 .x = input,
                                 .num_rows = std::min(kStreamRows, shape_.num_logits - first),
                                 .y_float = act_.logits + first * int64_t{config_.vocab_size},
                                 .workspace = act_.linear_workspace};
      head.x.data = static_cast<std::byte*>(head.x.data) + first * config_.hidden * int64_t{head.x.is_f8() ? 1 : 2};
      if (head.x.is_f8()) head.x.scales += first;
      VAYU_CHECK(ops::stream_linear_fits(head), "a head of {} inputs", config_.hidden);
      ops::stream_linear_cuda(stream_, head);
    }
  }

  const DeviceStepContext& c_;
  const ModelConfig& config_;
  const DeviceActivations& act_;
  const StepShape& shape_;
  CudaStream stream_;
  ops::DeviceBatch batch_;
  bool delta_pending_ = false;  // the last layer's output is not on the residual yet
};

}  // namespace

void launch_device_step(const DeviceStepContext& context, const StepShape& shape, CudaStream stream) {
  const NvtxRange range("step");
  StepLauncher(context, shape, stream).run();
}

void launch_device_layers(const DeviceStepContext& context, const StepShape& shape, int32_t first, int32_t count,
                          ops::CudaStream stream) {
  StepLauncher(context, shape, stream).run_layers(first, count);
}

}  // namespace vayu::model
