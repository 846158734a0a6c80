// Routes, keys, limits, readiness: everything but generated text.
#include <gtest/gtest.h>

#include "server/limits.h"
#include "server/routes.h"
#include "server/test_server.h"

namespace vayu::server {
namespace {

TEST_F(ServerTest, LoadingServerIsAliveAndNotReady) {
  start({}, /*attach_model=*/false);
  EXPECT_EQ(call("GET", "/health").status, 200);
  EXPECT_EQ(call("GET", "/ready").status, 503);
  for (const Route& route : route_table()) {
    if (!route.needs_model) continue;
    const ClientResponse response = call(std::string(route.method), std::string(route.path), "{}");
    EXPECT_EQ(response.status, 503) << route.path;
    EXPECT_EQ(response.headers.count("retry-after"), 1u) << route.path;
    EXPECT_TRUE(response.json()["error"]["message"].is_string());
  }
  EXPECT_EQ(call("GET", "/metrics").status, 200);
  EXPECT_EQ(call("GET", "/stats").json()["ready"], false);
  attach();
  EXPECT_EQ(call("GET", "/ready").status, 200);
  EXPECT_EQ(call("GET", "/v1/models").status, 200);
}

TEST_F(ServerTest, EveryRouteButTheOpenOnesNeedsAKey) {
  ServerConfig config;
  config.api_keys = {"secret", "other"};
  start(config);
  std::vector<std::string> paths = {"/nowhere", "/v1", "/%zz"};
  for (const Route& route : route_table()) {
    if (!route.open) paths.emplace_back(route.path);
  }
  for (const std::string& path : paths) {
    const std::string escaped = path[1] == '%' ? path : fmt::format("/%{:02x}{}", path[1], path.substr(2));
    for (const std::string& target : {path, path + "/", "/" + path, escaped, "/health/.." + path,
                                      "http://localhost" + path, path + "?key=secret"}) {
      for (const char* method : {"GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "BREW"}) {
        for (const char* header : {"", "Authorization: Bearer wrong\r\n", "Authorization: Basic secret\r\n",
                                   "Authorization: Bearer\r\n", "Authorization: secret\r\n"}) {
          const ClientResponse response = call(method, target, "", header);
          EXPECT_EQ(response.status, 401) << method << " " << target << " " << header;
          if (std::string(method) != "HEAD") {
            EXPECT_EQ(response.json()["error"]["code"], "invalid_api_key") << response.body;
          }
        }
      }
    }
  }
  for (const char* scheme : {"Bearer", "bearer", "BEARER"}) {
    const std::string header = fmt::format("Authorization: {} other\r\n", scheme);
    EXPECT_EQ(call("GET", "/v1/models", "", header).status, 200) << scheme;
    EXPECT_EQ(call("GET", "/nowhere", "", header).status, 404) << scheme;
  }
  EXPECT_EQ(call("GET", "/health").status, 200);
  EXPECT_EQ(call("GET", "/ready").status, 200);
}

TEST_F(ServerTest, TenantsDoNotShareACacheNamespace) {
  ServerConfig config;
  config.api_keys = {"a", "b"};
  start(config);
  std::vector<std::string> names;
  for (const char* key : {"a", "b", "a"}) {
    call("POST", "/v1/completions", R"({"prompt": "x"})", fmt::format("Authorization: Bearer {}\r\n", key));
    names.push_back(engine_.last_request.cache_namespace);
  }
  EXPECT_NE(names[0], names[1]);
  EXPECT_EQ(names[0], names[2]);
  call("POST", "/v1/completions", R"({"prompt": "x", "cache_salt": "s"})", "Authorization: Bearer a\r\n");
  EXPECT_NE(engine_.last_request.cache_namespace, names[0]);
}

TEST_F(ServerTest, MethodsAndUnknownRoutes) {
  start();
  const ClientResponse wrong = call("GET", "/v1/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "POST, OPTIONS");
  EXPECT_EQ(call("POST", "/health", "{}").status, 405);
  const ClientResponse options = call("OPTIONS", "/v1/models");
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.headers.at("allow"), "GET, HEAD, OPTIONS");
  const ClientResponse head = call("HEAD", "/health");
  EXPECT_EQ(head.status, 200);
  EXPECT_GT(std::stoi(head.headers.at("content-length")), 0);
  const ClientResponse missing = call("GET", "/v2/nothing");
  EXPECT_EQ(missing.status, 404);
  EXPECT_TRUE(missing.json()["error"]["message"].is_string());
  for (const char* target : {"//v1//models/", "/%761/models", "http://any/v1/models", "/v1/x/../models"}) {
    EXPECT_EQ(call("GET", target).status, 200) << target;
  }
}

TEST_F(ServerTest, ModelsAndIdentity) {
  start();
  const Json models = call("GET", "/v1/models").json();
  EXPECT_EQ(models["data"].size(), 2u);
  EXPECT_EQ(models["data"][0]["id"], "fake");
  EXPECT_EQ(models["data"][0]["max_model_len"], 2000);
  EXPECT_EQ(call("GET", "/v1/models/alias/two").json()["id"], "alias/two");
  const ClientResponse unknown = call("GET", "/v1/models/..%2f..%2fetc%2fpasswd");
  EXPECT_EQ(unknown.status, 404);
  for (const char* name : {"../x", "/etc/passwd", "%2e%2e", "a\\\\b", "gpt-4"}) {
    const ClientResponse response = complete(fmt::format(R"("model": "{}")", name));
    EXPECT_EQ(response.status, 404) << name;
    EXPECT_EQ(response.json()["error"]["code"], "model_not_found");
  }
  EXPECT_EQ(complete(R"("model": "alias/two")").json()["model"], "alias/two");
  EXPECT_EQ(complete(R"("model": null)").json()["model"], "fake");
  EXPECT_EQ(call("GET", "/version").json()["version"], "0.1.0");
}

TEST_F(ServerTest, RequestIdsAreEchoedWhenHarmless) {
  start();
  EXPECT_EQ(call("GET", "/health", "", "X-Request-Id: abc-1.2\r\n").headers.at("x-request-id"), "abc-1.2");
  EXPECT_NE(call("GET", "/health", "", "X-Request-Id: a b\"c\r\n").headers.at("x-request-id"), "a b\"c");
  const ClientResponse answer = call("POST", "/v1/completions", R"({"prompt": "x"})", "X-Request-Id: mine\r\n");
  EXPECT_EQ(answer.json()["id"], "cmpl-mine");
}

TEST_F(ServerTest, KeepAliveAndPipelining) {
  start();
  TestClient client(port_);
  client.send(http_request("GET", "/health") + http_request("POST", "/v1/completions", R"({"prompt": "x"})") +
              http_request("GET", "/version"));
  EXPECT_EQ(client.read_response().status, 200);
  EXPECT_EQ(client.read_response().json()["object"], "text_completion");
  EXPECT_EQ(client.read_response().json()["version"], "0.1.0");
  client.send(http_request("GET", "/health", "", "Connection: close\r\n"));
  EXPECT_EQ(client.read_response().status, 200);
  EXPECT_TRUE(client.at_end());
}

TEST_F(ServerTest, HeaderLimits) {
  start();
  EXPECT_EQ(call("GET", "/health", "", "X-Big: " + std::string(64 * 1024, 'a') + "\r\n").status, 431);
  std::string many;
  for (int i = 0; i < 10'000; ++i) many += "X-H" + std::to_string(i) + ": 1\r\n";
  EXPECT_EQ(call("GET", "/health", "", many).status, 431);
  std::string some;
  for (size_t i = 0; i < kMaxHeaders + 1; ++i) some += "X-H: 1\r\n";
  EXPECT_EQ(call("GET", "/health", "", some).status, 431);
  EXPECT_EQ(call("GET", "/" + std::string(kMaxTargetBytes, 'a')).status, 414);
  EXPECT_EQ(call("GET", "/health").status, 200);
}

TEST_F(ServerTest, MalformedHttp) {
  start();
  for (const char* bytes :
       {"\x16\x03\x01\x02garbage\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET /health\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n12345",
        "POST /tokenize HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"}) {
    TestClient client(port_);
    client.send(bytes);
    EXPECT_EQ(client.read_response().status, 400) << bytes;
    EXPECT_TRUE(client.at_end()) << bytes;
  }
}

TEST_F(ServerTest, BodyLimits) {
  ServerConfig config;
  config.max_body_bytes = 100'000;
  start(config);
  EXPECT_EQ(call("POST", "/tokenize", "", "Content-Length: 1073741824\r\n").status, 413);
  EXPECT_EQ(call("POST", "/tokenize", "{\"prompt\":\"" + std::string(200'000, 'a') + "\"}").status, 413);
  TestClient client(port_);
  client.send("POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = "8000\r\n" + std::string(0x8000, 'a') + "\r\n";
  for (int i = 0; i < 10 && client.send(chunk); ++i) continue;
  EXPECT_EQ(client.read_response().status, 413);

  TestClient expecting(port_);
  expecting.send("POST /tokenize HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 14\r\n\r\n");
  EXPECT_EQ(expecting.read_response().status, 100);
  expecting.send("{\"prompt\":\"a\"}");
  EXPECT_EQ(expecting.read_response().json()["count"], 2);

  TestClient refused(port_);
  refused.send("POST /tokenize HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1400000\r\n\r\n");
  EXPECT_EQ(refused.read_response().status, 413);
}

TEST_F(ServerTest, SlowHeadersAndBodiesTimeOut) {
  ServerConfig config;
  config.header_timeout_ms = 100;
  config.body_timeout_ms = 100;
  config.idle_timeout_ms = 100;
  start(config);
  TestClient slow_header(port_);
  TestClient slow_body(port_);
  TestClient idle(port_);
  slow_header.send("GET /health HT");
  slow_body.send("POST /tokenize HTTP/1.1\r\nContent-Length: 20\r\n\r\n{\"pr");
  EXPECT_EQ(slow_header.read_response().status, 408);
  EXPECT_EQ(slow_body.read_response().status, 408);
  EXPECT_TRUE(idle.at_end());
  EXPECT_EQ(call("GET", "/health").status, 200);
}

TEST_F(ServerTest, ConnectionLimit) {
  ServerConfig config;
  config.max_connections = 3;
  start(config);
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<TestClient>(port_));
    clients.back()->send(http_request("GET", "/health"));
    EXPECT_EQ(clients.back()->read_response().status, 200);
  }
  TestClient extra(port_);
  EXPECT_EQ(extra.read_response().status, 503);
  clients.clear();
  EXPECT_TRUE(eventually([&] { return call("GET", "/health").status == 200; }));
}

TEST_F(ServerTest, ManyIdleConnections) {
  start();
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < 400; ++i) clients.push_back(std::make_unique<TestClient>(port_));
  for (const auto& client : clients) ASSERT_TRUE(client->connected());
  EXPECT_EQ(call("GET", "/health").status, 200);
  clients.back()->send(http_request("GET", "/health"));
  EXPECT_EQ(clients.back()->read_response().status, 200);
}

TEST_F(ServerTest, HealthTurnsBadOnlyWhenNoStepEnds) {
  ServerConfig config;
  config.stall_timeout_ms = 1000;
  start(config);
  engine_.step_running_since_us = clock_.now_us();
  EXPECT_EQ(call("GET", "/health").status, 200);
  engine_.step_running_since_us = clock_.now_us() - 1'100'000;
  EXPECT_EQ(call("GET", "/health").status, 503);
  EXPECT_EQ(call("GET", "/ready").status, 200);
  engine_.step_running_since_us = 0;
  EXPECT_EQ(call("GET", "/health").status, 200);
}

TEST_F(ServerTest, FailedEngineShowsInHealthReadyAndRequests) {
  start();
  EXPECT_EQ(call("GET", "/ready").status, 200);
  engine_.failed = "the engine has failed: no device";
  for (const char* path : {"/health", "/ready", "/v1/models"}) {
    const ClientResponse response = call("GET", path);
    EXPECT_EQ(response.status, 503) << path;
    EXPECT_NE(response.body.find("no device"), std::string::npos) << path;
  }
  EXPECT_EQ(complete(R"("n": 1)").status, 503);
  EXPECT_EQ(Json::parse(call("GET", "/stats").body)["ready"], false);
  EXPECT_EQ(call("GET", "/version").status, 200);
}

TEST_F(ServerTest, TokenizeAndDetokenize) {
  start();
  const Json raw =
      call("POST", "/tokenize", R"({"model": "fake", "prompt": "a<eos>", "return_token_strs": true})").json();
  EXPECT_EQ(raw["tokens"], (std::vector<int>{256, 'a', 257}));
  EXPECT_EQ(raw["token_strs"][2], "<eos>");
  EXPECT_EQ(raw["max_model_len"], 2000);
  EXPECT_EQ(call("POST", "/tokenize", R"({"prompt": "a", "add_special_tokens": false})").json()["tokens"],
            (std::vector<int>{'a'}));
  const Json chat = call("POST", "/tokenize", R"({"messages": [{"role": "user", "content": "<eos>"}]})").json();
  EXPECT_EQ(chat["prompt"], "<|turn|>user\n<eos><|end|><|turn|>assistant\n");
  // The mark in the content stays text; those of the template are control ids.
  const auto ids = chat["tokens"].get<std::vector<int>>();
  EXPECT_EQ(ids.front(), FakeTokenizer::kTurn);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), FakeTokenizer::kEos), 0);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), FakeTokenizer::kEnd), 1);
  EXPECT_EQ(call("POST", "/detokenize", R"({"tokens": [104, 105, 257]})").json()["prompt"], "hi<eos>");
  EXPECT_EQ(call("POST", "/detokenize", R"({"tokens": [260]})").json()["error"]["param"], "tokens");
  EXPECT_EQ(call("POST", "/tokenize", "{\"prompt\":").status, 400);
}

