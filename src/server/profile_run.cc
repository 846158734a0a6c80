#include "server/profile_run.h"

#include <algorithm>
#include <array>
#include <utility>

#include "server/field_reader.h"
#include "server/limits.h"

namespace vayu::server {
namespace {

constexpr std::array<std::string_view, 3> kFields = {"steps", "timeout_s", "trace"};

std::string shortfall(size_t steps, const ProfileRequest& request) {
  if (steps == 0) return fmt::format("No step ran within {} s: the engine had no work.", request.timeout_s);
  return fmt::format("{} of {} steps ran within {} s.", steps, request.steps, request.timeout_s);
}

Json kernels_json(const ProfileTable& table) {
  Json kernels = Json::array();
  for (const KernelShare& k : table.kernels) {
    kernels.push_back({{"name", k.name}, {"calls", k.calls}, {"own_us", k.own_us}, {"us", k.us}});
  }
  return kernels;
}

}  // namespace

Result<ProfileRequest> parse_profile(const std::string& body) {
  ProfileRequest request;
  if (body.empty()) return request;
  auto parsed = parse_json(body);
  if (!parsed.ok()) return Error{ErrorKind::kInvalidArgument, parsed.error().message, parsed.error().field};
  if (!parsed->is_object()) return make_error(ErrorKind::kInvalidArgument, "The request body must be a JSON object.");
  FieldReader fields(*parsed);
  for (const auto& [name, value] : parsed->items()) {
    if (std::find(kFields.begin(), kFields.end(), name) == kFields.end()) {
      fields.fail(name, "{} is no field of this route, which takes {}.", name, fmt::join(kFields, ", "));
    }
  }
  fields.integer("steps", 1, kMaxProfileSteps, &request.steps);
  fields.number("timeout_s", 0.01, kMaxProfileSeconds, &request.timeout_s);
  fields.boolean("trace", &request.trace);
  VAYU_RETURN_IF_ERROR(fields.status());
  return request;
}

std::unique_ptr<ProfileRun> ProfileRun::open(StepProfiler& profiler, std::string model, const ProfileRequest& request,
                                             std::function<void()> wake) {
  std::unique_ptr<ProfileRun> run(new ProfileRun(profiler, std::move(model), request));
  run->window_ =
      profiler.open(request.steps, [outcome = run->outcome_, wake = std::move(wake)](Result<StepProfile> profile) {
        {
          const std::lock_guard lock(outcome->mutex);
          outcome->profile.emplace(std::move(profile));
        }
        wake();
      });
  return run->window_ == 0 ? nullptr : std::move(run);
}

std::chrono::milliseconds ProfileRun::timeout() const {
  return std::chrono::milliseconds(static_cast<int64_t>(request_.timeout_s * 1000));
}

bool ProfileRun::done() const {
  const std::lock_guard lock(outcome_->mutex);
  return outcome_->profile.has_value();
}

void ProfileRun::end() {
  if (!std::exchange(ended_, true)) profiler_.end(window_);
}

HttpResponse ProfileRun::response() const {
  const std::lock_guard lock(outcome_->mutex);
  if (!outcome_->profile) {
    return error_response(make_error(ErrorKind::kUnavailable, "A step that was being recorded does not end."));
  }
  if (!outcome_->profile->ok()) return error_response(outcome_->profile->error());
  HttpResponse response;
  response.body = body(**outcome_->profile);
  return response;
}

std::string ProfileRun::body(const StepProfile& profile) const {
  const ProfileTable table = profile_table(profile);
  Json steps = Json::array();
  for (const ProfiledStep& step : profile.steps) steps.push_back({{"tokens", step.tokens}, {"rows", step.rows}});
  const bool complete = std::cmp_greater_equal(profile.steps.size(), request_.steps);
  Json json;
  json["device"] = table.device;
  json["model"] = model_;
  json["complete"] = complete;
  json["message"] = complete ? Json(nullptr) : Json(shortfall(profile.steps.size(), request_));
  json["steps"] = std::move(steps);
  json["tokens"] = table.tokens;
  json["rows"] = table.rows;
  json["step_us"] = table.step_us;
  json["busy_us"] = table.busy_us;
  json["kernels"] = kernels_json(table);
  std::string text = dump(json);
  if (!request_.trace) return text;
  text.pop_back();  // megabytes that are JSON already
  return text + ",\"trace\":" + chrome_trace(profile.records, profile.spans) + "}";
}

}  // namespace vayu::server
