// FlashInfer's Hopper kernel for latent attention in the absorbed form, latents of 512 and rotated keys of 64:
// decoding. Compiled twice, for pages in BF16 and with -DPEER_F8 in E4M3 (widened in the kernel).
#include <flashinfer/attention/mask.cuh>
#include <flashinfer/attention/mla_hopper.cuh>
#include <flashinfer/attention/mla_params.cuh>
#include <flashinfer/attention/scheduler.cuh>

#include "peer.h"

namespace {

#ifdef PEER_F8
using Kv = __nv_fp8_e4m3;
#define PEER_NAME(name) name##_f8
#else
using Kv = nv_bfloat16;
#define PEER_NAME(name) name##_bf16
#endif
using Params = flashinfer::MLAParams<nv_bfloat16, Kv, nv_bfloat16, int32_t>;
constexpr int32_t kLatent = 512, kRope = 64;

struct Plan {
  PeerBatch batch;
  PeerWorkspace workspace;
  flashinfer::MLAPlanInfo info;
};

int32_t* in_ints(const Plan& plan, int64_t offset) {
  return flashinfer::GetPtrFromBaseOffset<int32_t>(plan.workspace.ints, offset);
}

void set_schedule(Params& params, const Plan& plan) {
  const auto& info = plan.info;
  params.q_indptr = in_ints(plan, info.q_indptr_offset);
  params.kv_indptr = in_ints(plan, info.kv_indptr_offset);
  params.partial_indptr = in_ints(plan, info.partial_indptr_offset);
  params.merge_packed_offset_start = in_ints(plan, info.merge_packed_offset_start_offset);
  params.merge_packed_offset_end = in_ints(plan, info.merge_packed_offset_end_offset);
  params.merge_partial_packed_offset_start = in_ints(plan, info.merge_partial_packed_offset_start_offset);
  params.merge_partial_packed_offset_end = in_ints(plan, info.merge_partial_packed_offset_end_offset);
  params.merge_partial_stride = in_ints(plan, info.merge_partial_stride_offset);
  params.q_len = in_ints(plan, info.q_len_offset);
  params.kv_len = in_ints(plan, info.kv_len_offset);
  params.q_start = in_ints(plan, info.q_start_offset);
  params.kv_start = in_ints(plan, info.kv_start_offset);
  params.kv_end = in_ints(plan, info.kv_end_offset);
  params.work_indptr = in_ints(plan, info.work_indptr_offset);
}

Params make_params(const Plan& plan, const PeerTensors& t) {
  const PeerBatch& b = plan.batch;
  Params params{};
  set_schedule(params, plan);
  params.q_nope = static_cast<nv_bfloat16*>(const_cast<void*>(t.q));
  params.q_pe = static_cast<nv_bfloat16*>(const_cast<void*>(t.q_rope));
  params.ckv = static_cast<Kv*>(const_cast<void*>(t.k));
  params.kpe = static_cast<Kv*>(const_cast<void*>(t.v));
  params.kv_indices = const_cast<int32_t*>(t.table);
  params.final_o = static_cast<nv_bfloat16*>(t.out);
  params.partial_o = flashinfer::GetPtrFromBaseOffset<nv_bfloat16>(plan.workspace.floats, plan.info.partial_o_offset);
  params.partial_lse = flashinfer::GetPtrFromBaseOffset<float>(plan.workspace.floats, plan.info.partial_lse_offset);
  params.num_heads = flashinfer::uint_fastdiv(b.q_heads);
  params.block_size = flashinfer::uint_fastdiv(b.page_size);
  params.q_nope_stride_n = b.q_heads * kLatent, params.q_nope_stride_h = kLatent;
  params.q_pe_stride_n = b.q_heads * kRope, params.q_pe_stride_h = kRope;
  params.ckv_stride_page = b.page_size * kLatent, params.ckv_stride_n = kLatent;
  params.kpe_stride_page = b.page_size * kRope, params.kpe_stride_n = kRope;
  params.o_stride_n = b.q_heads * kLatent, params.o_stride_h = kLatent;
  params.sm_scale = b.scale;
  params.ckv_scale = params.kpe_scale = 1;
  return params;
}

}  // namespace

extern "C" {

void* PEER_NAME(peer_mla_plan)(const PeerBatch* batch, const PeerWorkspace* w) {
  auto* plan = new Plan{*batch, *w, {}};
  const int failed = peer::checked([&] {
    const PeerBatch& b = *batch;
    size_t staged = 0;
    cudaError_t status = flashinfer::MLAPlan<int32_t>(
        w->floats, w->float_bytes, w->ints, w->pinned_ints, w->int_bytes, plan->info, staged,
        const_cast<int32_t*>(b.qo_indptr_host), const_cast<int32_t*>(b.kv_indptr_host),
        const_cast<int32_t*>(b.kv_len_host), b.rows, b.q_heads, kLatent, /*causal=*/false, nullptr);
    if (status == cudaSuccess) status = cudaMemcpy(w->ints, w->pinned_ints, staged, cudaMemcpyHostToDevice);
    return status != cudaSuccess ? status : cudaDeviceSynchronize();
  });
  if (!failed) return plan;
  delete plan;
  return nullptr;
}

int PEER_NAME(peer_mla_run)(void* handle, const PeerTensors* tensors, cudaStream_t stream) {
  const Plan& plan = *static_cast<Plan*>(handle);
  return peer::checked([&] {
    return flashinfer::mla::BatchMLAPageAttentionHopper<flashinfer::MaskMode::kNone, kLatent, kRope>(
        make_params(plan, *tensors), plan.info.num_blks_x, plan.info.num_blks_y, stream);
  });
}
}
