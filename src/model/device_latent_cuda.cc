// Latent attention of one layer, in the form or forms that the plan of the step names. Absorbed rows go first: both
// forms work in the same memory.
#include "model/device_step.h"
#include "ops/attention/device_mla.h"
#include "ops/attention/device_mla_gather.h"
#include "ops/gemm/device_gemm.h"
#include "ops/gemm/device_head_linear.h"
#include "ops/rope/device_rope_mla.h"

namespace vayu::model {
namespace {

using ops::Bf16;

class LatentLauncher {
 public:
  LatentLauncher(const DeviceStepContext& context, const StepShape& shape, const DeviceLayer& layer,
                 const ops::DeviceKvLayer& kv, ops::CudaStream stream)
      : c_(context),
        config_(context.config),
        mla_(context.config.mla),
        act_(context.act),
        shape_(shape),
        latent_(shape.latent),
        layer_(layer),
        kv_(kv),
        stream_(stream),
        out_(static_cast<Bf16*>(context.act.attention.bf16.data)) {}

  void run() {
    if (latent_.num_passes == 0) {
      ops::DeviceBatch batch = c_.inputs.batch;
      batch.num_tokens = shape_.num_tokens;
      batch.num_rows = shape_.num_rows;
      attend_absorbed(batch, 0, shape_.max_context);
      return;
    }
    if (latent_.num_tokens > 0) {
      split_queries();
      attend_absorbed(absorbed_rows(), latent_.first_token, latent_.max_context);
    }
    for (int32_t i = 0; i < latent_.num_passes; ++i) attend_expanded(latent_.passes[i]);
  }

 private:
  const Bf16* queries(int64_t first_token) const { return act_.qkv + first_token * config_.qkv_width(); }

  ops::DeviceBatch absorbed_rows() const {
    ops::DeviceBatch batch;
    batch.qo_indptr = c_.inputs.words + latent_.qo_indptr_at;
    batch.kv_indptr = c_.inputs.batch.kv_indptr + latent_.first_row;
    batch.page_table = c_.inputs.batch.page_table;
    batch.kv_lens = c_.inputs.words + latent_.kv_lens_at;
    batch.num_tokens = latent_.num_tokens;
    batch.num_rows = latent_.num_rows;
    return batch;
  }

  // The rotated parts, which a step of absorbed rows alone gets with the rotation.
  void split_queries() {
    ops::mla_split_queries_cuda(stream_, {.q = queries(latent_.first_token),
                                          .q_stride = config_.qkv_width(),
                                          .q_latent = act_.q_latent,
                                          .nope_dim = mla_.nope_dim,
                                          .rope_dim = mla_.rope_dim,
                                          .latent_dim = mla_.latent_dim,
                                          .num_heads = config_.num_q_heads,
                                          .num_tokens = latent_.num_tokens});
  }

  // Queries into the space of the latents, attention there, and the result back to values. The batch's tokens begin at
  // `first_token` of the step's.
  void attend_absorbed(const ops::DeviceBatch& batch, int64_t first_token, int32_t max_context) {
    const int64_t heads = config_.num_q_heads;
    ops::device_head_linear_cuda(stream_, {.weight = static_cast<const Bf16*>(layer_.latent_to_k.data),
                                           .x = queries(first_token),
                                           .x_stride = config_.qkv_width(),
                                           .x_head_stride = mla_.nope_dim + mla_.rope_dim,
                                           .y = act_.q_latent,
                                           .y_stride = heads * config_.head_dim,
                                           .y_head_stride = config_.head_dim,
                                           .num_heads = config_.num_q_heads,
                                           .in = mla_.nope_dim,
                                           .out = mla_.latent_dim,
                                           .num_tokens = batch.num_tokens});
    ops::mla_attention_cuda(stream_, {.batch = batch,
                                      .max_context = max_context,
                                      .num_heads = config_.num_q_heads,
                                      .q = act_.q_latent,
                                      .out = act_.latent_out,
                                      .scale = config_.attention_scale,
                                      .kv = kv_,
                                      .scratch = act_.attention_scratch,
                                      .num_table_pages = shape_.num_table_pages,
                                      .wide_pages = act_.wide_pages,
                                      .wide_capacity = act_.wide_capacity});
    ops::device_head_linear_cuda(stream_, {.weight = static_cast<const Bf16*>(layer_.latent_to_v.data),
                                           .x = act_.latent_out,
                                           .x_stride = heads * mla_.latent_dim,
                                           .x_head_stride = mla_.latent_dim,
                                           .y = out_ + first_token * config_.attention_width(),
                                           .y_stride = config_.attention_width(),
                                           .y_head_stride = mla_.v_dim,
                                           .num_heads = config_.num_q_heads,
                                           .in = mla_.latent_dim,
                                           .out = mla_.v_dim,
                                           .num_tokens = batch.num_tokens});
  }

  // The context of the pass's rows gathered and expanded, then attention over that.
  void attend_expanded(const ops::MlaPrefillPass& pass) {
    const int32_t context = pass.num_pages * kDevicePageSize;
    ops::mla_gather_cuda(stream_, {.kv = kv_,
                                   .sources = c_.inputs.words + latent_.sources_at + pass.first_source,
                                   .num_pages = pass.num_pages,
                                   .latents = act_.context_latents,
                                   .rope = act_.context_rope});
    ops::ActRows latents, expanded;
    latents.data = act_.context_latents;
    latents.cols = mla_.latent_dim;
    expanded.data = act_.expanded_kv;
    expanded.cols = layer_.latent_to_kv.rows;
    ops::device_gemm_cuda(stream_, {.weight = layer_.latent_to_kv, .x = latents, .out = expanded, .num_rows = context});
    const auto* items = reinterpret_cast<const ops::MlaPrefillItem*>(c_.inputs.words + latent_.items_at);
    ops::device_mla_prefill_cuda(stream_, {.q = act_.qkv,
                                           .q_stride = config_.qkv_width(),
                                           .num_tokens = shape_.num_tokens,
                                           .kv = act_.expanded_kv,
                                           .rope = act_.context_rope,
                                           .num_context = context,
                                           .out = out_,
                                           .num_heads = config_.num_q_heads,
                                           .scale = config_.attention_scale,
                                           .items = items + pass.first_item,
                                           .num_blocks = pass.num_blocks});
  }

  const DeviceStepContext& c_;
  const ModelConfig& config_;
  const MlaConfig& mla_;
  const DeviceActivations& act_;
  const StepShape& shape_;
  const LatentStep& latent_;
  const DeviceLayer& layer_;
  const ops::DeviceKvLayer& kv_;
  ops::CudaStream stream_;
  Bf16* out_;
};

}  // namespace

void launch_latent_attention(const DeviceStepContext& context, const StepShape& shape, const DeviceLayer& layer,
                             const ops::DeviceKvLayer& kv, ops::CudaStream stream) {
  LatentLauncher(context, shape, layer, kv, stream).run();
}

}  // namespace vayu::model
