// Completions and chat: shapes, streams, stop strings, log-probabilities.
#include <gtest/gtest.h>

#include "server/test_server.h"

namespace vayu::server {
namespace {

using Json = nlohmann::ordered_json;

TEST_F(ServerTest, CompletionShape) {
  start();
  const ClientResponse response = complete(R"("max_tokens": 10)");
  EXPECT_EQ(response.status, 200);
  const Json json = response.json();
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_EQ(json["choices"][0]["text"], "ok");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(json["choices"][0]["logprobs"].is_null());
  EXPECT_EQ(json["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(json["usage"]["completion_tokens"], 3);
  EXPECT_EQ(json["usage"]["total_tokens"], 6);
  EXPECT_EQ(complete(R"("max_tokens": 1)").json()["choices"][0]["finish_reason"], "length");
}

TEST_F(ServerTest, ChatShape) {
  start();
  const Json json = chat(R"("max_tokens": 10)").json();
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(json["choices"][0]["message"]["content"], "ok");
  // Only the template's marks: no <bos> although the tokenizer adds one to raw prompts.
  EXPECT_EQ(engine_.last_request.prompt.front(), FakeTokenizer::kTurn);
  // Without max_tokens a chat answer may fill the context.
  chat(R"("n": 1)");
  EXPECT_EQ(engine_.last_request.sampling.max_tokens, 2000 - static_cast<int>(engine_.last_request.prompt.size()));
  complete(R"("n": 1)");
  EXPECT_EQ(engine_.last_request.sampling.max_tokens, 16);
}

TEST_F(ServerTest, ChatStreamFollowsTheRules) {
  start(with_hooks());
  const ClientResponse response = chat(R"("stream": true, )" + forced("abc"));
  EXPECT_EQ(response.headers.at("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_TRUE(response.complete);
  const auto events = response.events();
  ASSERT_EQ(events.size(), 5u);  // a token each for a, b, c and the end id; [DONE]
  const Json first = Json::parse(events[0]);
  EXPECT_EQ(first["object"], "chat.completion.chunk");
  EXPECT_EQ(first["choices"][0]["delta"].dump(), R"({"role":"assistant","content":"a"})");
  EXPECT_EQ(Json::parse(events[1])["choices"][0]["delta"].dump(), R"({"content":"b"})");
  const Json last = Json::parse(events[3]);
  EXPECT_EQ(last["choices"][0]["delta"].dump(), "{}");
  EXPECT_EQ(last["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(events[4], "[DONE]");
  EXPECT_EQ(joined(response).finishes, 1);
  EXPECT_FALSE(first.contains("usage"));
}

TEST_F(ServerTest, UsageOnlyWhenAsked) {
  start();
  for (const char* n : {"1", "2"}) {
    for (const char* options : {"null", "{}", R"({"include_usage": false})", R"({"continuous_usage_stats": true})"}) {
      const auto response = complete(fmt::format(R"("stream": true, "n": {}, "stream_options": {})", n, options));
      EXPECT_TRUE(joined(response).usage.is_null()) << options;
      EXPECT_TRUE(joined(response).done);
    }
    const Json plain = complete(fmt::format(R"("n": {})", n)).json();
    const auto response =
        complete(fmt::format(R"("stream": true, "n": {}, "stream_options": {{"include_usage": true}})", n));
    const auto events = response.events();
    int with_usage = 0;
    for (const std::string& event : events) with_usage += event != "[DONE]" && !Json::parse(event)["usage"].is_null();
    EXPECT_EQ(with_usage, 1);
    const Json last = Json::parse(events[events.size() - 2]);
    EXPECT_TRUE(last["choices"].empty());
    EXPECT_EQ(last["usage"], plain["usage"]);
  }
  const auto continuous =
      complete(R"("stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true})");
  EXPECT_EQ(Json::parse(continuous.events()[0])["usage"]["completion_tokens"], 1);
}

TEST_F(ServerTest, StreamEqualsNonStream) {
  start(with_hooks());
  const std::vector<std::string> texts = {"north east south west",
                                          "क्षि தமிழ் 漢字 👩‍👩‍👧 done", "plain"};
  const std::vector<std::string> stops = {
      R"("t south w")", R"(["eas","east","st s"])", R"("south e")", R"("தமிழ்")", R"("k")", "[]"};
  for (const std::string& text : texts) {
    for (const std::string& stop : stops) {
      for (const int max_tokens : {5, 8, 1000}) {
        const std::string fields =
            fmt::format(R"("max_tokens": {}, "stop": {}, "stream_options": {{"include_usage": true}}, {})", max_tokens,
                        stop, forced(text));
        for (const bool chat_route : {false, true}) {
          const auto plain = chat_route ? chat(fields) : complete(fields);
          const auto stream =
              chat_route ? chat(fields + R"(, "stream": true)") : complete(fields + R"(, "stream": true)");
          const Json choice = plain.json()["choices"][0];
          const Streamed streamed = joined(stream);
          EXPECT_EQ(streamed.text, chat_route ? choice["message"]["content"] : choice["text"]) << fields;
          EXPECT_EQ(streamed.finish, choice["finish_reason"]) << fields;
          EXPECT_EQ(streamed.usage, plain.json()["usage"]) << fields;
          EXPECT_EQ(streamed.parts, plain.json()["usage"]["completion_tokens"]) << fields;
        }
      }
    }
  }
  EXPECT_TRUE(eventually([&] { return engine_.num_running() == 0; }));
}

TEST_F(ServerTest, StopStringsEndTheAnswer) {
  start(with_hooks());
  const auto answer = [&](const std::string& stop) {
    return complete(R"("max_tokens": 100, "ignore_eos": true, "stop": )" + stop + ", " +
                    forced("north east south west"))
        .json();
  };
  EXPECT_EQ(answer(R"("t south w")")["choices"][0]["text"], "north eas");
  EXPECT_EQ(answer(R"("t south w")")["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(answer(R"("t south w")")["choices"][0]["stop_reason"], "t south w");
  EXPECT_EQ(answer(R"("t south w")")["usage"]["completion_tokens"], 18);
  EXPECT_EQ(answer(R"(["eas","east","st s"])")["choices"][0]["text"], "north ");
  EXPECT_EQ(answer(R"("west", "include_stop_str_in_output": true)")["choices"][0]["text"], "north east south west");
  EXPECT_EQ(answer(R"("north", "min_tokens": 6)")["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(eventually([&] { return engine_.num_running() == 0; }));
}

TEST_F(ServerTest, ErrorBeforeTheFirstTokenIsAPlainStatus) {
  start(with_hooks());
  for (const char* stream : {"true", "false"}) {
    const auto response = complete(fmt::format(R"("stream": {}, "vayu_debug": {{"fail_at_token": 0}})", stream));
    EXPECT_EQ(response.status, 500);
    EXPECT_EQ(response.json()["error"]["message"], "The logits are not finite.");
  }
}

TEST_F(ServerTest, ErrorLaterEndsTheStreamOnce) {
  start(with_hooks());
  const auto response = chat(R"("stream": true, "ignore_eos": true, "vayu_debug": {"fail_at_token": 5})");
  EXPECT_EQ(response.status, 200);
  EXPECT_TRUE(response.complete);
  const auto events = response.events();
  ASSERT_EQ(events.size(), 7u);
  EXPECT_EQ(Json::parse(events[5])["error"]["type"], "server_error");
  EXPECT_EQ(events[6], "[DONE]");
  EXPECT_EQ(joined(response).finishes, 0);
  EXPECT_EQ(complete(R"("ignore_eos": true, "vayu_debug": {"fail_at_token": 5})").status, 500);
}

TEST_F(ServerTest, EngineRefusalsBecomeStatuses) {
  start();
  engine_.refuse_with = make_error(ErrorKind::kResourceExhausted, "queue full");
  EXPECT_EQ(complete(R"("stream": true)").status, 429);
  engine_.refuse_with = make_error(ErrorKind::kInvalidArgument, "can never fit");
  EXPECT_EQ(complete(R"("n": 2)").status, 400);
  engine_.refuse_with = make_error(ErrorKind::kUnavailable, "shutting down");
  EXPECT_EQ(chat(R"("n": 2)").status, 503);
}

TEST_F(ServerTest, SeveralPromptsAndAnswers) {
  start();
  const Json json = call("POST", "/v1/completions", R"({"prompt": ["a", "bc", "d"], "n": 2})").json();
  ASSERT_EQ(json["choices"].size(), 6u);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(json["choices"][i]["index"], i);
  EXPECT_EQ(json["usage"]["prompt_tokens"], 7);
  EXPECT_EQ(json["usage"]["completion_tokens"], 18);
  const auto stream = call("POST", "/v1/completions", R"({"prompt": [[1], [2]], "n": 2, "stream": true})");
  for (int i = 0; i < 4; ++i) EXPECT_EQ(joined(stream, i).text, "ok");
  EXPECT_TRUE(joined(stream).done);
}

TEST_F(ServerTest, EmptyPrompts) {
  start({}, true, /*adds_bos=*/false);
  for (const char* prompt : {"\"\"", "[\"\"]", "[]", "[[]]", "null"}) {
    const auto response = call("POST", "/v1/completions", fmt::format(R"({{"prompt": {}}})", prompt));
    EXPECT_EQ(response.status, 400) << prompt;
    EXPECT_EQ(response.json()["error"]["param"], "prompt") << prompt;
  }
  EXPECT_EQ(call("POST", "/v1/chat/completions", R"({"messages": []})").json()["error"]["param"], "messages");
  EXPECT_EQ(call("POST", "/v1/chat/completions", R"({"messages": [{"role": "forbidden"}]})").status, 400);
}

TEST_F(ServerTest, ContextLimit) {
  start();
  const auto prompt = [&](size_t tokens) {  // with <bos>
    return call("POST", "/v1/completions", "{\"prompt\":\"" + std::string(tokens - 1, 'a') + "\",\"max_tokens\":50}");
  };
  EXPECT_EQ(prompt(1999).status, 200);
  EXPECT_EQ(engine_.last_request.sampling.max_tokens, 1);
  for (const size_t tokens : {2000ul, 2001ul}) {
    const auto response = prompt(tokens);
    EXPECT_EQ(response.status, 400);
    const std::string message = response.json()["error"]["message"];
    EXPECT_NE(message.find(std::to_string(tokens)), std::string::npos) << message;
    EXPECT_NE(message.find("2000"), std::string::npos) << message;
  }
  EXPECT_EQ(prompt(1'000'000).status, 400);
}

TEST_F(ServerTest, Logprobs) {
  start();
  const Json completion = complete(R"("logprobs": 2, "max_tokens": 3)").json()["choices"][0]["logprobs"];
  EXPECT_EQ(completion["tokens"].dump(), R"(["o","k","<eos>"])");
  EXPECT_EQ(completion["token_logprobs"].dump(), "[-0.5,-0.5,-0.5]");
  EXPECT_EQ(completion["top_logprobs"][0].dump(), R"({"o":-0.5,"p":-1.5})");
  EXPECT_EQ(completion["text_offset"].dump(), "[0,1,2]");
  const Json content = chat(R"("logprobs": true, "top_logprobs": 2)").json()["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 3u);
  EXPECT_EQ(content[0].dump(),
            R"({"token":"o","logprob":-0.5,"bytes":[111],"top_logprobs":[)"
            R"({"token":"o","logprob":-0.5,"bytes":[111]},{"token":"p","logprob":-1.5,"bytes":[112]}]})");
  const auto stream = chat(R"("logprobs": true, "stream": true)");
  EXPECT_EQ(Json::parse(stream.events()[0])["choices"][0]["logprobs"]["content"][0]["token"], "o");
  EXPECT_EQ(chat(R"("logprobs": true, "top_logprobs": 20, "n": 64)").status, 400);
}

TEST_F(ServerTest, Echo) {
  start();
  const Json choice = complete(R"("echo": true, "logprobs": 1, "max_tokens": 1)").json()["choices"][0];
  EXPECT_EQ(choice["text"], "hio");
  EXPECT_EQ(choice["logprobs"]["tokens"].dump(), R"(["<bos>","h","i","o"])");
  EXPECT_TRUE(choice["logprobs"]["token_logprobs"][0].is_null());
  EXPECT_TRUE(choice["logprobs"]["top_logprobs"][0].is_null());
  const Json alone = complete(R"("echo": true, "logprobs": 1, "max_tokens": 0)").json();
  EXPECT_EQ(alone["choices"][0]["text"], "hi");
  EXPECT_EQ(alone["choices"][0]["logprobs"]["tokens"].size(), 3u);
  EXPECT_EQ(alone["usage"]["completion_tokens"], 0);
  const auto stream = complete(R"("echo": true, "logprobs": 1, "max_tokens": 2, "stream": true)");
  EXPECT_EQ(joined(stream).text, "hiok");
  EXPECT_EQ(Json::parse(stream.events()[0])["choices"][0]["logprobs"]["tokens"].size(), 4u);
  EXPECT_EQ(Json::parse(stream.events()[1])["choices"][0]["logprobs"]["text_offset"][0], 8);
  EXPECT_EQ(joined(complete(R"("echo": true, "max_tokens": 0, "stream": true)")).text, "hi");
  const Json ids = call("POST", "/v1/completions", R"({"prompt": [104, 105], "echo": true})").json();
  EXPECT_EQ(ids["choices"][0]["text"], "hiok");
}

TEST_F(ServerTest, TokenIds) {
  start();
  const Json completion = complete(R"("return_token_ids": true)").json();
  EXPECT_EQ(completion["choices"][0]["token_ids"].dump(), "[111,107,257]");
  EXPECT_EQ(completion["choices"][0]["prompt_token_ids"].dump(), "[256,104,105]");
  EXPECT_EQ(completion["prompt_token_ids"].dump(), "[256,104,105]");
  const Json answer = chat(R"("return_token_ids": true)").json();
  EXPECT_EQ(answer["choices"][0]["token_ids"].dump(), "[111,107,257]");
  EXPECT_EQ(answer["prompt_token_ids"][0], FakeTokenizer::kTurn);
  const auto events = chat(R"("return_token_ids": true, "stream": true)").events();
  EXPECT_EQ(Json::parse(events[0])["prompt_token_ids"][0], FakeTokenizer::kTurn);
  EXPECT_FALSE(Json::parse(events[1]).contains("prompt_token_ids"));
  EXPECT_EQ(Json::parse(events[1])["choices"][0]["token_ids"].dump(), "[107]");
}

TEST_F(ServerTest, ContinueFinalMessage) {
  start();
  const auto prompt = [&](const std::string& content, const std::string& fields) {
    const auto response =
        call("POST", "/tokenize",
             R"({"messages": [{"role": "user", "content": "So"}, {"role": "assistant", "content": ")" + content +
                 "\"}]" + fields + "}");
    return response.status == 200 ? response.json()["prompt"].get<std::string>() : std::to_string(response.status);
  };
  const std::string head = "<|turn|>user\nSo<|end|><|turn|>assistant\n";
  EXPECT_EQ(prompt("So it", R"(, "continue_final_message": true)"), head + "So it");
  EXPECT_EQ(prompt("end", R"(, "continue_final_message": true, "add_generation_prompt": false)"), head + "end");
  EXPECT_EQ(prompt("So", R"(, "add_generation_prompt": false)"), head + "So<|end|>");
  EXPECT_EQ(prompt("So", ""), head + "So<|end|><|turn|>assistant\n");
  EXPECT_EQ(prompt("So", R"(, "continue_final_message": true, "add_generation_prompt": true)"), "400");
  EXPECT_EQ(prompt("", R"(, "continue_final_message": true)"), "400");
}

TEST_F(ServerTest, ImagePartsAreRefused) {
  start();
  const auto response = call("POST", "/v1/chat/completions",
                             R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url":
                                {"url": "http://169.254.169.254/latest"}}]}]})");
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(response.json()["error"]["param"], "messages[0].content[0]");
}

}  // namespace
}  // namespace vayu::server
