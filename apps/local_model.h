// A model file made ready to answer in this process: tokenizer, chat template and a running engine.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "apps/model_files.h"
#include "base/clock.h"
#include "base/result.h"
#include "core/engine_client.h"
#include "core/step_profiler.h"
#include "scheduler/scheduler.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace CLI {
class App;
}

namespace vayu {

class CudaExecutor;

struct LocalModelOptions {
  ModelFileOptions files;
  std::string served_model_name;        // empty: the file's name without ending
  int threads = 0;                      // 0: the cores this process may use
  std::string device = "auto";          // auto, cpu or cuda
  std::string backend = "cpu";          // of device cpu: cpu or reference
  std::string kv_cache_dtype = "auto";  // auto (cpu f16, cuda bf16); cpu: f16, bf16, f32; cuda: bf16, fp8
  double memory_fraction = 0.9;         // cuda: of the device's memory, for everything together
  bool cuda_graphs = true;
  bool overlap = true;
  int32_t page_size = 16;              // tokens
  int64_t max_model_len = 0;           // tokens; 0: what the model declares
  int64_t max_total_tokens = 0;        // KV pool; 0: from max_num_seqs, context and free memory
  int32_t max_num_seqs = 0;            // 0: 32 on the CPU, 64 with CUDA
  int32_t max_num_batched_tokens = 0;  // 0: 512 on the CPU, 4096 with CUDA
  int32_t chunked_prefill_size = 0;    // 0: max_num_batched_tokens
  int32_t max_queued_requests = 1024;
  std::string scheduler_policy = "mixed";  // prefill-first, fixed-chunk, mixed
  bool prefix_cache = true;
  bool profiling = false;                                     // cuda: steps can be recorded (LocalModel::profiler)
  std::function<void(int64_t done, int64_t total)> progress;  // bytes of weights placed; may be empty
};

// Adds the flags of LocalModelOptions to a subcommand.
void add_model_flags(CLI::App& command, LocalModelOptions& options);

struct LocalModel {
  std::string name;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;  // null when the model brings none
  std::string bos_token, eos_token;                   // texts the template may print; empty when the file names none
  StepProfiler* profiler = nullptr;                   // the engine's; null where steps cannot be recorded
  std::shared_ptr<EngineClient> engine;               // last: destroyed first
};

// MODEL in device memory, without an engine: for `vayu bench steps` and `vayu profile`. Dummy weights route evenly
// (bench/step_batches.h).
struct DeviceSetup {
  model::ModelConfig config;
  bool f8_weights = false;  // of most linears
  std::unique_ptr<CudaExecutor> executor;
};
Result<DeviceSetup> open_device_model(const std::string& path, const LocalModelOptions& options);

// Loads MODEL, runs one token through it, and starts the engine. `clock` must outlive the result.
// Errors name the file and what is wrong with it, or the flag.
Result<LocalModel> open_local_model(const std::string& path, const LocalModelOptions& options, const Clock& clock);

}  // namespace vayu
