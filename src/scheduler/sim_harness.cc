#include "scheduler/sim_harness.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace vayu {
namespace {

SampleTask reference_task(const Request& request, int32_t choice, const std::vector<TokenId>& tokens) {
  SampleTask task;
  task.params = &request.sampling;
  task.tokens = tokens;
  task.prompt_len = static_cast<int32_t>(request.prompt.size());
  task.seed = request.sampling.seed + static_cast<uint64_t>(choice);
  task.output_index = static_cast<int32_t>(tokens.size()) - task.prompt_len;
  if (task.output_index < static_cast<int32_t>(request.forced_output.size())) {
    task.forced = request.forced_output[task.output_index];
  }
  task.poison = task.output_index == request.fail_at_token;
  return task;
}

OutputToken to_output(const SampleResult& result) {
  return {result.token, result.logprob, {result.top.begin(), result.top.begin() + result.num_top}};
}

bool same(const OutputToken& a, const OutputToken& b) {
  const auto equal = [](float x, float y) { return x == y || (std::isnan(x) && std::isnan(y)); };
  return a.token == b.token && equal(a.logprob, b.logprob) &&
         std::ranges::equal(a.top, b.top, [](const TokenLogprob& x, const TokenLogprob& y) {
           return x.token == y.token && x.logprob == y.logprob;
         });
}

std::string compare(const char* what, const std::vector<OutputToken>& got, const std::vector<OutputToken>& want,
                    bool prefix) {
  if (got.size() > want.size() || (got.size() < want.size() && !prefix)) {
    return fmt::format("{}: {} tokens, not {}", what, got.size(), want.size());
  }
  for (size_t i = 0; i < got.size(); ++i) {
    if (!same(got[i], want[i])) {
      return fmt::format("{} token {}: {} ({}), not {} ({})", what, i, got[i].token, got[i].logprob, want[i].token,
                         want[i].logprob);
    }
  }
  return "";
}

}  // namespace

SimAnswer sim_reference(const SimModel& model, const ExecutorLimits& limits, int32_t max_tokens,
                        const std::vector<TokenId>& end_ids, const Request& request, int32_t choice) {
  const SamplingParams& params = request.sampling;
  SimAnswer answer;
  std::vector<TokenId> banned = params.stop_token_ids;
  if (!params.ignore_eos) banned.insert(banned.end(), end_ids.begin(), end_ids.end());
  std::vector<TokenId> tokens = request.prompt;
  const bool scores = params.prompt_logprobs >= 0;
  uint64_t context = model.seed;
  for (size_t p = 0; p < tokens.size(); ++p) {
    if (scores && p == 0) answer.prompt.push_back({tokens[0], std::numeric_limits<float>::quiet_NaN(), {}});
    context = sim_extend(context, tokens[p], static_cast<int32_t>(p));
    if (!scores || p + 1 == tokens.size()) continue;
    SampleTask task = reference_task(request, choice, tokens);
    task.poison = false;
    task.target = tokens[p + 1];
    const SampleResult score = sim_sample(model, limits.vocab_size, context, task);
    if (!score.finite) {
      answer.prompt.clear();
      answer.finish = FinishReason::kError;
      return answer;
    }
    answer.prompt.push_back(to_output(score));
  }
  while (!answer.finish) {
    SampleTask task = reference_task(request, choice, tokens);
    if (task.output_index < params.min_tokens) task.banned = banned;
    const SampleResult result = sim_sample(model, limits.vocab_size, context, task);
    if (!result.finite) {
      answer.finish = FinishReason::kError;
      break;
    }
    context = sim_extend(context, result.token, static_cast<int32_t>(tokens.size()));
    tokens.push_back(result.token);
    answer.tokens.push_back(to_output(result));
    const auto count = static_cast<int32_t>(answer.tokens.size());
    if (count > params.min_tokens && std::ranges::find(banned, result.token) != banned.end()) {
      answer.finish = FinishReason::kStop;
      answer.stop_token = result.token;
    } else if (count >= params.max_tokens || static_cast<int32_t>(tokens.size()) >= max_tokens) {
      answer.finish = FinishReason::kLength;
    }
  }
  if (answer.tokens.empty()) answer.prompt.clear();  // scores travel with the first token
  return answer;
}

std::string sim_difference(const SimAnswer& got, const SimAnswer& reference) {
  if (!got.finish) return "not ended";
  const bool cancelled =
      *got.finish == FinishReason::kCancelled || (*got.finish == FinishReason::kStop && got.stop_token == kNoToken);
  const bool prompt_missing = cancelled && got.tokens.empty() && got.prompt.empty();
  std::string difference = compare("output", got.tokens, reference.tokens, cancelled);
  if (difference.empty() && !prompt_missing) difference = compare("prompt", got.prompt, reference.prompt, false);
  if (!difference.empty() || cancelled) return difference;
  if (got.finish != reference.finish || got.stop_token != reference.stop_token) {
    return fmt::format("ended with {} ({}), not {} ({})", to_string(*got.finish), got.stop_token,
                       to_string(*reference.finish), reference.stop_token);
  }
  return "";
}

SimHarness::SimHarness(SchedulerConfig config, SimModel sim_model, const ExecutorLimits& limits)
    : model(std::move(sim_model)),
      executor(model, limits, clock, config.overlap),
      scheduler(std::move(config), limits, clock) {
  for (Batch* each : batches_) scheduler.reserve(*each);
}

Status SimHarness::add(Request request) {
  const RequestId id = request.id;
  const int32_t n = request.n;
  VAYU_RETURN_IF_ERROR(scheduler.add(std::move(request)));
  for (int32_t choice = 0; choice < n; ++choice) answers[{id, choice}] = {};
  return {};
}

std::string SimHarness::difference(const Request& request, int32_t choice) const {
  return sim_difference(answer(request.id, choice),
                        sim_reference(model, executor.limits(), scheduler.max_tokens_per_sequence(),
                                      scheduler.config().end_ids, request, choice));
}

void SimHarness::collect() {
  scheduler.take_deltas(deltas_);
  for (SequenceDelta& delta : deltas_) take(delta);
  const Status status = scheduler.audit();
  if (!status.ok()) faults.push_back(status.error().message);
}

void SimHarness::take(SequenceDelta& delta) {
  SimAnswer& answer = answers.at({delta.request_id, delta.choice});
  if (answer.finish)
    faults.push_back(fmt::format("request {} choice {}: news after its end", delta.request_id, delta.choice));
  if (!delta.prompt.empty() && (!answer.prompt.empty() || !answer.tokens.empty())) {
    faults.push_back(fmt::format("request {} choice {}: late prompt scores", delta.request_id, delta.choice));
  }
  std::ranges::move(delta.tokens, std::back_inserter(answer.tokens));
  std::ranges::move(delta.prompt, std::back_inserter(answer.prompt));
  answer.cached_tokens = delta.cached_tokens;
  answer.finish = delta.finish;
  answer.stop_token = delta.stop_token;
  answer.error = std::move(delta.error);
}

}  // namespace vayu
