#include "engine/cuda_executor.h"
#include "model/device_model.h"
#include "ops/cpu/thread_pool.h"
#include "ops/cuda/device.h"

namespace vayu {
namespace {

class CudaLogits final : public model::LogitModel {
 public:
  CudaLogits(std::unique_ptr<model::DeviceModel> model, ops::CudaStream stream)
      : model_(std::move(model)), stream_(stream) {}
  ~CudaLogits() override { ops::destroy_stream(stream_); }

  const model::ModelConfig& config() const override { return model_->config(); }
  model::LogitLimits logit_limits() const override {
    return {model_->options().max_logits, model_->options().max_rows, model::kDevicePageSize};
  }

  Status compute_logits(const Batch& batch, float* logits, const model::RouterObserver*) override {
    VAYU_RETURN_IF_ERROR(model_->launch(batch, stream_));
    const int64_t bytes = batch.num_logits() * int64_t{config().vocab_size} * int64_t{sizeof(float)};
    VAYU_RETURN_IF_ERROR(ops::copy_to_host(logits, model_->logits(), bytes, stream_));
    return ops::synchronize(stream_);
  }

 private:
  std::unique_ptr<model::DeviceModel> model_;
  ops::CudaStream stream_;
};

}  // namespace

Result<std::unique_ptr<model::LogitModel>> load_cuda_logits(model::Recipe recipe, const loader::Checkpoint& checkpoint,
                                                            const CudaExecutorOptions& options) {
  ThreadPool pool(options.num_threads);
  model::DeviceModelOptions planned = options.model;
  planned.pool = &pool;
  planned.graphs = false;
  VAYU_ASSIGN_OR_RETURN(auto model, model::DeviceModel::load(std::move(recipe), checkpoint, std::move(planned)));
  VAYU_ASSIGN_OR_RETURN(ops::CudaStream stream, ops::create_stream());
  return std::unique_ptr<model::LogitModel>(std::make_unique<CudaLogits>(std::move(model), stream));
}

}  // namespace vayu
