#include "apps/client/openai_api.h"

#include <gtest/gtest.h>

namespace vayu::client {
namespace {

StreamEvent parsed(std::string_view data) {
  auto event = parse_stream_event(data);
  EXPECT_TRUE(event.ok()) << data;
  return event.ok() ? *event : StreamEvent{};
}

TEST(StreamEvent, ChatDeltas) {
  const StreamEvent role = parsed(R"({"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]})");
  EXPECT_FALSE(role.has_token);
  const StreamEvent text = parsed(R"({"choices":[{"delta":{"content":"hi"},"finish_reason":null}],"usage":null})");
  EXPECT_TRUE(text.has_token);
  EXPECT_EQ(text.text, "hi");
  EXPECT_FALSE(text.usage);
  const StreamEvent last = parsed(R"({"choices":[{"delta":{},"finish_reason":"stop"}]})");
  EXPECT_FALSE(last.has_token);
  EXPECT_EQ(last.finish_reason, "stop");
  for (const char* key : {"reasoning_content", "reasoning"}) {
    const StreamEvent thought = parsed(fmt::format(R"({{"choices":[{{"delta":{{"{}":"hm"}}}}]}})", key));
    EXPECT_TRUE(thought.has_token);
    EXPECT_EQ(thought.reasoning, "hm");
    EXPECT_EQ(thought.text, "");
  }
}

TEST(StreamEvent, CompletionTextWithoutCharactersIsStillAToken) {
  EXPECT_TRUE(parsed(R"({"choices":[{"text":"","finish_reason":null}]})").has_token);
  EXPECT_FALSE(parsed(R"({"choices":[{"text":"","finish_reason":"length"}]})").has_token);
  EXPECT_TRUE(parsed(R"({"choices":[{"text":"x","finish_reason":"length"}]})").has_token);
}

TEST(StreamEvent, UsageErrorAndEnd) {
  const StreamEvent usage = parsed(
      R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}})");
  ASSERT_TRUE(usage.usage);
  EXPECT_EQ(usage.usage->prompt_tokens, 7);
  EXPECT_EQ(usage.usage->completion_tokens, 3);
  EXPECT_EQ(usage.usage->cached_tokens, 4);
  EXPECT_EQ(parsed(R"({"error":{"message":"broken"}})").error->message, "broken");
  EXPECT_TRUE(parsed("[DONE]").done);
  for (const char* bad : {"", "[]", "{\"choices\":", "null"}) EXPECT_FALSE(parse_stream_event(bad).ok()) << bad;
  EXPECT_FALSE(parsed(R"({"choices":[7],"usage":3})").has_token);
}

TEST(HttpError, KindMessageAndLabel) {
  const Error nested = http_error({429, R"({"error":{"message":"queue is full"}})"});
  EXPECT_EQ(nested.kind, ErrorKind::kResourceExhausted);
  EXPECT_EQ(nested.message, "HTTP 429: queue is full");
  EXPECT_EQ(nested.field, "http 429");
  EXPECT_EQ(http_error({400, R"({"object":"error","message":"flat"})"}).message, "HTTP 400: flat");
  EXPECT_EQ(http_error({502, "<html>"}).kind, ErrorKind::kInternal);
}

TEST(Url, Parts) {
  const auto expect = [](std::string_view text, std::string host, std::string port, std::string path) {
    auto url = parse_url(text);
    ASSERT_TRUE(url.ok()) << text;
    EXPECT_EQ(url->host, host);
    EXPECT_EQ(url->port, port);
    EXPECT_EQ(url->path, path);
  };
  expect("http://127.0.0.1:8000", "127.0.0.1", "8000", "");
  expect("localhost:81/", "localhost", "81", "");
  expect("http://[::1]:9/api/", "::1", "9", "/api");
  expect("http://example", "example", "80", "");
  for (const char* bad : {"", "https://x", "ftp://x", "http://:80", "http://x:", "http://x:99999", "http://x:8a",
                          "http://[::1", "http://u@x", "http://x/a b", "http://x\r\ny"}) {
    EXPECT_FALSE(parse_url(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace vayu::client
