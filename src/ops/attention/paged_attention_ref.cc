// The definition of paged_attention: for each token and head, all scores, softmax, weighted sum, in double.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/attention/kv_element.h"
#include "ops/attention/paged_attention.h"

namespace vayu::ops {
namespace {

void attend(const PagedAttentionArgs& args, const float* q, float* out, int head, const int32_t* pages,
            int32_t num_visible, std::vector<double>& weights) {
  const KvLayer& kv = args.kv;
  weights.resize(num_visible);
  double max = -INFINITY;
  for (int32_t j = 0; j < num_visible; ++j) {
    double dot = 0;
    for (int d = 0; d < kv.head_dim; ++d) {
      dot += double{q[d]} * load_kv(kv, k_index(kv, pages[j / kv.page_size], head, j % kv.page_size, d));
    }
    weights[j] = dot * args.scale;
    max = std::max(max, weights[j]);
  }
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - max);
  for (int d = 0; d < kv.v_dim(); ++d) {
    double acc = 0;
    for (int32_t j = 0; j < num_visible; ++j) {
      acc += weights[j] * load_kv(kv, v_index(kv, pages[j / kv.page_size], head, j % kv.page_size, d));
    }
    out[d] = static_cast<float>(acc / sum);
  }
}

}  // namespace

void paged_attention_ref(const PagedAttentionArgs& args) {
  const int head_dim = args.kv.head_dim;
  const int group = args.num_q_heads / args.kv.num_kv_heads;
  std::vector<double> weights;
  for (int32_t r = 0; r < args.num_rows; ++r) {
    for (int64_t t = args.qo_indptr[r]; t < args.qo_indptr[r + 1]; ++t) {
      const auto num_visible = static_cast<int32_t>(args.kv_lens[r] - (args.qo_indptr[r + 1] - 1 - t));
      for (int h = 0; h < args.num_q_heads; ++h) {
        attend(args, args.q + t * args.q_stride + int64_t{h} * head_dim,
               args.out + (t * args.num_q_heads + h) * args.kv.v_dim(), h / group, args.page_table + args.kv_indptr[r],
               num_visible, weights);
      }
    }
  }
}

}  // namespace vayu::ops
