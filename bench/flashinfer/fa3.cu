// FlashInfer's FA3 kernels for causal prompts, BF16: from pages with head dimension 64, from rows with 64, and from
// rows with keys of 192 and values of 128 (latent attention in the expanded form).
#include <flashinfer/attention/hopper/default_params.cuh>
#include <flashinfer/attention/hopper/prefill_sm90.cuh>
#include <flashinfer/attention/hopper/variants.cuh>
#include <flashinfer/attention/mask.cuh>
#include <flashinfer/attention/scheduler.cuh>
#include <flashinfer/cutlass_utils.cuh>

#include "peer.h"

namespace {

using flashinfer::MaskMode;
using Bf16 = cutlass::bfloat16_t;
using Paged = flashinfer::BatchPrefillPagedParams<Bf16, Bf16, Bf16, int32_t>;
using Ragged = flashinfer::BatchPrefillRaggedParams<Bf16, Bf16, Bf16, int32_t>;

struct Plan {
  PeerBatch batch;
  PeerWorkspace workspace;
  bool paged;
  int32_t k_dim, v_dim;
  flashinfer::PrefillPlanSM90Info info;
};

int32_t* in_ints(const Plan& plan, int64_t offset) {
  return flashinfer::GetPtrFromBaseOffset<int32_t>(plan.workspace.ints, offset);
}

template <class Params>
Params common_params(const Plan& plan, const PeerTensors& t) {
  const PeerBatch& b = plan.batch;
  Params params{};
  params.q_ptr = static_cast<Bf16*>(const_cast<void*>(t.q));
  params.k_ptr = static_cast<Bf16*>(const_cast<void*>(t.k));
  params.v_ptr = static_cast<Bf16*>(const_cast<void*>(t.v));
  params.o_ptr = static_cast<Bf16*>(t.out);
  params.q_stride_n = int64_t{b.q_heads} * plan.k_dim, params.q_stride_h = plan.k_dim;
  params.o_stride_n = int64_t{b.q_heads} * plan.v_dim, params.o_stride_h = plan.v_dim;
  params.nnz_qo = b.qo_indptr_host[b.rows];
  params.num_qo_heads = b.q_heads;
  params.num_kv_heads = b.kv_heads;
  params.group_size = b.q_heads / b.kv_heads;
  params.window_left = -1;
  params.causal = true;
  params.additional_params.sm_scale = b.scale;
  params.qo_tile_indices = in_ints(plan, plan.info.qo_tile_indices_offset);
  params.qo_indptr = in_ints(plan, plan.info.qo_indptr_offset);
  params.kv_indptr = in_ints(plan, plan.info.kv_indptr_offset);
  params.qo_lens = in_ints(plan, plan.info.qo_len_offset);
  params.kv_lens = in_ints(plan, plan.info.kv_len_offset);
  params.head_indices = in_ints(plan, plan.info.head_indices_offset);
  params.work_indptr = in_ints(plan, plan.info.work_indptr_offset);
  params.batch_indices = in_ints(plan, plan.info.batch_indices_offset);
  return params;
}

cudaError_t run_paged(const Plan& plan, const PeerTensors& t, cudaStream_t stream) {
  const PeerBatch& b = plan.batch;
  auto params = common_params<Paged>(plan, t);
  params.k_stride_n = params.v_stride_n = b.head_major ? plan.k_dim : b.kv_heads * plan.k_dim;
  params.k_stride_h = params.v_stride_h = b.head_major ? b.page_size * plan.k_dim : plan.k_dim;
  params.k_page_stride = params.v_page_stride = int64_t{b.page_size} * b.kv_heads * plan.k_dim;
  params.page_size = b.page_size;
  params.kv_indices = const_cast<int32_t*>(t.table);
  return flashinfer::BatchPrefillWithPagedKVCacheDispatched<64, 64, MaskMode::kCausal, false, false,
                                                            flashinfer::StandardAttention>(params, true, stream);
}

template <uint32_t kKeyDim, uint32_t kValueDim>
cudaError_t run_ragged(const Plan& plan, const PeerTensors& t, cudaStream_t stream) {
  const PeerBatch& b = plan.batch;
  auto params = common_params<Ragged>(plan, t);
  params.k_stride_n = int64_t{b.kv_heads} * kKeyDim, params.k_stride_h = kKeyDim;
  params.v_stride_n = int64_t{b.kv_heads} * kValueDim, params.v_stride_h = kValueDim;
  params.nnz_kv = b.kv_indptr_host[b.rows];
  return flashinfer::BatchPrefillWithRaggedKVCacheDispatched<kKeyDim, kValueDim, MaskMode::kCausal, false, false,
                                                             flashinfer::StandardAttention>(params, true, stream);
}

}  // namespace

extern "C" {

void* peer_fa3_plan(const PeerBatch* batch, const PeerWorkspace* w, int32_t paged, int32_t k_dim, int32_t v_dim) {
  auto* plan = new Plan{*batch, *w, paged != 0, k_dim, v_dim, {}};
  const int failed = peer::checked([&] {
    const PeerBatch& b = *batch;
    const cudaError_t status = flashinfer::PrefillSM90Plan<int32_t>(
        w->floats, w->float_bytes, w->ints, w->pinned_ints, w->int_bytes, plan->info,
        const_cast<int32_t*>(b.qo_indptr_host), const_cast<int32_t*>(b.kv_indptr_host),
        const_cast<int32_t*>(b.kv_len_host), b.qo_indptr_host[b.rows], b.rows, b.q_heads, b.kv_heads, k_dim, v_dim,
        b.page_size, /*causal=*/true, /*enable_cuda_graph=*/false, /*sizeof_dtype_o=*/2, nullptr);
    return status != cudaSuccess ? status : cudaDeviceSynchronize();
  });
  if (!failed && !plan->info.same_schedule_for_all_heads) return plan;
  delete plan;
  return nullptr;
}

int peer_fa3_run(void* handle, const PeerTensors* tensors, cudaStream_t stream) {
  const Plan& plan = *static_cast<Plan*>(handle);
  return peer::checked([&] {
    if (plan.paged && plan.k_dim == 64) return run_paged(plan, *tensors, stream);
    if (!plan.paged && plan.k_dim == 64) return run_ragged<64, 64>(plan, *tensors, stream);
    if (!plan.paged && plan.k_dim == 192) return run_ragged<192, 128>(plan, *tensors, stream);
    return cudaErrorNotSupported;
  });
}

const char* peer_error() { return peer::last_error.c_str(); }
}
