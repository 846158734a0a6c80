#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "model/device_buffers.h"
#include "model/device_limits.h"
#include "model/device_model.h"
#include "model/device_step.h"
#include "model/device_weights.h"

namespace vayu::model {
namespace {

// Batch sizes that decode steps are captured for; a smaller batch is padded. Contexts decide how many blocks share a
// row's keys.
constexpr int32_t kGraphRows[] = {1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128};
constexpr int32_t kGraphContexts[] = {8192, 32768, 1 << 30};

struct Graph {
  int32_t rows = 0;
  int32_t max_context = 0;
  cudaGraphExec_t executable = nullptr;
};

// By context, then by rows; not captured yet.
std::vector<Graph> graph_sizes(const DeviceModelOptions& options) {
  std::vector<Graph> sizes;
  for (const int32_t limit : kGraphContexts) {
    const int32_t context = std::min(limit, options.max_context);
    if (!sizes.empty() && sizes.back().max_context == context) break;
    for (const int32_t rows : kGraphRows) {
      if (rows > options.max_rows || rows > options.max_logits) break;
      sizes.push_back({rows, context});
    }
  }
  return sizes;
}

class DeviceModelImpl final : public DeviceModel {
 public:
  DeviceModelImpl(Recipe recipe, DeviceModelOptions options)
      : recipe_(std::move(recipe)), options_(std::move(options)) {}
  ~DeviceModelImpl() override {
    for (const Graph& graph : graphs_) cudaGraphExecDestroy(graph.executable);
    if (side_.stream != nullptr) ops::destroy_stream(side_.stream);
  }

  Status load(const loader::Checkpoint& checkpoint) {
    VAYU_ASSIGN_OR_RETURN(const ops::DeviceInfo device, ops::open_device());
    if (options_.max_context == 0) options_.max_context = config().max_context;
    recipe_.config.mla.expands_prompts =
        config().has_mla() && config().mla.form != MlaForm::kAbsorbed && has_expanded_form(config().mla);
    VAYU_ASSIGN_OR_RETURN(const DeviceFormats formats, DeviceFormats::plan(checkpoint, recipe_, options_));
    VAYU_RETURN_IF_ERROR(check_device_limits(config(), options_, formats.inputs()));
    if (options_.observer == nullptr && config().moe.shared_ffn > 0) {
      VAYU_ASSIGN_OR_RETURN(side_.stream, ops::create_stream());
      VAYU_ASSIGN_OR_RETURN(side_.fork, ops::StreamEvent::create());
      VAYU_ASSIGN_OR_RETURN(side_.join, ops::StreamEvent::create());
    }
    const DeviceBufferPlan plan = plan_device_buffers(config(), options_, formats.inputs());
    DeviceMemoryNeeds needs = memory_needs(device, formats.weight_bytes(), plan.bytes);
    VAYU_RETURN_IF_ERROR(check_device_memory(needs, device.free_bytes));
    VAYU_ASSIGN_OR_RETURN(weights_,
                          load_device_weights(checkpoint, recipe_, formats, options_.pool, options_.progress));
    needs.weights = weights_.bytes;
    VAYU_ASSIGN_OR_RETURN(buffers_, DeviceBuffers::create(plan, config(), options_, formats.inputs()));
    VAYU_RETURN_IF_ERROR(take_pages(needs));
    memory_ = {.weights = needs.weights, .kv_pages = kv_.bytes(), .workspace = needs.workspace, .total = needs.total};
    VAYU_ASSIGN_OR_RETURN(const int64_t free, ops::free_device_bytes());
    memory_.close(free);
    return {};
  }

  const ModelConfig& config() const override { return recipe_.config; }
  const DeviceModelOptions& options() const override { return options_; }
  const DeviceMemoryPlan& memory() const override { return memory_; }
  const float* logits() const override { return buffers_.act.logits; }

  Status launch(const Batch& batch, ops::CudaStream stream, int32_t first_prev) override {
    VAYU_CHECK(batch.prev_samples.empty() || options_.prev_tokens, "tokens of a step before that nobody keeps");
    const StepShape& shape = shape_ = buffers_.fill(batch, config(), options_, graph_rows(batch), first_prev);
    VAYU_RETURN_IF_ERROR(buffers_.upload(stream));
    if (const Graph* graph = find_graph(shape)) {
      if (cudaGraphLaunch(graph->executable, stream) == cudaSuccess) return {};
      return ops::last_launch("decode graph");
    }
    launch_device_step(context(), shape, stream);
    return ops::last_launch("step");
  }

  Status launch_layers(int32_t first, int32_t count, ops::CudaStream stream) override {
    VAYU_CHECK(first >= 0 && first + count <= config().num_layers, "layers {} to {}", first, first + count);
    launch_device_layers(context(), shape_, first, count, stream);
    return ops::last_launch("layers");
  }

  Result<int32_t> experts_touched(ops::CudaStream stream) const override {
    if (!config().has_moe()) return 0;
    std::vector<int32_t> indptr(config().moe.router.num_experts + 1);
    VAYU_RETURN_IF_ERROR(ops::copy_to_host(indptr.data(), buffers_.act.expert_indptr,
                                           static_cast<int64_t>(indptr.size() * sizeof(int32_t)), stream));
    VAYU_RETURN_IF_ERROR(ops::synchronize(stream));
    int32_t touched = 0;
    for (size_t e = 0; e + 1 < indptr.size(); ++e) touched += indptr[e + 1] > indptr[e];
    return touched;
  }

