// Times the operators of DeviceModel's own step: a watcher of the step empties the cache in front of each and puts
// events around it, so what is timed is what runs, on the data it runs on.
#include <algorithm>
#include <array>
#include <numeric>

#include "apps/bench/step_batches.h"
#include "apps/bench_kernels.h"
#include "apps/model_files.h"
#include "model/device_model.h"
#include "model/step_observer.h"
#include "ops/cpu/thread_pool.h"
#include "ops/cuda/device.h"
#include "ops/cuda/flush.h"
#include "ops/sampling/device_sample_table.h"

namespace vayu::bench {
namespace {

using model::ModelConfig;
using model::StepOperator;

// A dense layer, those that are timed back to back, and a last one, which has no norm of a next layer to do.
constexpr int32_t kChainedLayers = 4;
constexpr int32_t kLayers = kChainedLayers + 2;
constexpr int kSteps = 15;
constexpr int64_t kFlushBytes = int64_t{256} << 20;
constexpr int32_t kPageSize = model::kDevicePageSize;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

class OperatorTimer final : public model::StepObserver {
 public:
  Status open() {
    VAYU_ASSIGN_OR_RETURN(flush_, ops::DeviceMemory::create(kFlushBytes));
    return {};
  }
  void begin(StepOperator op, int32_t, ops::CudaStream stream) override {
    if (!on) return;
    if (used_ == timers_.size()) timers_.emplace_back();
    ops_.push_back(op);
    ops::read_memory_cuda(stream, flush_.data(), flush_.bytes());
    timers_[used_].begin(stream);
  }
  void end(StepOperator op, int32_t, ops::CudaStream stream) override {
    if (!on) return;
    timers_[used_++].end(stream);
    if (op == StepOperator::kRoutedExperts) count_touched(stream);
  }
  // Once the stream is done.
  void collect() {
    for (size_t i = 0; i < used_; ++i) samples_[static_cast<int>(ops_[i])].push_back(timers_[i].us());
    used_ = 0;
    ops_.clear();
  }
  Status status() const { return status_; }
  double mean_touched() const { return layers_ > 0 ? touched_ / layers_ : 0; }
  double median_us(StepOperator op) const { return median(samples_[static_cast<int>(op)]); }
  bool measured(StepOperator op) const { return !samples_[static_cast<int>(op)].empty(); }
  void clear() {
    for (auto& samples : samples_) samples.clear();
    touched_ = layers_ = 0;
  }

  bool on = false;
  const model::DeviceModel* model = nullptr;  // whose steps these are

 private:
  // Waits for the stream; the operator behind is timed behind the emptying of the cache, which hides that.
  void count_touched(ops::CudaStream stream) {
    const Result<int32_t> touched = model->experts_touched(stream);
    if (!touched.ok()) {
      status_ = touched.error();
      return;
    }
    touched_ += *touched;
    ++layers_;
  }

