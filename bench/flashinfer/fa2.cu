// The paged kernels of FlashInfer's FA2 family with head dimension 64: decoding (all queries of a key head in one tile
// of the tensor cores) and causal prompts. Compiled twice, for pages in BF16 and with -DPEER_F8 in E4M3.
#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/mask.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/scheduler.cuh>
#include <flashinfer/attention/variants.cuh>

#include "peer.h"

namespace {

using flashinfer::MaskMode;
#ifdef PEER_F8
using Kv = __nv_fp8_e4m3;
#define PEER_NAME(name) name##_f8
#else
using Kv = nv_bfloat16;
#define PEER_NAME(name) name##_bf16
#endif
using Params = flashinfer::BatchPrefillPagedParams<nv_bfloat16, Kv, nv_bfloat16, int32_t>;
constexpr uint32_t kDim = 64;

struct Plan {
  PeerBatch batch;
  PeerWorkspace workspace;
  bool causal;
  flashinfer::PrefillPlanInfo info;
};

template <class T>
T* in_ints(const Plan& plan, int64_t offset) {
  return flashinfer::GetPtrFromBaseOffset<T>(plan.workspace.ints, offset);
}

Params make_params(const Plan& plan, const PeerTensors& t) {
  const PeerBatch& b = plan.batch;
  const auto layout = b.head_major ? flashinfer::QKVLayout::kHND : flashinfer::QKVLayout::kNHD;
  Params params;
  params.q = static_cast<nv_bfloat16*>(const_cast<void*>(t.q));
  params.paged_kv = {static_cast<uint32_t>(b.kv_heads),
                     static_cast<uint32_t>(b.page_size),
                     kDim,
                     static_cast<uint32_t>(b.rows),
                     layout,
                     static_cast<Kv*>(const_cast<void*>(t.k)),
                     static_cast<Kv*>(const_cast<void*>(t.v)),
                     const_cast<int32_t*>(t.table),
                     const_cast<int32_t*>(b.kv_indptr),
                     const_cast<int32_t*>(b.last_page_len)};
  params.q_indptr = const_cast<int32_t*>(b.qo_indptr);
  params.o = static_cast<nv_bfloat16*>(t.out);
  params.group_size = flashinfer::uint_fastdiv(b.q_heads / b.kv_heads);
  params.num_qo_heads = b.q_heads;
  params.q_stride_n = b.q_heads * kDim;
  params.q_stride_h = kDim;
  params.window_left = -1;
  params.sm_scale = b.scale;
  params.rope_rcp_scale = params.rope_rcp_theta = 1;
  params.request_indices = in_ints<int32_t>(plan, plan.info.request_indices_offset);
  params.qo_tile_indices = in_ints<int32_t>(plan, plan.info.qo_tile_indices_offset);
  params.kv_tile_indices = in_ints<int32_t>(plan, plan.info.kv_tile_indices_offset);
  params.o_indptr = in_ints<int32_t>(plan, plan.info.o_indptr_offset);
  params.kv_chunk_size_ptr = in_ints<int32_t>(plan, plan.info.kv_chunk_size_ptr_offset);
  if (plan.info.split_kv) params.merge_indptr = in_ints<int32_t>(plan, plan.info.merge_indptr_offset);
  params.padded_batch_size = plan.info.padded_batch_size;
  params.max_total_num_rows = plan.info.total_num_rows;
  return params;
}

template <uint32_t kTile, MaskMode kMask>
cudaError_t run_tile(const Plan& plan, const PeerTensors& tensors, cudaStream_t stream) {
  using Variant = flashinfer::DefaultAttention<false, false, false, false>;
  nv_bfloat16* partial = nullptr;
  float* partial_sums = nullptr;
  if (plan.info.split_kv) {
    partial = flashinfer::GetPtrFromBaseOffset<nv_bfloat16>(plan.workspace.floats, plan.info.v_offset);
    partial_sums = flashinfer::GetPtrFromBaseOffset<float>(plan.workspace.floats, plan.info.s_offset);
  }
  constexpr auto kNoRope = flashinfer::PosEncodingMode::kNone;
  return flashinfer::BatchPrefillWithPagedKVCacheDispatched<true, kTile, kDim, kDim, kNoRope, false, kMask, false,
                                                            Variant>(make_params(plan, tensors), partial, partial_sums,
                                                                     /*enable_pdl=*/true, stream);
}

}  // namespace

extern "C" {

void* PEER_NAME(peer_fa2_plan)(const PeerBatch* batch, const PeerWorkspace* w, int32_t causal) {
  auto* plan = new Plan{*batch, *w, causal != 0, {}};
  const int failed = peer::checked([&] {
    const PeerBatch& b = *batch;
    const cudaError_t status = flashinfer::PrefillPlan<int32_t>(
        w->floats, w->float_bytes, w->ints, w->pinned_ints, w->int_bytes, plan->info,
        const_cast<int32_t*>(b.qo_indptr_host), const_cast<int32_t*>(b.kv_indptr_host), b.qo_indptr_host[b.rows],
        b.rows, b.q_heads, b.kv_heads, kDim, kDim, b.page_size, /*enable_cuda_graph=*/false, /*sizeof_dtype_o=*/2,
        /*window_left=*/-1, /*fixed_split_size=*/-1, /*disable_split_kv=*/false, /*num_colocated_ctas=*/0,
        /*uniform_q_len=*/causal ? 0 : 1, /*fixed_uniform_q_len=*/!causal, nullptr, sizeof(Kv));
    return status != cudaSuccess ? status : cudaDeviceSynchronize();
  });
  if (!failed) return plan;
  delete plan;
  return nullptr;
}

int PEER_NAME(peer_fa2_run)(void* handle, const PeerTensors* tensors, cudaStream_t stream) {
  const Plan& plan = *static_cast<Plan*>(handle);
  return peer::checked([&] {
    if (!plan.causal && plan.info.cta_tile_q == 16) return run_tile<16, MaskMode::kNone>(plan, *tensors, stream);
    if (plan.causal && plan.info.cta_tile_q == 128) return run_tile<128, MaskMode::kCausal>(plan, *tensors, stream);
    return cudaErrorNotSupported;
  });
}
}
