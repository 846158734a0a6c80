// A server over the fakes on a free port, and short ways to call it.
#pragma once

#include <chrono>
#include <thread>

#include "server/test_client.h"
#include "server/test_fakes.h"

namespace vayu::server {

struct Streamed {
  std::string text;
  std::string finish;
  int finishes = 0;
  int parts = 0;  // events with a choice
  nlohmann::ordered_json usage;
  bool done = false;
};

// Joins the events of one choice.
inline Streamed joined(const ClientResponse& response, int index = 0) {
  Streamed result;
  const auto events = response.events();
  for (size_t i = 0; i < events.size(); ++i) {
    if (events[i] == "[DONE]") {
      EXPECT_EQ(i + 1, events.size());
      result.done = true;
      continue;
    }
    const auto event = nlohmann::ordered_json::parse(events[i]);
    if (event.contains("usage") && !event["usage"].is_null()) result.usage = event["usage"];
    if (!event.contains("choices")) continue;
    for (const auto& choice : event["choices"]) {
      if (choice["index"] != index) continue;
      ++result.parts;
      if (choice.contains("text"))
        result.text += choice["text"].get<std::string>();
      else
        result.text += choice["delta"].value("content", "");
      if (!choice["finish_reason"].is_null()) {
        result.finish = choice["finish_reason"];
        ++result.finishes;
      }
    }
  }
  return result;
}

class ServerTest : public ::testing::Test {
 protected:
  using Json = nlohmann::ordered_json;

  void TearDown() override { server_.reset(); }

  void start(ServerConfig config = {}, bool attach_model = true, bool adds_bos = true) {
    config.port = 0;
    if (config.model_names == std::vector<std::string>{"model"}) config.model_names = {"fake", "alias/two"};
    server_ = std::make_unique<Server>(config, clock_);
    const auto port = server_->start();
    ASSERT_TRUE(port.ok()) << port.error().message;
    port_ = *port;
    tokenizer_ = std::make_shared<FakeTokenizer>(adds_bos);
    if (attach_model) attach();
  }
  void attach(std::shared_ptr<const ChatTemplate> chat_template = std::make_shared<FakeTemplate>()) {
    server_->attach({&engine_, tokenizer_, std::move(chat_template), "", ""});
  }

  ClientResponse call(const std::string& method, const std::string& target, const std::string& body = {},
                      const std::string& headers = {}) {
    TestClient client(port_);
    client.send(http_request(method, target, body, headers));
    return client.read_response(method == "HEAD");
  }
  ClientResponse complete(const std::string& fields) {
    return call("POST", "/v1/completions", R"({"prompt": "hi", )" + fields + "}");
  }
  ClientResponse chat(const std::string& fields) {
    return call("POST", "/v1/chat/completions", R"({"messages": [{"role": "user", "content": "hi"}], )" + fields + "}");
  }
  // Body fields that make the engine answer with these bytes, then the end id.
  static std::string forced(const std::string& text, bool end = true) {
    std::string ids;
    for (const char c : text) ids += std::to_string(static_cast<unsigned char>(c)) + ",";
    if (end) ids += std::to_string(FakeTokenizer::kEos) + ",";
    ids.pop_back();
    return R"("vayu_debug": {"forced_ids": [)" + ids + "]}";
  }
  static ServerConfig with_hooks() {
    ServerConfig config;
    config.debug_hooks = true;
    return config;
  }

  template <class Condition>
  static bool eventually(Condition condition) {
    for (int i = 0; i < 2000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }
  std::string metric(const std::string& name_and_labels) {
    const std::string text = call("GET", "/metrics").body;
    const size_t at = text.find(name_and_labels + " ");
    if (at == std::string::npos) return "absent";
    const size_t begin = at + name_and_labels.size() + 1;
    return text.substr(begin, text.find('\n', begin) - begin);
  }

  SteadyClock clock_;
  FakeEngine engine_{clock_};
  std::shared_ptr<FakeTokenizer> tokenizer_;
  std::unique_ptr<Server> server_;
  uint16_t port_ = 0;
};

}  // namespace vayu::server
