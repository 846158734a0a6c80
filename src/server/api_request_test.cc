#include "server/api_request.h"

#include <gtest/gtest.h>

#include "server/chat_messages.h"
#include "server/limits.h"

namespace vayu::server {
namespace {

const RequestRules kRules{.vocab_size = 1000, .max_context = 2000, .debug_hooks = false};

Result<Json> guarded(const std::string& text) { return parse_json(text); }

std::string nest(const std::string& open, const std::string& close, size_t depth, bool closed) {
  std::string text;
  for (size_t i = 0; i < depth; ++i) text += open;
  text += "1";
  for (size_t i = 0; i < depth && closed; ++i) text += close;
  return text;
}

// Field of the error, or "ok".
std::string completion_fault(const std::string& fields) {
  const auto body = guarded(R"({"prompt": "hi", )" + fields + "}");
  if (!body.ok()) return body.error().field;
  const auto request = parse_completion(*body, kRules);
  return request.ok() ? "ok" : request.error().field;
}

std::string chat_fault(const std::string& fields) {
  const auto body = guarded(R"({"messages": [{"role": "user", "content": "hi"}], )" + fields + "}");
  if (!body.ok()) return body.error().field;
  const auto request = parse_chat(*body, kRules);
  return request.ok() ? "ok" : request.error().field;
}

TEST(JsonGuard, DepthIsBoundedWhateverTheFieldAndTheEnd) {
  for (const size_t depth : {100ul, 1000ul, 100'000ul, 5'000'000ul}) {
    for (const bool closed : {true, false}) {
      for (const char* field : {"prompt", "unknown", "tools"}) {
        const auto array = guarded("{\"" + std::string(field) + "\":" + nest("[", "]", depth, closed));
        ASSERT_FALSE(array.ok());
        EXPECT_EQ(array.error().kind, ErrorKind::kTooLarge);
        EXPECT_EQ(array.error().field, field);
        EXPECT_FALSE(guarded("{\"" + std::string(field) + "\":" + nest("{\"a\":", "}", depth, closed)).ok());
      }
    }
  }
  EXPECT_TRUE(guarded(nest("[", "]", kMaxJsonDepth, true)).ok());
  EXPECT_FALSE(guarded(nest("[", "]", kMaxJsonDepth + 1, true)).ok());
}

TEST(JsonGuard, CountsValuesAndKeys) {
  std::string many = "{";
  for (size_t i = 0; i <= kMaxJsonObjectKeys; ++i) many += fmt::format("\"{}\":1,", i);
  many.back() = '}';
  EXPECT_EQ(guarded(many).error().kind, ErrorKind::kTooLarge);
  std::string values = "[";
  for (size_t i = 0; i < kMaxJsonValues; ++i) values += "1,";
  values.back() = ']';
  EXPECT_EQ(guarded(values).error().kind, ErrorKind::kTooLarge);
}

TEST(JsonGuard, RefusesWhatIsNotJson) {
  for (const char* text : {"", " ", "{", "{\"a\":}", "{\"a\":1,}", "nul", "\"\xff\"", "\"\\ud800\"", "{} {}", "NaN"}) {
    const auto result = guarded(text);
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_EQ(result.error().kind, ErrorKind::kInvalidArgument) << text;
  }
  const auto overflow = guarded(R"({"max_tokens": 1e400})");
  ASSERT_FALSE(overflow.ok());
  EXPECT_EQ(overflow.error().field, "max_tokens");
}

TEST(CompletionRequest, MaxTokens) {
  for (const char* bad : {"0", "-1", "1.5", "\"10\"", "true", "2147483648", "9223372036854775808", "1e400", "[]"}) {
    EXPECT_EQ(completion_fault(std::string("\"max_tokens\":") + bad), "max_tokens") << bad;
  }
  for (const char* good : {"null", "1", "10.0", "2147483647"}) {
    EXPECT_EQ(completion_fault(std::string("\"max_tokens\":") + good), "ok") << good;
  }
  EXPECT_EQ(completion_fault(R"("max_tokens": 0, "echo": true)"), "ok");
}

TEST(CompletionRequest, RangesOfNumbers) {
  const std::map<std::string, std::vector<std::string>> bad = {
      {"n", {"0", "300", "1000000000", "1.5", "\"2\""}},
      {"temperature", {"1e30", "-0.5", "\"1\"", "true"}},
      {"top_p", {"-0.2", "7"}},
      {"top_k", {"-2", "1.5", "4294967296"}},
      {"min_p", {"-0.1", "1.1"}},
      {"repetition_penalty", {"0", "-3", "1000"}},
      {"presence_penalty", {"-2.1", "3"}},
      {"frequency_penalty", {"-2.1", "3"}},
      {"logprobs", {"-1", "21", "1000000", "true"}},
      {"min_tokens", {"-1", "17.5"}},
      {"best_of", {"2"}},
      {"stop", {"[1]", "5", "\"\"", "[\"\"]", "{}"}},
      {"stop_token_ids", {"[-1]", "[1000]", "[1.5]", "7"}},
      {"stream", {"1", "\"true\""}},
      {"stream_options", {"[]", "{\"include_usage\": 1}"}},
      {"suffix", {"\"x\""}},
      {"seed", {"1.5", "\"1\"", "1e30"}},
      {"ignore_eos", {"1"}},
      {"model", {"5", "[]"}},
      {"response_format", {"{\"type\":\"json_object\"}", "5"}},
      {"guided_json", {"{\"type\":\"object\"}"}},
      {"vayu_debug", {"{\"forced_ids\":[1]}"}},
  };
  for (const auto& [field, values] : bad) {
    for (const std::string& value : values) {
      EXPECT_EQ(completion_fault("\"" + field + "\":" + value), field) << value;
    }
    if (field != "prompt") {
      EXPECT_EQ(completion_fault("\"" + field + "\":null"), "ok") << field;
    }
  }
  for (const char* good :
       {R"("temperature": 0)", R"("top_p": 0)", R"("top_p": 1)", R"("top_k": -1)", R"("top_k": 0)", R"("best_of": 1)",
        R"("stop": [])", R"("logprobs": 0)", R"("seed": -5)", R"("response_format": {"type": "text"})",
        R"("suffix": "")", R"("priority": 0)", R"("some_unknown_field": {"a": [1]})", R"("user": "me")",
        R"("stream_options": {})", R"("metadata": {"a": "b"})"}) {
    EXPECT_EQ(completion_fault(good), "ok") << good;
  }
}

TEST(CompletionRequest, ListsAreBounded) {
  std::string stops = "\"stop\":[";
  for (int i = 0; i < 10'000; ++i) stops += "\"a\",";
  stops.back() = ']';
  EXPECT_EQ(completion_fault(stops), "stop");
  EXPECT_EQ(completion_fault("\"stop\":\"" + std::string(kMaxStopBytes + 1, 'a') + "\""), "stop");
  EXPECT_EQ(completion_fault("\"stop\":\"" + std::string(kMaxStopBytes, 'a') + "\""), "ok");
  std::string allowed = "\"allowed_token_ids\":[";
  for (int i = 0; i < 50'000; ++i) allowed += "1,";
  allowed.back() = ']';
  EXPECT_EQ(completion_fault(allowed), "allowed_token_ids");
  std::string bias = "\"logit_bias\":{";
  for (int i = 0; i < 5000; ++i) bias += fmt::format("\"{}\":1,", i);
  bias.back() = '}';
  EXPECT_EQ(completion_fault(bias), "logit_bias");
}

TEST(CompletionRequest, LogitBias) {
  for (const char* bad : {R"({"-1":1})", R"({"1000":1})", R"({"999999999999":1})", R"({"1.5":1})", R"({"abc":1})",
                          R"({"":1})", R"({"007":1})", R"({"+7":1})", R"({" 7":1})", R"({"5":1e9})", R"({"5":-1e9})",
                          R"({"5":null})", R"({"5":"x"})", R"({"5":true})", "[]", "5"}) {
    EXPECT_EQ(completion_fault(std::string("\"logit_bias\":") + bad), "logit_bias") << bad;
  }
  const auto request =
      parse_completion(*guarded(R"({"prompt": "x", "logit_bias": {"999": 100, "0": -100, "50": 0.5}})"), kRules);
  ASSERT_TRUE(request.ok());
  const std::vector<std::pair<TokenId, float>> expected = {{0, -100.f}, {50, 0.5f}, {999, 100.f}};
  EXPECT_EQ(request->options.sampling.logit_bias, expected);
}

TEST(CompletionRequest, EveryParameterArrives) {
  const auto request = parse_completion(
      *guarded(R"({"prompt": "x", "temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125, "seed": 42,
        "repetition_penalty": 1.5, "presence_penalty": -1, "frequency_penalty": 2, "n": 3, "stop": "end",
        "stop_token_ids": [9, 3], "ignore_eos": true, "min_tokens": 4, "max_tokens": 5, "logprobs": 2, "echo": true,
        "include_stop_str_in_output": true, "skip_special_tokens": false, "return_token_ids": true,
        "add_special_tokens": false, "cache_salt": "s", "stream": true,
        "stream_options": {"include_usage": true, "continuous_usage_stats": true}})"),
      kRules);
  ASSERT_TRUE(request.ok()) << request.error().message;
  const GenerateOptions& options = request->options;
  const SamplingParams& sampling = options.sampling;
  EXPECT_EQ(sampling.temperature, 0.5f);
  EXPECT_EQ(sampling.top_p, 0.25f);
  EXPECT_EQ(sampling.top_k, 7);
  EXPECT_EQ(sampling.min_p, 0.125f);
  EXPECT_EQ(sampling.seed, 42u);
  EXPECT_EQ(sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(sampling.presence_penalty, -1.f);
  EXPECT_EQ(sampling.frequency_penalty, 2.f);
  EXPECT_EQ(options.n, 3);
  EXPECT_EQ(options.stop, std::vector<std::string>{"end"});
  EXPECT_EQ(sampling.stop_token_ids, (std::vector<TokenId>{3, 9}));
  EXPECT_TRUE(sampling.ignore_eos);
  EXPECT_EQ(sampling.min_tokens, 4);
  EXPECT_EQ(options.max_tokens, 5);
  EXPECT_EQ(sampling.logprobs, 2);
  EXPECT_EQ(sampling.prompt_logprobs, 2);
  EXPECT_TRUE(request->echo && options.include_stop_str && options.return_token_ids && options.stream);
  EXPECT_TRUE(options.include_usage && options.continuous_usage);
  EXPECT_FALSE(options.skip_special);
  EXPECT_EQ(options.add_special, false);
  EXPECT_EQ(options.cache_salt, "s");
}

TEST(CompletionRequest, SeedsDifferWhenNoneIsGiven) {
  const auto first = parse_completion(*guarded(R"({"prompt": "x"})"), kRules);
  const auto second = parse_completion(*guarded(R"({"prompt": "x", "seed": null})"), kRules);
  EXPECT_NE(first->options.sampling.seed, second->options.sampling.seed);
}

TEST(CompletionRequest, Prompts) {
  const auto fault = [](const std::string& prompt) {
    const auto request = parse_completion(*guarded("{\"prompt\":" + prompt + "}"), kRules);
    return request.ok() ? fmt::format("{} prompts", request->prompts.size()) : request.error().field;
  };
  for (const char* bad : {"[]", "[[]]", "[[1],[]]", "null", "5", "{}", "[1,\"a\"]", "[\"a\",1]", "[\"a\",[1]]",
                          "[1,-1]", "[1000]", "[1.5]", "[true]", "[null]", "[[\"a\"]]"}) {
    EXPECT_EQ(fault(bad), "prompt") << bad;
  }
  EXPECT_EQ(fault("\"\""), "1 prompts");
  EXPECT_EQ(fault("[\"\"]"), "1 prompts");
  EXPECT_EQ(fault("[1,2,999]"), "1 prompts");
  EXPECT_EQ(fault("[[1],[2,3]]"), "2 prompts");
  EXPECT_EQ(fault("[\"a\",\"b\",\"c\"]"), "3 prompts");
}

TEST(CompletionRequest, ContextRoom) {
  EXPECT_EQ(*fit_max_tokens(10, 5, 16, 100, "prompt"), 5);
  EXPECT_EQ(*fit_max_tokens(10, std::nullopt, 16, 100, "prompt"), 16);
  EXPECT_EQ(*fit_max_tokens(10, std::nullopt, std::nullopt, 100, "prompt"), 90);
  EXPECT_EQ(*fit_max_tokens(99, 50, 16, 100, "prompt"), 1);
  for (const int64_t tokens : {100, 101, 5000}) {
    const auto result = fit_max_tokens(tokens, 1, 16, 100, "prompt");
    ASSERT_FALSE(result.ok());
    EXPECT_NE(result.error().message.find(std::to_string(tokens)), std::string::npos);
    EXPECT_NE(result.error().message.find("100"), std::string::npos);
  }
  EXPECT_FALSE(fit_max_tokens(0, 1, 16, 100, "prompt").ok());
}

TEST(ChatRequest, FieldsOfItsOwn) {
  const std::map<std::string, std::vector<std::string>> bad = {
      {"max_completion_tokens", {"0", "\"5\""}},
      {"top_logprobs", {"1", "21", "1000000"}},
      {"tools", {"5"}},
      {"logprobs", {"5"}},
      {"tool_choice", {"\"required\"", "{}"}},
      {"echo", {"true"}},
      {"chat_template_kwargs", {"5", R"({"bos_token": "x"})", R"({"messages": []})"}},
      {"chat_template", {"\"{{ x }}\""}},
      {"functions", {"[{}]"}}};
  for (const auto& [field, values] : bad) {
    for (const std::string& value : values) EXPECT_EQ(chat_fault("\"" + field + "\":" + value), field) << value;
    EXPECT_EQ(chat_fault("\"" + field + "\":null"), "ok") << field;
  }
  for (const char* good : {R"("logprobs": true, "top_logprobs": 20)", R"("tools": [])", R"("tool_choice": "none")",
                           R"("parallel_tool_calls": false)", R"("chat_template_kwargs": {"enable_thinking": true})",
                           R"("top_logprobs": 0)", R"("n": 1, "logit_bias": null, "stop": null)"}) {
    EXPECT_EQ(chat_fault(good), "ok") << good;
  }
}

TEST(ChatRequest, GenerationPromptAndContinuation) {
  const auto flags = [](const std::string& fields) -> std::string {
    const auto request =
        parse_chat(*guarded(R"({"messages": [{"role": "assistant", "content": "hi"}])" + fields + "}"), kRules);
    if (!request.ok()) return request.error().field;
    return fmt::format("{} {}", request->input.add_generation_prompt, request->input.continue_final);
  };
  EXPECT_EQ(flags(""), "true false");
  EXPECT_EQ(flags(R"(, "continue_final_message": true)"), "false true");
  EXPECT_EQ(flags(R"(, "continue_final_message": true, "add_generation_prompt": false)"), "false true");
  EXPECT_EQ(flags(R"(, "continue_final_message": false, "add_generation_prompt": false)"), "false false");
  EXPECT_EQ(flags(R"(, "continue_final_message": true, "add_generation_prompt": true)"), "continue_final_message");
}

std::string normalised(const std::string& messages) {
  const auto result = normalise_messages(*guarded(messages));
  return result.ok() ? result->dump() : result.error().field;
}

TEST(ChatMessages, ContentBecomesText) {
  EXPECT_EQ(normalised(R"([{"role":"user","content":null}])"), R"([{"role":"user","content":""}])");
  EXPECT_EQ(normalised(R"([{"role":"user"}])"), R"([{"role":"user","content":""}])");
  EXPECT_EQ(normalised(R"([{"role":"user","content":[]}])"), R"([{"role":"user","content":""}])");
  EXPECT_EQ(normalised(R"([{"role":"system","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])"),
            R"([{"role":"system","content":"ab"}])");
  EXPECT_EQ(normalised(R"([{"role":"developer","content":"x","name":null}])"), R"([{"role":"system","content":"x"}])");
}

TEST(ChatMessages, ToolCalls) {
  const auto arguments = [](const std::string& value) {
    const auto result = normalise_messages(
        *guarded(R"([{"role":"assistant","content":null,"tool_calls":[{"id":"1","function":{"name":"f","arguments":)" +
                 value + "}}]}]"));
    return result.ok() ? (*result)[0]["tool_calls"][0]["function"]["arguments"].dump() : result.error().field;
  };
  EXPECT_EQ(arguments(R"("{\"a\": [1]}")"), R"({"a":[1]})");
  EXPECT_EQ(arguments(R"("{}")"), "{}");
  EXPECT_EQ(arguments(R"("null")"), "{}");
  EXPECT_EQ(arguments(R"("")"), "{}");
  EXPECT_EQ(arguments(R"("not json {")"), R"("not json {")");
  EXPECT_EQ(arguments(R"({"b":2})"), R"({"b":2})");
  EXPECT_EQ(arguments("\"" + nest("[", "]", 1000, true) + "\""), "messages[0].tool_calls[0].function.arguments");
  EXPECT_EQ(normalised(R"([{"role":"assistant","content":"x","tool_calls":[],"function_call":null}])"),
            R"([{"role":"assistant","content":"x"}])");
  EXPECT_EQ(normalised(R"([{"role":"assistant","tool_calls":5}])"), "messages[0].tool_calls");
}

TEST(ChatMessages, RefusesWhatIsNoText) {
  EXPECT_EQ(normalised(R"([{"role":"user","content":[{"type":"text","text":"a"},
    {"type":"image_url","image_url":{"url":"http://127.0.0.1/x"}}]}])"),
            "messages[0].content[1]");
  EXPECT_EQ(normalised(R"([{"role":"user","content":[{"type":"text"}]}])"), "messages[0].content[0]");
  EXPECT_EQ(normalised(R"([{"role":"user","content":5}])"), "messages[0].content");
  EXPECT_EQ(normalised(R"([{"content":"x"}])"), "messages[0].role");
  EXPECT_EQ(normalised(R"([{"role":7,"content":"x"}])"), "messages[0].role");
  EXPECT_EQ(normalised(R"([5])"), "messages[0]");
}

TEST(TokenizeRequest, OnePromptOrMessages) {
  EXPECT_TRUE(parse_tokenize(*guarded(R"({"prompt": "x"})"), kRules).ok());
  EXPECT_TRUE(parse_tokenize(*guarded(R"({"messages": [{"role": "user"}]})"), kRules).ok());
  EXPECT_FALSE(parse_tokenize(*guarded(R"({})"), kRules).ok());
  EXPECT_FALSE(parse_tokenize(*guarded(R"({"prompt": "x", "messages": []})"), kRules).ok());
  EXPECT_TRUE(parse_detokenize(*guarded(R"({"tokens": []})"), kRules).ok());
  EXPECT_FALSE(parse_detokenize(*guarded(R"({"tokens": [1000]})"), kRules).ok());
  EXPECT_FALSE(parse_detokenize(*guarded(R"({})"), kRules).ok());
  EXPECT_FALSE(parse_detokenize(*guarded(R"([])"), kRules).ok());
}

}  // namespace
}  // namespace vayu::server
