// Clients that vanish or read slowly, idle streams, drain and stop.
#include <gtest/gtest.h>

#include "server/test_server.h"

namespace vayu::server {
namespace {

using Json = nlohmann::ordered_json;

TEST_F(ServerTest, ClientsThatVanishAreCancelled) {
  start();
  engine_.tick_us = 3000;  // no answer ends by itself during the test
  for (const bool hold : {true, false}) {
    for (const char* stream : {"true", "false"}) {
      engine_.hold = hold;
      engine_.num_cancelled = 0;
      std::vector<std::unique_ptr<TestClient>> clients;
      const std::string body =
          fmt::format(R"({{"prompt": "x", "stream": {}, "ignore_eos": true, "max_tokens": 1900}})", stream);
      for (int i = 0; i < 16; ++i) {
        clients.push_back(std::make_unique<TestClient>(port_));
        clients.back()->send(http_request("POST", "/v1/completions", body));
      }
      ASSERT_TRUE(eventually([&] { return engine_.num_running() == 16; }));
      clients.clear();
      EXPECT_TRUE(eventually([&] { return engine_.num_running() == 0; }));
      EXPECT_EQ(engine_.num_cancelled, 16);
    }
  }
  EXPECT_TRUE(eventually([&] {
    return metric(R"(vayu:answers_abandoned_total{engine="0",model_name="fake",reason="disconnect"})") == "64";
  }));
  engine_.hold = false;
  EXPECT_EQ(complete(R"("n": 1)").status, 200);
}

TEST_F(ServerTest, ReadersThatAreTooSlowAreCancelled) {
  ServerConfig config;
  config.socket_send_buffer_bytes = 4096;
  config.max_pending_tokens = 100;
  start(config);
  TestClient client(port_, /*receive_buffer_bytes=*/4096);
  client.send(http_request("POST", "/v1/completions",
                           R"({"prompt": "x", "stream": true, "ignore_eos": true, "max_tokens": 1900})"));
  ASSERT_TRUE(client.wait_for_bytes());
  EXPECT_TRUE(eventually([&] { return engine_.num_running() == 0; }));
  EXPECT_EQ(engine_.num_cancelled, 1);
  EXPECT_EQ(metric(R"(vayu:answers_abandoned_total{engine="0",model_name="fake",reason="slow_reader"})"), "1");
  EXPECT_FALSE(client.read_response().complete);
}

TEST_F(ServerTest, PingsOnIdleStreamsWhenAsked) {
  ServerConfig config;
  config.sse_ping_interval_ms = 20;
  start(config);
  engine_.hold = true;
  TestClient client(port_);
  client.send(http_request("POST", "/v1/completions", R"({"prompt": "x", "stream": true})"));
  ASSERT_TRUE(client.wait_for_bytes());  // the header and a comment, though no token is there
  engine_.hold = false;
  const ClientResponse response = client.read_response();
  EXPECT_NE(response.body.find(":\n\n"), std::string::npos);
  EXPECT_EQ(joined(response).text, "ok");
}

TEST_F(ServerTest, FailureAfterAPingIsAnErrorEvent) {
  ServerConfig config = with_hooks();
  config.sse_ping_interval_ms = 20;
  start(config);
  engine_.hold = true;
  TestClient client(port_);
  client.send(http_request("POST", "/v1/completions",
                           R"({"prompt": "x", "stream": true, "vayu_debug": {"fail_at_token": 0}})"));
  ASSERT_TRUE(client.wait_for_bytes());
  engine_.hold = false;
  const ClientResponse response = client.read_response();
  EXPECT_TRUE(response.complete);
  ASSERT_EQ(response.events().size(), 2u);
  EXPECT_EQ(Json::parse(response.events()[0])["error"]["type"], "server_error");
  EXPECT_EQ(response.events()[1], "[DONE]");
}

TEST_F(ServerTest, StopEndsADrain) {
  start();
  engine_.hold = true;
  TestClient queued(port_);
  queued.send(http_request("POST", "/v1/completions", R"({"prompt": "x"})"));
  ASSERT_TRUE(eventually([&] { return engine_.num_running() == 1; }));
  std::thread drain([&] { server_->drain(clock_.now_us() + 2'000'000); });
  server_->stop();
  drain.join();
  EXPECT_TRUE(eventually([&] { return engine_.num_running() == 0; }));
}

TEST_F(ServerTest, Http10StreamsEndWithTheConnection) {
  start();
  TestClient client(port_);
  const std::string body = R"({"prompt": "x", "stream": true})";
  client.send("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  const ClientResponse response = client.read_response();
  EXPECT_EQ(response.headers.count("transfer-encoding"), 0u);
  EXPECT_EQ(joined(response).text, "ok");
}

TEST_F(ServerTest, DrainLetsRunningStreamsFinish) {
  start();
  TestClient idle(port_);
  idle.send(http_request("GET", "/health"));
  EXPECT_EQ(idle.read_response().status, 200);
  TestClient running(port_);
  running.send(http_request("POST", "/v1/completions",
                            R"({"prompt": "x", "stream": true, "ignore_eos": true, "max_tokens": 300})"));
  ASSERT_TRUE(running.wait_for_bytes());
  std::thread drain([&] { server_->drain(clock_.now_us() + 20'000'000); });
  const ClientResponse response = running.read_response();
  EXPECT_EQ(joined(response).finish, "length");
  EXPECT_TRUE(joined(response).done);
  drain.join();
  EXPECT_TRUE(idle.at_end());
  EXPECT_TRUE(running.at_end());
  TestClient late(port_);
  late.send(http_request("GET", "/health"));
  EXPECT_EQ(late.read_response().status, 0);
}

TEST_F(ServerTest, DrainCancelsAtTheDeadline) {
  start();
  engine_.hold = true;
  TestClient queued(port_);
  queued.send(http_request("POST", "/v1/completions", R"({"prompt": "x"})"));
  ASSERT_TRUE(eventually([&] { return engine_.num_running() == 1; }));
  server_->drain(clock_.now_us() + 50'000);
  EXPECT_EQ(queued.read_response().status, 503);
}

TEST_F(ServerTest, StopWithRequestsInFlight) {
  start();
  engine_.hold = true;
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<TestClient>(port_));
    clients.back()->send(http_request("POST", "/v1/completions", R"({"prompt": "x", "stream": true})"));
  }
  ASSERT_TRUE(eventually([&] { return engine_.num_running() == 8; }));
  server_.reset();
  EXPECT_TRUE(eventually([&] { return engine_.num_running() == 0; }));
  EXPECT_EQ(engine_.num_cancelled, 8);
}

}  // namespace
}  // namespace vayu::server