  ops::DeviceMemory flush_;
  std::vector<ops::StreamTimer> timers_;
  std::vector<StepOperator> ops_;
  size_t used_ = 0;
  std::array<std::vector<double>, model::kNumStepOperators> samples_;
  double touched_ = 0;  // experts, over all layers and steps that were timed
  double layers_ = 0;
  Status status_;
};

struct StepSizes {
  double tokens, logits;
  double keys;       // that the attention's queries see, summed over tokens
  double keys_read;  // that are fetched
  double touched;    // experts
};

// Queries and keys, weights and values. With latents, absorbed: both over latents, and between them and the heads a
// BF16 matrix a head on either side. Expanded: both over heads, behind a product over the cached tokens. The form is
// chosen by device_mla_prefill.h; that of the fewer FLOP is meant here.
OperatorCost attention_cost(const ModelConfig& c, const StepSizes& s, double bytes) {
  if (!c.has_mla()) return {bytes, 4 * static_cast<double>(c.attention_width()) * s.keys};
  const double heads = c.num_q_heads, latent = c.mla.latent_dim, key = c.head_dim;
  const double matrices = heads * (c.mla.nope_dim + c.mla.v_dim) * latent;
  const OperatorCost absorbed = {bytes + 2 * matrices + 4 * s.tokens * heads * (key + latent),
                                 2 * heads * (key + latent) * s.keys + 2 * s.tokens * matrices};
  const double query = c.mla.nope_dim + c.mla.rope_dim, value = c.mla.v_dim;
  const OperatorCost expanded = {bytes + 2 * matrices + 4 * s.keys_read * heads * (query + value),
                                 2 * heads * (query + value) * s.keys + 2 * s.keys_read * matrices};
  return c.mla.expands_prompts && expanded.flops < absorbed.flops ? expanded : absorbed;
}

OperatorCost cost_of(StepOperator op, const ModelConfig& c, const KernelBenchOptions& o, const StepSizes& s) {
  const double w = o.f8 ? 1 : 2, a = w, kv = o.kv_f8 ? 1 : 2, t = s.tokens, h = c.hidden;
  const double k = c.moe.router.top_k, f = c.moe.expert_ffn, shared = c.moe.shared_ffn;
  const double linear_peak = o.f8 ? kF8Tflops : kBf16Tflops;
  const double qkv = static_cast<double>(c.qkv_width()), q = static_cast<double>(c.attention_width());
  const double kv_row = (c.has_mla() ? 1.0 : 2.0) * static_cast<double>(c.kv_width()) * kv;
  const auto linear = [&](double in, double out, double matrices_read, double rows) {
    return OperatorCost{matrices_read * in * out * w + rows * (in * a + out * 2), 2 * rows * in * out, linear_peak};
  };
  const auto mlp = [&](double ffn, double matrices_read, double rows) {
    return OperatorCost{matrices_read * 3 * h * ffn * w + rows * (h * a + 2 * ffn * a + h * 2), 6 * rows * h * ffn,
                        linear_peak};
  };
  switch (op) {
    case StepOperator::kEmbedding:
      return {4 * t * h, 0};
    case StepOperator::kInputNorm:
      return {t * h * (2 + a), 0};
    case StepOperator::kQkv:
      return linear(h, qkv, 1, t);
    case StepOperator::kQkNormRope:
      return {t * (2 * qkv + 2 * q + kv_row), 0};
    case StepOperator::kAttention:
      return attention_cost(c, s, t * q * (2 + a) + s.keys_read * kv_row);
    case StepOperator::kOutputProjection:
      return linear(q, h, 1, t);
    case StepOperator::kMlpNorm:
      return {t * h * (6 + a + (o.f8 ? 2 : 0)), 0};
    case StepOperator::kDenseMlp:
      return mlp(c.ffn, 1, t);
    case StepOperator::kRouter:
      return {t * h * 2 + 4 * h * c.moe.router.num_experts, 2 * t * h * c.moe.router.num_experts};
    case StepOperator::kRoutedExperts:
      return mlp(f, s.touched, t * k);
    case StepOperator::kSharedExpert:
      return mlp(shared, 1, t);
    case StepOperator::kCombine:
      return {t * h * (2 * (k + 1) + 4 + a), 0};
    case StepOperator::kHead:
      return {h * c.vocab_size * w + s.logits * (h * (4 + a) + c.vocab_size * 4.0), 2 * s.logits * h * c.vocab_size,
              linear_peak};
  }
  return {};
}

OperatorCost operator+(const OperatorCost& a, const OperatorCost& b) {
  return {a.bytes + b.bytes, a.flops + b.flops, std::max(a.peak_tflops, b.peak_tflops)};
}

class KernelBench {
 public:
  explicit KernelBench(const KernelBenchOptions& options) : o_(options) {}
  ~KernelBench() {
    if (stream_) ops::destroy_stream(stream_);
  }

  Result<KernelBenchResult> run() {
    VAYU_ASSIGN_OR_RETURN(const ops::DeviceInfo device, ops::open_device());
    KernelBenchResult result{.device = device.name};
    VAYU_ASSIGN_OR_RETURN(result.memory, ops::measure_memory_speed());
    VAYU_RETURN_IF_ERROR(load());
    for (const int32_t tokens : o_.prompts) {
      StepBatch batch = new_batch();
      batch.add(0, 0, tokens);
      VAYU_ASSIGN_OR_RETURN(ShapeResult shape, measure(batch, 0));
      shape.name = fmt::format("prefill_{}", tokens);
      result.shapes.push_back(std::move(shape));
    }
    if (!o_.decode_rows.empty()) VAYU_RETURN_IF_ERROR(fill_contexts());
    for (const int32_t rows : o_.decode_rows) {
      StepBatch batch = new_batch();
      for (int32_t row = 0; row < rows; ++row) batch.add(row, o_.context - 1, 1);
      VAYU_ASSIGN_OR_RETURN(ShapeResult shape, measure(batch, o_.context));
      shape.name = fmt::format("decode_{}", rows);
      result.shapes.push_back(std::move(shape));
    }
    return result;
  }

