// DeviceModel's parts in the open: its weights, buffers, launches and graphs, with activations, inputs and KV pages
// that a test may fill beforehand and look at afterwards.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "model/device_buffers.h"
#include "model/device_step.h"
#include "model/device_weights.h"
#include "ops/attention/device_decode.h"
#include "ops/attention/device_mla.h"
#include "ops/cuda/device.h"

namespace vayu::model::testing {

inline void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message); }

class OpenDeviceModel {
 public:
  // options.num_pages and max_context are given.
  OpenDeviceModel(Recipe recipe, const loader::Checkpoint& checkpoint, DeviceModelOptions options)
      : recipe_(std::move(recipe)), options_(std::move(options)) {
    stream_ = ops::create_stream().value();
    const DeviceFormats formats = DeviceFormats::plan(checkpoint, recipe_, options_).value();
    const DeviceBufferPlan plan = plan_device_buffers(config(), options_, formats.inputs());
    weights_ = std::move(load_device_weights(checkpoint, recipe_, formats, nullptr, {}).value());
    buffers_ = std::move(DeviceBuffers::create(plan, config(), options_, formats.inputs()).value());
    const int64_t bytes = options_.num_pages * device_kv_bytes_per_page(config(), options_.kv_format);
    kv_ = std::move(ops::DeviceMemory::create(bytes).value());
  }
  ~OpenDeviceModel() {
    for (const auto& [rows, graph] : graphs_) cudaGraphExecDestroy(graph);
    ops::destroy_stream(stream_);
  }
  OpenDeviceModel(const OpenDeviceModel&) = delete;
  OpenDeviceModel& operator=(const OpenDeviceModel&) = delete;

  const ModelConfig& config() const { return recipe_.config; }
  const DeviceActivations& act() const { return buffers_.act; }

  // Kernel by kernel.
  void step(const Batch& batch) {
    fill(batch, 0);
    launch_device_step(context(), shape_, stream_);
    expect_ok(ops::last_launch("step"));
    expect_ok(ops::synchronize(stream_));
  }

  // Once for each number of rows, in a step of padding alone.
  void capture(int32_t rows) {
    if (graphs_.contains(rows)) return;
    const StepShape shape{.num_tokens = rows,
                          .num_rows = rows,
                          .num_logits = rows,
                          .num_decode_rows = rows,
                          .max_context = options_.max_context,
                          .decode_only = true};
    buffers_.clear_inputs();
    expect_ok(buffers_.upload(stream_));
    launch_device_step(context(), shape, stream_);  // loads every kernel
    expect_ok(ops::synchronize(stream_));
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    launch_device_step(context(), shape, stream_);
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    graphs_[rows] = executable;
  }

  // From a captured graph of `rows` one-token rows. What the contract of padding leaves open (DeviceBatch) is wild: ids
  // and positions of its tokens, and the page table behind the batch's pages.
  void replay(const Batch& batch, int32_t rows) {
    fill(batch, rows);
    const DeviceInputs in = buffers_.inputs();
    const int32_t first = batch.num_tokens(), spare = rows - first;
    constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
    const int32_t ids[] = {kMost, config().vocab_size, -1, -kMost},
                  places[] = {kMost, -1, -kMost, options_.max_context};
    std::vector<int32_t> wild_ids, wild_positions;
    for (int32_t i = 0; i < spare; ++i) {
      wild_ids.push_back(ids[i % 4]);
      wild_positions.push_back(places[i % 4]);
    }
    set(in.token_ids + first, wild_ids);
    set(in.batch.positions + first, wild_positions);
    const int64_t row_pages = (options_.max_context + kDevicePageSize - 1) / kDevicePageSize;
    const int64_t used = static_cast<int64_t>(batch.page_table.size());
    set(in.batch.page_table + used, std::vector<int32_t>(options_.max_rows * row_pages - used, 1 << 30));
    EXPECT_EQ(cudaGraphLaunch(graphs_.at(rows), stream_), cudaSuccess);
    expect_ok(ops::synchronize(stream_));
  }

