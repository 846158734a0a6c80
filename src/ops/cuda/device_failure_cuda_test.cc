// A launch that the driver refuses, whatever a launcher asks it before: the process lives, and last_launch() says why.
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "ops/attention/device_mla_prefill.h"
#include "ops/attention/device_prefill.h"
#include "ops/cuda/cuda_test_util.h"
#include "ops/gemm/device_gather.h"
#include "ops/gemm/device_gemm.h"
#include "ops/gemm/device_head_linear.h"
#include "ops/gemm/stream_linear.h"
#include "ops/moe/device_route.h"
#include "ops/moe/stream_experts.h"

namespace vayu::ops {
namespace {

// Memory that nothing gets to read.
template <class T = Bf16>
T* nowhere() {
  return reinterpret_cast<T*>(uintptr_t{1} << 20);
}
ActRows rows_of(int64_t cols) {
  ActRows rows;
  rows.data = nowhere();
  rows.cols = cols;
  return rows;
}
DeviceMatrix matrix_of(int64_t rows, int64_t cols) { return {.data = nowhere(), .rows = rows, .cols = cols}; }

void route(int32_t num_experts, int32_t num_tokens) {
  DeviceRouteArgs args;
  args.shape = {.hidden = 256, .num_experts = num_experts, .top_k = 4};
  args.x = nowhere();
  args.weight = args.scratch = nowhere();
  args.num_tokens = num_tokens;
  args.expert_ids = args.expert_indptr = args.sorted_tokens = args.pair_position = nowhere<int32_t>();
  args.expert_weights = nowhere<float>();
  device_route_cuda(nullptr, args);
}

void head_linear() {
  device_head_linear_cuda(nullptr, {.weight = nowhere(),
                                    .x = nowhere(),
                                    .x_stride = 512,
                                    .x_head_stride = 64,
                                    .y = nowhere(),
                                    .y_stride = 512,
                                    .y_head_stride = 64,
                                    .num_heads = 8,
                                    .in = 64,
                                    .out = 64,
                                    .num_tokens = 3});
}

void stream_experts() {
  stream_experts_cuda(nullptr, {.gate_up = matrix_of(8 * 256, 256),
                                .down = matrix_of(8 * 256, 128),
                                .x = rows_of(256),
                                .num_tokens = 4,
                                .num_experts = 8,
                                .top_k = 2,
                                .ffn = 128,
                                .expert_indptr = nowhere<int32_t>(),
                                .sorted_tokens = nowhere<int32_t>(),
                                .h = rows_of(128),
                                .out = nowhere(),
                                .workspace = nowhere()});
}

void prefill() {
  const PrefillPass pass{.num_tiles = 1, .num_items = 1, .num_blocks = 1};
  device_prefill_cuda(nullptr, {.q = nowhere(),
                                .q_stride = 192,
                                .out = nowhere(),
                                .kv = {.pages = nowhere(), .num_kv_heads = 1, .head_dim = 64},
                                .num_q_heads = 1,
                                .passes = &pass,
                                .num_passes = 1,
                                .items = nowhere<PrefillItem>(),
                                .parts = nowhere<float>()});
}

void mla_prefill() {
  device_mla_prefill_cuda(nullptr, {.q = nowhere(),
                                    .q_stride = 192,
                                    .num_tokens = 128,
                                    .kv = nowhere(),
                                    .rope = nowhere(),
                                    .num_context = 128,
                                    .out = nowhere(),
                                    .num_heads = 1,
                                    .items = nowhere<MlaPrefillItem>(),
                                    .num_blocks = 1});
}

struct Call {
  const char* name;
  std::function<void()> launch;
};
// Every launcher that asks the driver for something: clusters, multiprocessors, tensor maps.
const Call kCalls[] = {
    {"route few", [] { route(128, 64); }},
    {"route many", [] { route(128, 200); }},
    {"route many among 256", [] { route(256, 200); }},
    {"gemm",
     [] {
       device_gemm_cuda(nullptr,
                        {.weight = matrix_of(256, 256), .x = rows_of(256), .out = rows_of(256), .num_rows = 200});
     }},
    {"linear",
     [] {
       stream_linear_cuda(
           nullptr,
           {.weight = matrix_of(4096, 256), .x = rows_of(256), .num_rows = 4, .y = nowhere(), .workspace = nowhere()});
     }},
    {"head linear", head_linear},
    {"experts", stream_experts},
    {"prefill", prefill},
    {"latent prefill", mla_prefill},
};

// The name of the first call after which nothing is said; null: there is none.
const char* silent_call() {
  for (const Call& call : kCalls) {
    call.launch();
    const Status said = last_launch(call.name);
    if (said.ok()) return call.name;
    std::fprintf(stderr, "%s\n", said.error().message.c_str());
  }
  return nullptr;
}

TEST(DeviceFailureCuda, WithoutADeviceLaunchesFailAndSaySo) {
  if (open_device().ok()) GTEST_SKIP() << "there is a device";
  const char* silent = silent_call();
  EXPECT_EQ(silent, nullptr) << silent;
}

// In a process of its own, where none of them has asked before.
[[noreturn]] void launch_after_a_fault() {
  if (!open_device().ok()) std::_Exit(2);
  gather_rows_cuda(nullptr, {.table = nowhere(),
                             .ids = reinterpret_cast<const int32_t*>(uintptr_t{16}),  // no address of the device
                             .y = nowhere(),
                             .table_rows = 1,
                             .num_rows = 1,
                             .cols = 8});
  const Status fault = synchronize(nullptr);
  if (fault.ok()) std::_Exit(3);
  std::fprintf(stderr, "%s\n", fault.error().message.c_str());
  const char* silent = silent_call();
  if (silent != nullptr) std::fprintf(stderr, "silent: %s\n", silent);
  std::_Exit(silent == nullptr ? 0 : 4);
}

TEST(DeviceFailureCuda, AfterAFaultLaunchesFailAndSaySo) {
  VAYU_NEEDS_DEVICE();
  if (short_tests()) GTEST_SKIP() << "a sanitizer would report the fault";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(launch_after_a_fault(), ::testing::ExitedWithCode(0), "CUDA: latent prefill: ");
}

}  // namespace
}  // namespace vayu::ops
