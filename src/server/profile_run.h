// POST /debug/profile: what the device does in the engine's next steps, kernel by kernel. Knows no sockets.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/result.h"
#include "core/step_profiler.h"
#include "server/http_message.h"

namespace vayu::server {

struct ProfileRequest {
  int32_t steps = 8;
  double timeout_s = 30;  // for all of them
  bool trace = false;     // the answer holds a timeline as well
};

// An empty body is the defaults. Unknown fields are refused: a time-out that is misspelt would be waited for.
Result<ProfileRequest> parse_profile(const std::string& body);

// One window over the engine's steps, from its opening to the answer. Ends with the object.
class ProfileRun {
 public:
  // Null while another window is open. `wake` is called from any thread when done() turns true; it must only post.
  static std::unique_ptr<ProfileRun> open(StepProfiler& profiler, std::string model, const ProfileRequest& request,
                                          std::function<void()> wake);
  ~ProfileRun();

  std::chrono::milliseconds timeout() const;
  bool done() const;
  // done() soon: when the steps under way have landed. shutting_down: why, for the answer; else time is up.
  void end(bool shutting_down = false);
  HttpResponse response() const;

 private:
  // Outlives the run, and the server, where the engine is slower.
  struct Outcome {
    std::mutex mutex;
    std::optional<Result<StepProfile>> profile;
    std::function<void()> wake;  // null once the run is gone: what it holds ends with the server
  };

  ProfileRun(StepProfiler& profiler, std::string model, const ProfileRequest& request)
      : profiler_(profiler), model_(std::move(model)), request_(request) {}
  std::string shortfall(size_t steps) const;
  std::string body(const StepProfile& profile) const;

  StepProfiler& profiler_;
  const std::string model_;
  const ProfileRequest request_;
  const std::shared_ptr<Outcome> outcome_ = std::make_shared<Outcome>();
  StepProfiler::WindowId window_ = 0;  // 0: none, which the profiler ignores
  bool ended_ = false;
  bool shutting_down_ = false;
};

}  // namespace vayu::server
