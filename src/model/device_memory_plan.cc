#include "model/device_memory_plan.h"

#include <algorithm>

namespace vayu::model {
namespace {

constexpr double kGiB = 1 << 30;
constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kDriverBytes = 64 * kMiB;
constexpr int64_t kGraphBytes = 2 * kMiB, kGraphNodeBytes = 8 << 10;
constexpr int64_t kNodesALayer = 16, kNodesBesideLayers = 8;  // about a half more than steps have
constexpr int64_t kMatricesALayer = 7;  // and their scales, most of which share a piece with others

// What pieces of 2 MiB are larger than the matrices in them: half a piece each, embedding and head among them.
int64_t rounding(const DeviceMemoryNeeds& needs) { return (needs.num_layers * kMatricesALayer + 2) * kMiB; }

int64_t least_pages(const DeviceMemoryNeeds& needs) {
  return needs.num_pages > 0 ? needs.num_pages : needs.least_pages;
}

}  // namespace

void DeviceMemoryPlan::close(int64_t free_bytes) {
  free = free_bytes;
  other = total - free - weights - kv_pages - workspace - graphs;
}

int64_t DeviceMemoryNeeds::reserve() const {
  const int64_t nodes = num_layers * kNodesALayer + kNodesBesideLayers;
  return kDriverBytes + num_graphs * (kGraphBytes + nodes * kGraphNodeBytes);
}

Status check_device_memory(const DeviceMemoryNeeds& needs, int64_t free_bytes) {
  const int64_t pages = least_pages(needs);
  const int64_t behind_weights = needs.workspace - needs.workspace_taken + pages * needs.page_bytes;
  // The staging is gone when the rest is taken: it counts where it is more than that.
  const int64_t kept = rounding(needs) + std::max(needs.reserve(), needs.staging - behind_weights);
  const int64_t allowed = needs.budget() - needs.workspace_taken;
  const int64_t usable = std::max<int64_t>(0, std::min(allowed, free_bytes - kept));
  if (needs.weights + behind_weights <= usable) return {};
  const std::string bound =
      allowed < free_bytes - kept
          ? fmt::format("--mem-fraction-static {:.2f} allows {:.2f}", needs.fraction, usable / kGiB)
          : fmt::format("{:.2f} can be used and the rest is kept for graphs and the driver", usable / kGiB);
  return make_error(ErrorKind::kResourceExhausted,
                    "{} has {:.2f} of {:.2f} GiB free, of which {}; the weights take about {:.2f} GiB, workspace "
                    "{:.2f}, {} KV pages {:.3f}. Fewer --max-num-batched-tokens, --max-num-seqs or --max-total-tokens, "
                    "or another --dtype, take less",
                    needs.device, free_bytes / kGiB, needs.total / kGiB, bound, needs.weights / kGiB,
                    (needs.workspace - needs.workspace_taken) / kGiB, pages, pages * needs.page_bytes / kGiB);
}

Result<int64_t> plan_kv_pages(const DeviceMemoryNeeds& needs, int64_t free_bytes) {
  const int64_t allowed = needs.budget() - needs.weights - needs.workspace;
  const int64_t bytes = std::max<int64_t>(0, std::min(allowed, free_bytes - needs.reserve()));
  const int64_t fitting = bytes / needs.page_bytes;
  const int64_t wanted = needs.num_pages > 0 ? needs.num_pages : 1;
  if (fitting >= wanted) return needs.num_pages > 0 ? needs.num_pages : std::min(fitting, needs.most_pages);
  return make_error(
      ErrorKind::kResourceExhausted,
      "{}: {} KV pages of {} bytes do not fit beside weights of {:.2f} GiB and workspace of {:.2f}: {} "
      "bytes are free, {} of them kept for graphs and the driver, and --mem-fraction-static {:.2f} leaves "
      "{}",
      needs.device, wanted, needs.page_bytes, needs.weights / kGiB, needs.workspace / kGiB, free_bytes, needs.reserve(),
      needs.fraction, std::max<int64_t>(0, allowed));
}

}  // namespace vayu::model