  Status capture_graphs(ops::CudaStream stream) override {
    VAYU_ASSIGN_OR_RETURN(const int64_t before, ops::free_device_bytes());
    for (const Graph& size : graph_sizes(options_)) {
      VAYU_RETURN_IF_ERROR(capture(size.rows, size.max_context, stream));
    }
    VAYU_RETURN_IF_ERROR(ops::synchronize(stream));
    VAYU_ASSIGN_OR_RETURN(const int64_t after, ops::free_device_bytes());
    memory_.graphs = std::max<int64_t>(0, before - after);
    memory_.close(after);
    return {};
  }

 private:
  DeviceMemoryNeeds memory_needs(const ops::DeviceInfo& device, int64_t weights, int64_t buffers) const {
    const int64_t row_pages = options_.max_context / kDevicePageSize + 1;
    // More than every row's whole context is of use to the prefix cache alone; half as much again is plenty.
    const int64_t most_pages = options_.max_rows * row_pages * 3 / 2;
    return {.device = device.name,
            .total = device.total_bytes,
            .fraction = options_.memory_fraction,
            .weights = weights,
            .workspace = options_.workspace_taken + buffers,
            .workspace_taken = options_.workspace_taken,
            .staging = loading_threads(options_.pool) * ops::WeightStaging::kPlaceBytes,
            .num_layers = config().num_layers,
            .num_graphs = options_.graphs ? static_cast<int32_t>(graph_sizes(options_).size()) : 0,
            .page_bytes = device_kv_bytes_per_page(config(), options_.kv_format),
            .num_pages = options_.num_pages,
            .least_pages = std::min<int64_t>(row_pages, 128),
            .most_pages = std::min<int64_t>(most_pages, INT32_MAX / kDevicePageSize)};
  }

  Status take_pages(const DeviceMemoryNeeds& needs) {
    VAYU_ASSIGN_OR_RETURN(const int64_t free, ops::free_device_bytes());
    VAYU_ASSIGN_OR_RETURN(const int64_t pages, plan_kv_pages(needs, free));
    options_.num_pages = static_cast<int32_t>(pages);
    VAYU_ASSIGN_OR_RETURN(kv_, ops::DeviceMemory::create(pages * needs.page_bytes));
    return {};
  }

  DeviceStepContext context() const {
    return {config(), options_, weights_, buffers_.act, buffers_.inputs(), kv_.data(), side_};
  }

  // The captured size a batch of one-token rows is padded to; 0: none.
  int32_t graph_rows(const Batch& batch) const {
    if (graphs_.empty() || batch.num_rows() != batch.num_tokens()) return 0;
    int32_t best = 0;
    for (const Graph& graph : graphs_) {
      if (graph.rows >= batch.num_rows() && (best == 0 || graph.rows < best)) best = graph.rows;
    }
    return best;
  }

  const Graph* find_graph(const StepShape& shape) const {
    if (!shape.decode_only) return nullptr;
    for (const Graph& graph : graphs_) {
      if (graph.rows == shape.num_rows && graph.max_context >= shape.max_context) return &graph;
    }
    return nullptr;
  }

  Status capture(int32_t rows, int32_t max_context, ops::CudaStream stream) {
    const StepShape shape{.num_tokens = rows,
                          .num_rows = rows,
                          .num_logits = rows,
                          .num_decode_rows = rows,
                          .max_context = max_context,
                          .decode_only = true};
    buffers_.clear_inputs();
    VAYU_RETURN_IF_ERROR(buffers_.upload(stream));
    launch_device_step(context(), shape, stream);  // once outside: capturing loads no kernel that is not there
    VAYU_RETURN_IF_ERROR(ops::last_launch("first decode step"));
    VAYU_RETURN_IF_ERROR(ops::synchronize(stream));
    Graph graph{rows, max_context, nullptr};
    cudaGraph_t captured = nullptr;
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    launch_device_step(context(), shape, stream);
    cudaStreamEndCapture(stream, &captured);
    cudaError_t made =
        captured ? cudaGraphInstantiate(&graph.executable, captured, 0) : cudaErrorStreamCaptureInvalidated;
    if (captured) cudaGraphDestroy(captured);
    // Else the first launch would take the graph's memory on the device.
    if (made == cudaSuccess) made = cudaGraphUpload(graph.executable, stream);
    if (made != cudaSuccess) {
      return make_error(ErrorKind::kUnavailable, "CUDA: a decode step of {} rows cannot be captured: {}", rows,
                        cudaGetErrorString(made));
    }
    graphs_.push_back(graph);
    return ops::last_launch("graph capture");
  }

  Recipe recipe_;
  DeviceModelOptions options_;
  DeviceWeights weights_;
  DeviceBuffers buffers_;
  ops::DeviceMemory kv_;  // (num_layers, num_pages, page_bytes)
  SideStream side_;
  DeviceMemoryPlan memory_;
  StepShape shape_;            // of the last launch
  std::vector<Graph> graphs_;  // by context, then by rows
};

}  // namespace

Result<std::unique_ptr<DeviceModel>> DeviceModel::load(Recipe recipe, const loader::Checkpoint& checkpoint,
                                                       DeviceModelOptions options) {
  auto model = std::make_unique<DeviceModelImpl>(std::move(recipe), std::move(options));
  VAYU_RETURN_IF_ERROR(model->load(checkpoint));
  return std::unique_ptr<DeviceModel>(std::move(model));
}

}  // namespace vayu::model
