#include "scheduler/sim_executor.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace vayu {
namespace {

uint64_t mix(uint64_t h, uint64_t value) {
  h = (h ^ (value + 0x9e3779b97f4a7c15)) * 0xff51afd7ed558ccd;
  h = (h ^ (h >> 33)) * 0xc4ceb9fe1a85ec53;
  return h ^ (h >> 29);
}

bool one_in(uint64_t hash, uint32_t n) { return n > 0 && hash % n == 0; }

float sim_logprob(uint64_t context, TokenId token) {
  return -static_cast<float>(mix(context, static_cast<uint64_t>(token)) % 10000) / 1000.0f;
}

TokenId draw(const SimModel& model, int32_t vocab_size, uint64_t context, const SampleTask& task, TokenId prev_token) {
  uint64_t r = context;
  const SamplingParams& params = *task.params;
  if (params.temperature > 0) r = mix(mix(r, task.seed), static_cast<uint64_t>(task.output_index));
  if (params.repetition_penalty != 1.0f) {  // looks at what is in `tokens`, not in the KV cache
    r = mix(r, static_cast<uint64_t>(task.prompt_len));
    for (TokenId token : task.tokens) r = mix(r, static_cast<uint64_t>(token));
    if (task.prev_sample >= 0) r = mix(r, static_cast<uint64_t>(prev_token));
  }
  for (;;) {
    TokenId token = static_cast<TokenId>(mix(r, 2) % static_cast<uint64_t>(vocab_size));
    if (!model.end_ids.empty() && one_in(mix(r, 1), model.end_one_in)) token = model.end_ids[r % model.end_ids.size()];
    if (std::ranges::find(task.banned, token) == task.banned.end()) return token;
    r = mix(r, 3);
  }
}

}  // namespace

uint64_t sim_extend(uint64_t context, TokenId token, int32_t position) {
  return mix(mix(context, static_cast<uint32_t>(token)), static_cast<uint32_t>(position));
}

SampleResult sim_sample(const SimModel& model, int32_t vocab_size, uint64_t context, const SampleTask& task,
                        TokenId prev_token) {
  SampleResult result;
  if (task.poison || one_in(mix(context, 4), model.non_finite_one_in)) {
    result.finite = false;
    return result;
  }
  const bool scores = task.target != kNoToken;
  result.token = scores                    ? task.target
                 : task.forced != kNoToken ? task.forced
                                           : draw(model, vocab_size, context, task, prev_token);
  result.logprob = sim_logprob(context, result.token);
  result.num_top = std::clamp(scores ? task.params->prompt_logprobs : task.params->logprobs, 0, kMaxTopLogprobs);
  for (int32_t i = 0; i < result.num_top; ++i) {
    const auto token = static_cast<TokenId>((context + i) % vocab_size);
    result.top[i] = {.token = token, .logprob = sim_logprob(context, token)};
  }
  return result;
}

SimulatedExecutor::SimulatedExecutor(SimModel model, const ExecutorLimits& limits, ManualClock& clock, bool overlaps)
    : model_(std::move(model)),
      limits_(limits),
      clock_(clock),
      overlaps_(overlaps),
      kv_(static_cast<size_t>(limits.num_pages) * limits.page_size),
      page_writer_(limits.num_pages, -1) {}

void SimulatedExecutor::launch(const Batch& batch) {
  VAYU_CHECK(running_.size() < (overlaps_ ? 2 : 1), "launch during a step");
  check_shape(batch);
  check_unknown(batch);
  for (int32_t row = 0; row < batch.num_rows(); ++row) check_row(batch, row);
  check_writers(batch);
  if (!running_.empty()) check_against(*running_.front(), batch);
  running_.push_back(&batch);
}

void SimulatedExecutor::wait(StepOutput& output) {
  VAYU_CHECK(!running_.empty(), "wait without a step");
  const Batch& batch = *running_.front();
  running_.erase(running_.begin());
  for (int32_t t = 0; t < batch.num_tokens(); ++t) {
    kv_[batch.slot_mapping[t]] = {.token = token_id(batch, t), .position = batch.positions[t]};
  }
  output.results.resize(batch.samples.size());
  size_t next_sample = 0;
  for (int32_t row = 0; row < batch.num_rows(); ++row) run_row(batch, row, next_sample, output);
  last_tokens_.clear();
  for (const SampleResult& result : output.results) last_tokens_.push_back(std::max(result.token, 0));
  tokens_computed_ += batch.num_tokens();
  clock_.advance_us(static_cast<int64_t>(step_cost_us(batch)));
}

