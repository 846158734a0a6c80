// POST /debug/profile over a profiler that the test drives.
#include <gtest/gtest.h>

#include "server/profile_run.h"
#include "server/test_server.h"

namespace vayu::server {
namespace {

class FakeProfiler : public StepProfiler {
 public:
  WindowId open(int32_t steps, Done done) override {
    const std::lock_guard lock(mutex_);
    if (done_) return 0;
    wanted = steps;
    done_ = std::move(done);
    ++opened;
    return ++window_;
  }
  void end(WindowId window) override {
    const std::lock_guard lock(mutex_);
    if (!done_ || window != window_) return;
    ++ended;
    if (!stuck) std::exchange(done_, nullptr)(StepProfile{.device = "D", .steps = seen});
  }
  void finish(Result<StepProfile> profile) {
    const std::lock_guard lock(mutex_);
    std::exchange(done_, nullptr)(std::move(profile));
  }
  bool is_open() {
    const std::lock_guard lock(mutex_);
    return static_cast<bool>(done_);
  }

  std::atomic<int> opened = 0, ended = 0, wanted = 0;
  std::atomic<bool> stuck = false;
  std::vector<ProfiledStep> seen;  // when it ends early

 private:
  std::mutex mutex_;
  Done done_;
  WindowId window_ = 0;
};

class ProfileRouteTest : public ServerTest {
 protected:
  void serve(bool with_profiler = true, bool enabled = true) {
    ServerConfig config;
    config.profiling = enabled;
    start(config, /*attach_model=*/false);
    server_->attach({.engine = &engine_,
                     .tokenizer = tokenizer_,
                     .chat_template = nullptr,
                     .bos_token = "",
                     .eos_token = "",
                     .profiler = with_profiler ? &profiler_ : nullptr});
  }
  ClientResponse profile(const std::string& body) { return call("POST", "/debug/profile", body); }
  static StepProfile two_steps() {
    return {.device = "D",
            .steps = {{32, 32}, {34, 33}},
            .host_us = 10,
            .records = {{"k\"1", 0, 2000, 7}, {"copy", 3000, 4000, 7}},
            .spans = {{"launch", 0, 500}}};
  }

  FakeProfiler profiler_;
};

TEST_F(ProfileRouteTest, IsClosedWithoutTheFlag) {
  serve(true, /*enabled=*/false);
  const ClientResponse response = profile("{}");
  EXPECT_EQ(response.status, 403);
  EXPECT_NE(response.body.find("--enable-profiling"), std::string::npos);
  EXPECT_EQ(profiler_.opened, 0);
}

TEST_F(ProfileRouteTest, NeedsADevice) {
  serve(/*with_profiler=*/false);
  const ClientResponse response = profile("{}");
  EXPECT_EQ(response.status, 400);
  EXPECT_NE(response.body.find("--device cuda"), std::string::npos);
}

TEST_F(ProfileRouteTest, BadBodiesNameTheField) {
  serve();
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"steps": 0})", "steps"},   {R"({"steps": 201})", "steps"},       {R"({"steps": "8"})", "steps"},
      {R"({"steps": 1.5})", "steps"}, {R"({"timeout_s": 0})", "timeout_s"}, {R"({"timeout_s": 121})", "timeout_s"},
      {R"({"trace": 1})", "trace"},   {R"({"timeout": 3})", "timeout"},
  };
  for (const auto& [body, field] : cases) {
    const ClientResponse response = profile(body);
    EXPECT_EQ(response.status, 400) << body;
    EXPECT_EQ(response.json()["error"]["param"], field) << body << response.body;
  }
  const ClientResponse large = profile(R"({")" + std::string(1 << 20, 'x') + R"(": 1})");
  EXPECT_EQ(large.status, 400);
  EXPECT_LT(large.body.size(), 1000u);
  for (const char* body : {"[]", "{", "3"}) EXPECT_EQ(profile(body).status, 400) << body;
  EXPECT_EQ(call("GET", "/debug/profile").status, 405);
  EXPECT_EQ(profiler_.opened, 0);
}

TEST_F(ProfileRouteTest, AnswersWithTheTable) {
  serve();
  for (const bool trace : {false, true}) {
    TestClient client(port_);
    client.send(http_request("POST", "/debug/profile", trace ? R"({"steps": 2, "trace": true})" : R"({"steps": 2})"));
    ASSERT_TRUE(eventually([&] { return profiler_.is_open(); }));
    EXPECT_EQ(profiler_.wanted, 2);
    profiler_.finish(two_steps());
    const ClientResponse response = client.read_response();
    ASSERT_EQ(response.status, 200) << response.body;
    const Json json = response.json();
    EXPECT_EQ(json["device"], "D");
    EXPECT_EQ(json["model"], "fake");
    EXPECT_EQ(json["complete"], true);
    EXPECT_EQ(json["message"], nullptr);
    EXPECT_EQ(json["steps"], Json::parse(R"([{"tokens": 32, "rows": 32}, {"tokens": 34, "rows": 33}])"));
    EXPECT_EQ(json["tokens"], 33.0);
    EXPECT_EQ(json["step_us"], 5.0);
    EXPECT_EQ(json["busy_us"], 1.5);
    EXPECT_EQ(json["kernels"][0], Json::parse(R"({"name": "k\"1", "calls": 0.5, "own_us": 1.0, "us": 1.0})"));
    EXPECT_EQ(json["kernels"].size(), 2u);
    ASSERT_EQ(json.contains("trace"), trace);
    if (trace) {
      EXPECT_EQ(json["trace"]["traceEvents"].size(), 5u);
    }
  }
}