 private:
  int32_t most_rows() const {
    return o_.decode_rows.empty() ? 1 : *std::max_element(o_.decode_rows.begin(), o_.decode_rows.end());
  }
  int32_t longest() const {
    const int32_t prompt = o_.prompts.empty() ? 1 : *std::max_element(o_.prompts.begin(), o_.prompts.end());
    return std::max(prompt, o_.decode_rows.empty() ? 1 : o_.context);
  }
  int32_t pages_each() const { return (longest() + kPageSize - 1) / kPageSize; }
  StepBatch new_batch() const { return StepBatch(model_->config().vocab_size, kPageSize, pages_each()); }

  Status load() {
    VAYU_RETURN_IF_ERROR(timer_.open());
    VAYU_ASSIGN_OR_RETURN(stream_, ops::create_stream());
    const ModelFileOptions files{.load_format = "dummy",
                                 .dummy_seed = o_.seed,
                                 .hf_overrides = fmt::format("{{\"num_hidden_layers\": {}}}", kLayers)};
    VAYU_ASSIGN_OR_RETURN(ModelFiles opened, open_model_files(o_.model, files));
    const auto weights = even_routing(std::move(opened.weights));
    ThreadPool pool(0);
    VAYU_ASSIGN_OR_RETURN(model_, model::DeviceModel::load(std::move(opened.recipe), *weights,
                                                           {.f8_weights = o_.f8,
                                                            .kv_format = o_.kv_f8 ? ops::DeviceKvFormat::kF8E4M3
                                                                                  : ops::DeviceKvFormat::kBF16,
                                                            .num_pages = most_rows() * pages_each(),
                                                            .max_step_tokens = std::max({longest(), most_rows(), 256}),
                                                            .max_rows = most_rows(),
                                                            .max_logits = most_rows(),
                                                            .max_context = longest() + kPageSize,
                                                            .pool = &pool,
                                                            .observer = &timer_}));
    timer_.model = model_.get();
    VAYU_ASSIGN_OR_RETURN(samples_, ops::DeviceSampleTable::create({.max_samples = most_rows(),
                                                                    .max_edited_rows = 1,
                                                                    .vocab_size = model_->config().vocab_size,
                                                                    .max_list_words = 1024}));
    VAYU_ASSIGN_OR_RETURN(next_tokens_, ops::DeviceMemory::create(most_rows() * int64_t{sizeof(int32_t)}));
    return {};
  }

  // K and V of every decode row, made by the model from random prompts.
  Status fill_contexts() {
    for (int32_t row = 0; row < most_rows(); ++row) {
      StepBatch batch = new_batch();
      batch.add(row, 0, o_.context);
      VAYU_RETURN_IF_ERROR(model_->launch(batch.batch(), stream_));
      VAYU_RETURN_IF_ERROR(ops::synchronize(stream_));
    }
    return {};
  }

  Result<ShapeResult> measure(StepBatch& batch, int32_t context) {
    VAYU_RETURN_IF_ERROR(time_operators(batch));
    ShapeResult shape{.tokens = batch.batch().num_tokens(), .context = context};
    shape.experts_touched = timer_.mean_touched();
    collect(batch.batch(), shape);
    VAYU_RETURN_IF_ERROR(add_sampling(batch.batch(), shape));
    Status failed;
    VAYU_ASSIGN_OR_RETURN(shape.layer_us, ops::chained_us(
                                              [&](ops::CudaStream stream, int i) {
                                                Status status = model_->launch_layers(1 + i, 1, stream);
                                                if (!status.ok()) failed = std::move(status);
                                              },
                                              kChainedLayers));
    VAYU_RETURN_IF_ERROR(std::move(failed));
    return shape;
  }

