#include "apps/eval/evaluator.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numbers>

#include "apps/bench/stats.h"

namespace vayu::eval {
namespace {

// A row of logits is a megabyte where the vocabulary is large; steps are cut so that few are held.
constexpr int64_t kLogitsBytes = int64_t{256} << 20;

int32_t pages_per_window(const WindowOptions& options, int32_t page_size) {
  return (options.window - 1 + page_size - 1) / page_size;
}

double per(double sum, int64_t count) { return count > 0 ? sum / static_cast<double>(count) : 0; }

float* floats(model::AnonymousMemory& memory) { return reinterpret_cast<float*>(memory.data()); }

}  // namespace

void plan_model(const WindowOptions& options, int32_t vocab_size, model::ModelLoadOptions& load) {
  load.max_step_tokens = options.max_step_tokens;
  load.max_rows = max_rows_per_step(options.window, options.max_step_tokens);
  load.num_pages = load.max_rows * pages_per_window(options, load.page_size);
  load.max_context = options.window;
  const int64_t affordable = kLogitsBytes / (vocab_size * int64_t{sizeof(float)});
  load.max_logits = static_cast<int32_t>(std::clamp<int64_t>(affordable, 1, options.max_step_tokens));
}

void TextScore::add(const TextScore& other) {
  tokens += other.tokens;
  bytes += other.bytes;
  nll += other.nll;
  elapsed_s += other.elapsed_s;
  reference_nll += other.reference_nll;
  agreed += other.agreed;
  kl.insert(kl.end(), other.kl.begin(), other.kl.end());
}

double TextScore::perplexity() const { return std::exp(per(nll, tokens)); }
double TextScore::reference_perplexity() const { return std::exp(per(reference_nll, tokens)); }
double TextScore::bits_per_byte() const { return per(nll / std::numbers::ln2, bytes); }
double TextScore::tokens_per_s() const { return elapsed_s > 0 ? static_cast<double>(tokens) / elapsed_s : 0; }
double TextScore::agreement() const { return per(static_cast<double>(agreed), tokens); }
double TextScore::mean_kl() const {
  double sum = 0;
  for (const double value : kl) sum += value;
  return per(sum, static_cast<int64_t>(kl.size()));
}
double TextScore::p99_kl() const {
  if (kl.empty()) return 0;
  std::vector<double> sorted = kl;
  std::sort(sorted.begin(), sorted.end());
  return bench::percentile(sorted, 99);
}

Evaluator::Evaluator(const WindowOptions& options, model::LogitModel& evaluated, model::LogitModel* reference,
                     ThreadPool& pool)
    : options_(options),
      evaluated_(evaluated),
      reference_(reference),
      pool_(pool),
      load_(evaluated.config().moe.router.num_experts, evaluated.config().moe.router.top_k),
      // Rows with logits only: a token that is context in a later window has been counted already.
      observer_([this](int32_t layer, const int32_t* expert_ids, int64_t) {
        load_.count(layer, expert_ids, batch_.logit_rows);
      }) {}

Result<std::unique_ptr<Evaluator>> Evaluator::create(const WindowOptions& options, model::LogitModel& evaluated,
                                                     model::LogitModel* reference, ThreadPool& pool) {
  std::unique_ptr<Evaluator> evaluator(new Evaluator(options, evaluated, reference, pool));
  const int64_t max_logits = evaluated.logit_limits().max_logits;
  const int64_t bytes = max_logits * evaluated.config().vocab_size * int64_t{sizeof(float)};
  VAYU_ASSIGN_OR_RETURN(evaluator->logits_, model::AnonymousMemory::create(bytes));
  VAYU_ASSIGN_OR_RETURN(evaluator->reference_logits_, model::AnonymousMemory::create(reference ? bytes : 0));
  evaluator->rows_.resize(max_logits);
  return evaluator;
}

Result<TextScore> Evaluator::score(const EvalText& text, const std::function<void(int64_t)>& progress) {
  const auto start = std::chrono::steady_clock::now();
  TextScore score{.path = text.path, .bytes = text.scored_bytes};
  const std::vector<Window> windows =
      plan_windows(static_cast<int64_t>(text.ids.size()), options_.window, options_.stride);
  for (const auto& step : plan_steps(windows, {options_.max_step_tokens, evaluated_.logit_limits().max_logits})) {
    build_batch(text, windows, step);
    VAYU_RETURN_IF_ERROR(run_batch());
    VAYU_RETURN_IF_ERROR(add_rows(windows, score));
    progress(batch_.num_logits());
  }
  score.elapsed_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return score;
}

void Evaluator::build_batch(const EvalText& text, const std::vector<Window>& windows,
                            const std::vector<StepRow>& step) {
  batch_.clear();
  targets_.clear();
  for (const StepRow& row : step) append_row(text, windows[row.window], row);
}

void Evaluator::append_row(const EvalText& text, const Window& window, const StepRow& row) {
  const int32_t page_size = evaluated_.logit_limits().page_size;
  // Windows of a step follow one another, so the remainders differ; a window keeps its pages from step to step.
  const int32_t slot = static_cast<int32_t>(row.window % evaluated_.logit_limits().max_rows);
  const PageId first_page = slot * pages_per_window(options_, page_size);
  for (int32_t i = row.first; i < row.first + row.count; ++i) {
    const int64_t position = window.begin + i;
    if (i >= window.first_logit()) {
      batch_.logit_rows.push_back(batch_.num_tokens());
      targets_.push_back({text.ids[position + 1], position + 1, row.window});
    }
    batch_.token_ids.push_back(text.ids[position]);
    batch_.positions.push_back(i);
    batch_.slot_mapping.push_back(first_page * page_size + i);
  }
  const int32_t kv_len = row.first + row.count;
  for (int32_t page = 0; page * page_size < kv_len; ++page) batch_.page_table.push_back(first_page + page);
  batch_.qo_indptr.push_back(batch_.num_tokens());
  batch_.kv_indptr.push_back(static_cast<int32_t>(batch_.page_table.size()));
  batch_.kv_lens.push_back(kv_len);
}

Status Evaluator::run_batch() {
  VAYU_RETURN_IF_ERROR(evaluated_.compute_logits(batch_, floats(logits_), &observer_));
  if (reference_) VAYU_RETURN_IF_ERROR(reference_->compute_logits(batch_, floats(reference_logits_), nullptr));
  pool_.parallel_for(batch_.num_logits(), 1, [this](int64_t begin, int64_t end, int) { score_rows(begin, end); });
  return {};
}

void Evaluator::score_rows(int64_t begin, int64_t end) {
  const int64_t vocab_size = evaluated_.config().vocab_size;
  for (int64_t i = begin; i < end; ++i) {
    Row& row = rows_[i];
    const float* logits = floats(logits_) + i * vocab_size;
    row.evaluated = score_row(logits, vocab_size, targets_[i].id);
    if (!reference_) continue;
    const float* reference = floats(reference_logits_) + i * vocab_size;
    row.reference = score_row(reference, vocab_size, targets_[i].id);
    row.kl = kl_divergence(reference, row.reference.log_z, logits, row.evaluated.log_z, vocab_size);
  }
}

Status Evaluator::add_rows(const std::vector<Window>& windows, TextScore& score) const {
  for (size_t i = 0; i < targets_.size(); ++i) {
    const Row& row = rows_[i];
    if (!row.evaluated.finite || !row.reference.finite) {
      const Window& window = windows[targets_[i].window];
      return make_error(ErrorKind::kInternal, "{}: logits{} are not finite in window {} (tokens {} to {}), at token {}",
                        score.path, row.evaluated.finite ? " of the reference" : "", targets_[i].window, window.begin,
                        window.end - 1, targets_[i].position);
    }
    ++score.tokens;
    score.nll += row.evaluated.nll;
    if (!reference_) continue;
    score.reference_nll += row.reference.nll;
    score.agreed += row.evaluated.top == row.reference.top;
    score.kl.push_back(row.kl);
  }
  return {};
}

}  // namespace vayu::eval