TEST_F(ProfileRouteTest, AnEmptyBodyIsTheDefaults) {
  serve();
  TestClient client(port_);
  client.send("POST /debug/profile HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return profiler_.is_open(); }));
  EXPECT_EQ(profiler_.wanted, 8);
  profiler_.finish(make_error(ErrorKind::kUnavailable, "CUPTI: records: busy"));
  const ClientResponse response = client.read_response();
  EXPECT_EQ(response.status, 503);
  EXPECT_NE(response.body.find("CUPTI: records: busy"), std::string::npos);
}

TEST_F(ProfileRouteTest, ASecondRequestIsRefused) {
  serve();
  TestClient first(port_);
  first.send(http_request("POST", "/debug/profile", "{}"));
  ASSERT_TRUE(eventually([&] { return profiler_.is_open(); }));
  EXPECT_EQ(profile("{}").status, 409);
  EXPECT_TRUE(profiler_.is_open());
  EXPECT_EQ(complete(R"("n": 1)").status, 200);  // everything else goes on
  profiler_.finish(two_steps());
  EXPECT_EQ(first.read_response().status, 200);
}

TEST_F(ProfileRouteTest, SaysWhatRanWithinTheTime) {
  serve();
  ClientResponse response = profile(R"({"steps": 4, "timeout_s": 0.05})");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.json()["complete"], false);
  EXPECT_EQ(response.json()["message"], "No step ran within 0.05 s: the engine had no work.");
  EXPECT_EQ(response.json()["kernels"].size(), 0u);
  profiler_.seen = {{1, 1}};
  response = profile(R"({"steps": 4, "timeout_s": 0.05})");
  EXPECT_EQ(response.json()["message"], "1 of 4 steps ran within 0.05 s.");
  EXPECT_EQ(response.json()["steps"].size(), 1u);
}

TEST_F(ProfileRouteTest, AClientThatVanishesEndsItsWindow) {
  serve();
  {
    TestClient client(port_);
    client.send(http_request("POST", "/debug/profile", R"({"timeout_s": 100})"));
    ASSERT_TRUE(eventually([&] { return profiler_.is_open(); }));
  }
  EXPECT_TRUE(eventually([&] { return !profiler_.is_open(); }));
  EXPECT_EQ(profiler_.ended, 1);
}

TEST_F(ProfileRouteTest, ADrainEndsTheWindow) {
  serve();
  TestClient drained(port_);
  drained.send(http_request("POST", "/debug/profile", R"({"timeout_s": 100})"));
  ASSERT_TRUE(eventually([&] { return profiler_.is_open(); }));
  const int64_t start_us = clock_.now_us();
  server_->drain(clock_.now_us() + 20'000'000);
  EXPECT_LT(clock_.now_us() - start_us, 5'000'000);
  const ClientResponse response = drained.read_response();
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.json()["message"], "0 of 8 steps ran: the server is shutting down.");
  EXPECT_FALSE(profiler_.is_open());
}

TEST_F(ProfileRouteTest, StoppingTheServerEndsIt) {
  serve();
  TestClient client(port_);
  client.send(http_request("POST", "/debug/profile", R"({"timeout_s": 100})"));
  ASSERT_TRUE(eventually([&] { return profiler_.is_open(); }));
  server_.reset();
  EXPECT_FALSE(profiler_.is_open());
}

// A step that never lands: the client goes, the server stops, and only then does the profiler answer.
TEST_F(ProfileRouteTest, TheEngineMayBeSlowerThanEverybody) {
  serve();
  profiler_.stuck = true;
  {
    TestClient client(port_);
    client.send(http_request("POST", "/debug/profile", R"({"timeout_s": 0.02})"));
    ASSERT_TRUE(eventually([&] { return profiler_.ended > 0; }));
  }
  server_.reset();
  profiler_.finish(two_steps());
}

// What wakes a connection must not outlive the server's I/O, which the profiler may: it goes with the run.
TEST(ProfileRun, NobodyIsWokenOnceItIsGone) {
  FakeProfiler profiler;
  profiler.stuck = true;
  int woken = 0;
  auto held = std::make_shared<int>();
  const std::weak_ptr<int> alive = held;
  auto run = ProfileRun::open(profiler, "m", {}, [&woken, held = std::move(held)] { ++woken; });
  ASSERT_NE(run, nullptr);
  EXPECT_FALSE(alive.expired());
  run.reset();
  EXPECT_EQ(profiler.ended, 1);
  EXPECT_TRUE(alive.expired());
  profiler.finish(StepProfile{});
  EXPECT_EQ(woken, 0);
}

TEST(ProfileRun, WakesOnceAndKeepsTheOutcome) {
  FakeProfiler profiler;
  int woken = 0;
  const auto run = ProfileRun::open(profiler, "m", {.steps = 1}, [&woken] { ++woken; });
  ASSERT_NE(run, nullptr);
  EXPECT_EQ(ProfileRun::open(profiler, "m", {}, [&woken] { ++woken; }), nullptr);
  EXPECT_FALSE(run->done());
  EXPECT_EQ(run->response().status, 503);
  profiler.finish(StepProfile{.device = "D", .steps = {{1, 1}}});
  EXPECT_EQ(woken, 1);
  EXPECT_TRUE(run->done());
  EXPECT_EQ(run->response().status, 200);
}

}  // namespace
}  // namespace vayu::server