TEST_F(ServerTest, DeepJsonIsRefusedAndHealthAnswers) {
  start();
  for (const char* field : {"prompt", "messages", "tools", "other"}) {
    const std::string body = "{\"" + std::string(field) + "\":" + std::string(5'000'000, '[');
    EXPECT_EQ(call("POST", "/v1/chat/completions", body).status, 400) << field;
    EXPECT_EQ(call("GET", "/health").status, 200);
  }
}

TEST_F(ServerTest, MetricsAndStats) {
  start();
  complete(R"("max_tokens": 5)");
  EXPECT_EQ(metric(R"(vllm:request_success_total{engine="0",finished_reason="stop",model_name="fake"})"), "1");
  EXPECT_EQ(metric(R"(vllm:time_to_first_token_seconds_count{engine="0",model_name="fake"})"), "1");
  EXPECT_EQ(metric(R"(vllm:inter_token_latency_seconds_count{engine="0",model_name="fake"})"), "2");
  EXPECT_EQ(metric(R"(vllm:request_queue_time_seconds_count{engine="0",model_name="fake"})"), "1");
  EXPECT_EQ(metric(R"(vllm:kv_cache_usage_perc{engine="0",model_name="fake"})"), "0.3");
  const Json stats = call("GET", "/stats").json();
  EXPECT_EQ(stats["kv"]["total"], 100);
  EXPECT_EQ(stats["kv"]["used"], 30);
  EXPECT_EQ(stats["requests_total"], 1);
  EXPECT_TRUE(stats["ttft_ms"]["p95"].is_number());
  EXPECT_EQ(stats["model"], "fake");
}