TokenId SimulatedExecutor::token_id(const Batch& batch, int32_t t) const {
  const int32_t sample = batch.prev_samples.empty() ? -1 : batch.prev_samples[t];
  return sample < 0 ? batch.token_ids[t] : last_tokens_.at(sample);
}

// One pass over the row's context gives the hash at each of its positions.
void SimulatedExecutor::run_row(const Batch& batch, int32_t row, size_t& next_sample, StepOutput& output) const {
  const int32_t row_end = batch.qo_indptr[row + 1];
  const int32_t kv_len = batch.kv_lens[row];
  uint64_t context = model_.seed;
  for (int32_t p = 0; p < kv_len && next_sample < batch.samples.size(); ++p) {
    const PageId page = batch.page_table[batch.kv_indptr[row] + p / limits_.page_size];
    const Slot& slot = kv_[static_cast<size_t>(page) * limits_.page_size + p % limits_.page_size];
    context = sim_extend(context, slot.token, slot.position);
    if (batch.logit_rows[next_sample] == row_end - kv_len + p) {
      const SampleTask& task = batch.samples[next_sample];
      const TokenId prev_token = task.prev_sample < 0 ? kNoToken : last_tokens_.at(task.prev_sample);
      output.results[next_sample] = sim_sample(model_, limits_.vocab_size, context, task, prev_token);
      ++next_sample;
    }
  }
}

double SimulatedExecutor::step_cost_us(const Batch& batch) const {
  const double kv_tokens = std::accumulate(batch.kv_lens.begin(), batch.kv_lens.end(), 0.0);
  const SimCost& cost = model_.cost;
  return cost.step_us + cost.token_us * batch.num_tokens() + cost.kv_token_us * kv_tokens +
         cost.logit_us * batch.num_logits();
}

void SimulatedExecutor::check_shape(const Batch& batch) const {
  const size_t tokens = batch.token_ids.size(), rows = batch.kv_lens.size();
  VAYU_CHECK(tokens > 0 && tokens <= static_cast<size_t>(limits_.max_step_tokens), "{} tokens", tokens);
  VAYU_CHECK(rows > 0 && rows <= static_cast<size_t>(limits_.max_rows), "{} rows", rows);
  VAYU_CHECK(batch.positions.size() == tokens && batch.slot_mapping.size() == tokens);
  VAYU_CHECK(batch.qo_indptr.size() == rows + 1 && batch.kv_indptr.size() == rows + 1);
  VAYU_CHECK(batch.qo_indptr[0] == 0 && batch.kv_indptr[0] == 0);
  VAYU_CHECK(batch.qo_indptr[rows] == static_cast<int32_t>(tokens));
  VAYU_CHECK(batch.kv_indptr[rows] == static_cast<int32_t>(batch.page_table.size()));
  VAYU_CHECK(batch.logit_rows.size() == batch.samples.size());
  for (size_t i = 0; i < batch.samples.size(); ++i) {
    VAYU_CHECK(batch.samples[i].logit_row == static_cast<int32_t>(i));
    VAYU_CHECK(batch.logit_rows[i] >= 0 && batch.logit_rows[i] < static_cast<int32_t>(tokens));
    VAYU_CHECK(i == 0 || batch.logit_rows[i - 1] < batch.logit_rows[i], "logit rows not ascending");
  }
}

void SimulatedExecutor::check_row(const Batch& batch, int32_t row) const {
  const int32_t begin = batch.qo_indptr[row], end = batch.qo_indptr[row + 1];
  const int32_t kv_len = batch.kv_lens[row];
  VAYU_CHECK(begin < end && kv_len >= end - begin && kv_len <= limits_.max_context, "row {}: kv_len {}", row, kv_len);
  const int32_t num_pages = batch.kv_indptr[row + 1] - batch.kv_indptr[row];
  VAYU_CHECK(num_pages == (kv_len + limits_.page_size - 1) / limits_.page_size, "row {}: {} pages", row, num_pages);
  for (int32_t t = begin; t < end; ++t) {
    const int32_t position = kv_len - end + t;
    const PageId page = batch.page_table[batch.kv_indptr[row] + position / limits_.page_size];
    VAYU_CHECK(page >= 0 && page < limits_.num_pages, "page {}", page);
    VAYU_CHECK(batch.positions[t] == position, "row {}: position {}", row, batch.positions[t]);
    VAYU_CHECK(batch.slot_mapping[t] == page * limits_.page_size + position % limits_.page_size, "row {}", row);
    const bool unknown = !batch.prev_samples.empty() && batch.prev_samples[t] >= 0;
    VAYU_CHECK(
        unknown ? batch.token_ids[t] == kNoToken : batch.token_ids[t] >= 0 && batch.token_ids[t] < limits_.vocab_size,
        "token {}", batch.token_ids[t]);
  }
}