  // All that steps write, but for the counters that kernels share: NaN as a float of any format, -1 as an integer.
  void poison_activations() {
    const DeviceActivations& a = buffers_.act;
    const ModelConfig& c = config();
    const int64_t tokens = options_.max_step_tokens, pairs = tokens * c.moe.router.top_k, bf16 = sizeof(ops::Bf16);
    poison(a.residual, tokens * c.hidden * bf16);
    poison(a.delta, tokens * c.hidden * bf16);
    poison(a.x, tokens);
    poison(a.qkv, tokens * c.qkv_width() * bf16);
    poison(a.q_latent, tokens * c.num_q_heads * c.head_dim * bf16);
    poison(a.latent_out, tokens * c.num_q_heads * c.mla.latent_dim * bf16);
    poison(a.attention, tokens);
    poison(a.gate_up, 2 * kStreamRows * std::max(a.mlp.f8.cols, a.mlp.bf16.cols) * bf16);
    poison(a.mlp, tokens);
    poison(a.expert_ids, pairs * 4);
    poison(a.expert_weights, pairs * 4);
    poison(a.expert_indptr, (c.moe.router.num_experts + 1) * 4);
    poison(a.sorted_tokens, pairs * 4);
    poison(a.pair_position, pairs * 4);
    poison(a.expert_mlp, pairs + tokens);
    poison(a.expert_out, (pairs + tokens) * c.hidden * bf16);
    poison(a.head_input, options_.max_logits);
    poison(a.logits, options_.max_logits * int64_t{c.vocab_size} * 4);
    const ops::DeviceKvLayer kv = device_kv_shape(c, options_.kv_format);
    poison(a.attention_scratch, c.has_mla() ? ops::mla_attention_scratch_bytes(c.num_q_heads, kv)
                                            : ops::decode_attention_scratch_bytes(kv, options_.max_rows));
  }

  // (num_layers, num_pages, page_bytes)
  std::vector<std::byte> pages() const { return get(kv_.data(), kv_.bytes()); }
  void set_pages(const std::vector<std::byte>& pages) { set(kv_.data(), pages); }

  template <class T>
  std::vector<T> get(const T* device, int64_t count) const {
    std::vector<T> values(count);
    expect_ok(ops::copy_to_host(values.data(), device, count * static_cast<int64_t>(sizeof(T)), stream_));
    expect_ok(ops::synchronize(stream_));
    return values;
  }

 private:
  DeviceStepContext context() const {
    return {config(), options_, weights_, buffers_.act, buffers_.inputs(), kv_.data(), side_};
  }

  void fill(const Batch& batch, int32_t rows) {
    shape_ = buffers_.fill(batch, config(), options_, rows, 0);
    expect_ok(buffers_.upload(stream_));
    expect_ok(ops::synchronize(stream_));
  }

  void poison(void* memory, int64_t bytes) {
    if (memory != nullptr) expect_ok(ops::fill_device(memory, 0xFF, bytes, stream_));
  }
  void poison(const FormRows& rows, int64_t count) {
    poison(rows.f8.data, count * rows.f8.cols);
    poison(rows.f8.scales, count * (rows.f8.scale_group > 0 ? rows.f8.cols / rows.f8.scale_group : 1) * 4);
    poison(rows.bf16.data, count * rows.bf16.cols * int64_t{sizeof(ops::Bf16)});
  }
  // The device's lists are constant to all but their owner.
  template <class T>
  void set(const T* device, const std::vector<T>& values) {
    if (values.empty()) return;
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    expect_ok(ops::copy_to_device(const_cast<T*>(device), values.data(), bytes, stream_));
    expect_ok(ops::synchronize(stream_));
  }

  Recipe recipe_;
  DeviceModelOptions options_;
  ops::CudaStream stream_ = nullptr;
  DeviceWeights weights_;
  DeviceBuffers buffers_;
  ops::DeviceMemory kv_;
  SideStream side_;  // none
  StepShape shape_;
  std::map<int32_t, cudaGraphExec_t> graphs_;  // by rows
};

}  // namespace vayu::model::testing