TEST_F(ServerTest, BrowsersOfOtherSitesCannotSendForms) {
  start();
  const std::string body = R"({"prompt": "a"})";
  const std::string text = "POST /tokenize HTTP/1.1\r\nContent-Length: 15\r\nContent-Type: text/plain\r\n";
  TestClient browser(port_);
  browser.send(text + "Origin: http://evil\r\n\r\n" + body);
  EXPECT_EQ(browser.read_response().status, 415);
  TestClient plain(port_);
  plain.send(text + "\r\n" + body);
  EXPECT_EQ(plain.read_response().status, 200);
  EXPECT_EQ(call("POST", "/tokenize", body, "Origin: http://evil\r\n").headers.count("access-control-allow-origin"),
            0u);
}

TEST_F(ServerTest, ThePageIsServedWithoutAKey) {
  ServerConfig config;
  config.api_keys = {"k"};
  start(config);
  const ClientResponse page = call("GET", "/");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_NE(page.body.find("</html>"), std::string::npos);
}

TEST_F(ServerTest, APortInUseIsAnError) {
  start();
  ServerConfig config;
  config.port = port_;
  Server second(config, clock_);
  const auto result = second.start();
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().kind, ErrorKind::kIo);
  EXPECT_NE(result.error().message.find(std::to_string(port_)), std::string::npos);
}

}  // namespace
}  // namespace vayu::server