  Status time_operators(StepBatch& batch) {
    timer_.clear();
    for (int step = -3; step < kSteps; ++step) {
      batch.draw_tokens();
      timer_.on = step >= 0;
      const Status launched = model_->launch(batch.batch(), stream_);
      timer_.on = false;
      VAYU_RETURN_IF_ERROR(launched);
      VAYU_RETURN_IF_ERROR(ops::synchronize(stream_));
      VAYU_RETURN_IF_ERROR(timer_.status());
      timer_.collect();
    }
    return {};
  }

  void collect(const Batch& batch, ShapeResult& shape) const {
    StepSizes sizes{.tokens = static_cast<double>(batch.num_tokens()),
                    .logits = static_cast<double>(batch.num_logits()),
                    .touched = shape.experts_touched};
    for (int32_t r = 0; r < batch.num_rows(); ++r) {
      const double count = batch.qo_indptr[r + 1] - batch.qo_indptr[r], length = batch.kv_lens[r];
      sizes.keys += count * length - count * (count - 1) / 2;
      sizes.keys_read += length;
    }
    const auto cost = [&](StepOperator op) { return cost_of(op, model_->config(), o_, sizes); };
    const auto add = [&](StepOperator op, bool in_layer) {
      if (!timer_.measured(op)) return;
      OperatorCost total = cost(op);
      const bool with_shared = op == StepOperator::kRoutedExperts && !timer_.measured(StepOperator::kSharedExpert);
      if (with_shared && model_->config().moe.shared_ffn > 0) total = total + cost(StepOperator::kSharedExpert);
      shape.operators.push_back({model::step_operator_name(op), timer_.median_us(op), total, in_layer});
    };
    const double norm_us = timer_.median_us(StepOperator::kInputNorm);
    shape.operators.push_back({"norm_qkv", norm_us + timer_.median_us(StepOperator::kQkv),
                               cost(StepOperator::kInputNorm) + cost(StepOperator::kQkv), true});
    for (const StepOperator op :
         {StepOperator::kQkNormRope, StepOperator::kAttention, StepOperator::kOutputProjection, StepOperator::kMlpNorm,
          StepOperator::kRouter, StepOperator::kRoutedExperts, StepOperator::kSharedExpert, StepOperator::kCombine}) {
      add(op, true);
    }
    for (const OperatorTime& op : shape.operators) shape.sum_us += op.us;
    shape.sum_us -= norm_us;  // a layer has one: at the end of the layer before
    for (const StepOperator op : {StepOperator::kInputNorm, StepOperator::kQkv, StepOperator::kDenseMlp,
                                  StepOperator::kEmbedding, StepOperator::kHead}) {
      add(op, false);
    }
  }

  Status add_sampling(const Batch& batch, ShapeResult& shape) {
    const int32_t rows = batch.num_logits();
    VAYU_RETURN_IF_ERROR(samples_.upload(batch.samples, {}, rows, stream_));
    VAYU_RETURN_IF_ERROR(ops::synchronize(stream_));
    ops::DeviceSampleArgs args = samples_.args(model_->logits(), model_->config().vocab_size, rows,
                                               reinterpret_cast<int32_t*>(next_tokens_.data()));
    args.draw = samples_.draw_needed();
    VAYU_ASSIGN_OR_RETURN(const double us,
                          ops::median_us([&](ops::CudaStream stream) { ops::device_sample_cuda(stream, args); }));
    VAYU_RETURN_IF_ERROR(samples_.download(stream_));
    VAYU_RETURN_IF_ERROR(ops::synchronize(stream_));
    std::vector<SampleResult> results;
    samples_.read_results(results);
    for (const SampleResult& result : results) {
      if (!result.finite) return make_error(ErrorKind::kCorrupt, "the measured step has no finite logits");
    }
    shape.operators.push_back({"sampling", us, {rows * 4.0 * model_->config().vocab_size, 0}, false});
    return {};
  }

  const KernelBenchOptions& o_;
  OperatorTimer timer_;
  ops::CudaStream stream_ = nullptr;
  std::unique_ptr<model::DeviceModel> model_;
  ops::DeviceSampleTable samples_;
  ops::DeviceMemory next_tokens_;
};

}  // namespace

Result<KernelBenchResult> measure_kernels(const KernelBenchOptions& options) { return KernelBench(options).run(); }

}  // namespace vayu::bench
