#include "server/profile_run.h"

#include <algorithm>
#include <array>
#include <utility>

#include "server/field_reader.h"
#include "server/limits.h"

namespace vayu::server {
namespace {

constexpr std::array<std::string_view, 3> kFields = {"steps", "timeout_s", "trace"};
constexpr size_t kMaxShownBytes = 64;  // of a field's name: a body may be one name of megabytes

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
      const std::string shown = name.substr(0, kMaxShownBytes);
      fields.fail(shown, "{} is no field of this route, which takes {}.", shown, fmt::join(kFields, ", "));
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
  run->outcome_->wake = std::move(wake);
  run->window_ = profiler.open(request.steps, [outcome = run->outcome_](Result<StepProfile> profile) {
    const std::lock_guard lock(outcome->mutex);
    outcome->profile.emplace(std::move(profile));
    if (outcome->wake) outcome->wake();
  });
  return run->window_ == 0 ? nullptr : std::move(run);
}

ProfileRun::~ProfileRun() {
  end();
  const std::lock_guard lock(outcome_->mutex);
  outcome_->wake = nullptr;
}

std::chrono::milliseconds ProfileRun::timeout() const {
  return std::chrono::milliseconds(static_cast<int64_t>(request_.timeout_s * 1000));
}

bool ProfileRun::done() const {
  const std::lock_guard lock(outcome_->mutex);
  return outcome_->profile.has_value();
}

void ProfileRun::end(bool shutting_down) {
  if (std::exchange(ended_, true)) return;
  shutting_down_ = shutting_down;
  profiler_.end(window_);
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

std::string ProfileRun::shortfall(size_t steps) const {
  if (shutting_down_) return fmt::format("{} of {} steps ran: the server is shutting down.", steps, request_.steps);
  if (steps == 0) return fmt::format("No step ran within {} s: the engine had no work.", request_.timeout_s);
  return fmt::format("{} of {} steps ran within {} s.", steps, request_.steps, request_.timeout_s);
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
  json["message"] = complete ? Json(nullptr) : Json(shortfall(profile.steps.size()));
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