// Unknown tokens are those of the step under way, each the only token of a decoding row or one to be penalised.
void SimulatedExecutor::check_unknown(const Batch& batch) const {
  const int32_t limit = running_.empty() ? 0 : running_.back()->num_logits();
  VAYU_CHECK(batch.prev_samples.empty() || batch.prev_samples.size() == batch.token_ids.size());
  for (size_t t = 0; t < batch.prev_samples.size(); ++t) {
    const int32_t sample = batch.prev_samples[t];
    VAYU_CHECK(sample >= -1 && sample < limit, "token {} is sample {} of {}", t, sample, limit);
  }
  for (const SampleTask& task : batch.samples) {
    VAYU_CHECK(task.prev_sample >= -1 && task.prev_sample < limit, "sample {} of {}", task.prev_sample, limit);
  }
}

// A page that one of two steps under way writes is in the other's tables only where the same sequence goes on with it.
void SimulatedExecutor::check_against(const Batch& older, const Batch& batch) {
  const auto check = [&](int32_t old_row, int32_t row, PageId page) {
    const std::span old_pages = std::span(older.page_table).subspan(older.kv_indptr[old_row]);
    const std::span pages = std::span(batch.page_table).subspan(batch.kv_indptr[row]);
    const int32_t kv_len = older.kv_lens[old_row];
    VAYU_CHECK(
        batch.positions[batch.qo_indptr[row]] == kv_len &&
            std::ranges::find(old_pages, page) - old_pages.begin() == std::ranges::find(pages, page) - pages.begin(),
        "page {} of row {} is used by row {} of the step under way", page, row, old_row);
  };
  for (int32_t old_row = 0; old_row < older.num_rows(); ++old_row) {  // page_writer_ is that of `batch`
    for (int32_t i = older.kv_indptr[old_row]; i < older.kv_indptr[old_row + 1]; ++i) {
      const PageId page = older.page_table[i];
      if (page_writer_[page] >= 0) check(old_row, page_writer_[page], page);
    }
  }
  std::ranges::fill(page_writer_, -1);
  for (int32_t old_row = 0; old_row < older.num_rows(); ++old_row) {
    for (int32_t t = older.qo_indptr[old_row]; t < older.qo_indptr[old_row + 1]; ++t) {
      page_writer_[older.slot_mapping[t] / limits_.page_size] = old_row;
    }
  }
  for (int32_t row = 0; row < batch.num_rows(); ++row) {
    for (int32_t i = batch.kv_indptr[row]; i < batch.kv_indptr[row + 1]; ++i) {
      const PageId page = batch.page_table[i];
      if (page_writer_[page] >= 0) check(page_writer_[page], row, page);
    }
  }
}

// Rows run in any order, so a page that one row writes must be in no other row's table.
void SimulatedExecutor::check_writers(const Batch& batch) {
  std::ranges::fill(page_writer_, -1);
  for (int32_t row = 0; row < batch.num_rows(); ++row) {
    for (int32_t t = batch.qo_indptr[row]; t < batch.qo_indptr[row + 1]; ++t) {
      page_writer_[batch.slot_mapping[t] / limits_.page_size] = row;
    }
  }
  for (int32_t row = 0; row < batch.num_rows(); ++row) {
    for (int32_t i = batch.kv_indptr[row]; i < batch.kv_indptr[row + 1]; ++i) {
      const int32_t writer = page_writer_[batch.page_table[i]];
      VAYU_CHECK(writer < 0 || writer == row, "page {} is written by row {} and used by row {}", batch.page_table[i],
                 writer, row);
    }
  }
}

}  // namespace vayu
