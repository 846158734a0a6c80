// Runs a model, and perhaps a reference beside it, over texts in sliding windows and adds up what the logits say.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/eval/eval_text.h"
#include "apps/eval/expert_load.h"
#include "apps/eval/metrics.h"
#include "apps/eval/windows.h"
#include "base/result.h"
#include "model/model.h"
#include "ops/cpu/thread_pool.h"

namespace vayu::eval {

struct WindowOptions {
  int32_t window = 512;             // tokens
  int32_t stride = 256;             // tokens
  int32_t max_step_tokens = 2'048;  // of all windows that run together
};

// Limits of a model that runs such windows; the rest of `load` is left alone. vocab_size: of the model.
void plan_model(const WindowOptions& options, int32_t vocab_size, model::ModelLoadOptions& load);

// Sums over the scored tokens of one text, or of several.
struct TextScore {
  std::string path;
  int64_t tokens = 0;
  int64_t bytes = 0;
  double nll = 0;  // nats
  double elapsed_s = 0;
  // With a reference:
  double reference_nll = 0;
  int64_t agreed = 0;      // tokens whose most likely token is the same
  std::vector<double> kl;  // (tokens) KL(reference || evaluated), nats

  void add(const TextScore& other);  // all but the path
  double perplexity() const;
  double reference_perplexity() const;
  double bits_per_byte() const;  // 0 when no byte was scored
  double tokens_per_s() const;
  double agreement() const;
  double mean_kl() const;
  double p99_kl() const;
};

// One thread at a time. Models and pool must outlive this.
class Evaluator {
 public:
  // Both models must have been loaded with plan_model(options) and have one vocab_size; reference may be null.
  static Result<std::unique_ptr<Evaluator>> create(const WindowOptions& options, model::LogitModel& evaluated,
                                                   model::LogitModel* reference, ThreadPool& pool);

  // progress(tokens) is told how many tokens the last step scored. kInternal, naming file, window and token, when a
  // logit is not finite.
  Result<TextScore> score(const EvalText& text, const std::function<void(int64_t)>& progress);

  // Of the evaluated model, each scored text's tokens (but its last) counted once.
  std::vector<LayerLoad> expert_load() const { return load_.layers(); }

 private:
  // What a logit row is to predict.
  struct Target {
    TokenId id = 0;
    int64_t position = 0;  // in the text
    int64_t window = 0;
  };
  struct Row {
    RowScore evaluated, reference;
    double kl = 0;
  };

  Evaluator(const WindowOptions& options, model::LogitModel& evaluated, model::LogitModel* reference, ThreadPool& pool);
  void build_batch(const EvalText& text, const std::vector<Window>& windows, const std::vector<StepRow>& step);
  void append_row(const EvalText& text, const Window& window, const StepRow& row);
  Status run_batch();
  void score_rows(int64_t begin, int64_t end);
  Status add_rows(const std::vector<Window>& windows, TextScore& score) const;

  const WindowOptions options_;
  model::LogitModel& evaluated_;
  model::LogitModel* reference_;
  ThreadPool& pool_;
  ExpertLoad load_;
  model::RouterObserver observer_;
  Batch batch_;
  std::vector<Target> targets_;              // one a logit row of batch_
  std::vector<Row> rows_;                    // one a logit row of batch_
  model::AnonymousMemory logits_;            // (max_logits, vocab_size) floats
  model::AnonymousMemory reference_logits_;  // (max_logits, vocab_size) floats; empty without a reference
};

}  // namespace vayu::eval
