#include "core/batch.h"
#include "core/request.h"

namespace vayu {

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  return "error";
}

void Batch::clear() {
  token_ids.clear();
  prev_samples.clear();
  positions.clear();
  slot_mapping.clear();
  qo_indptr.assign(1, 0);
  kv_indptr.assign(1, 0);
  page_table.clear();
  kv_lens.clear();
  logit_rows.clear();
  samples.clear();
}

}  // namespace vayu
