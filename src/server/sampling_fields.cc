#include "server/sampling_fields.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <random>

#include "server/limits.h"

namespace vayu::server {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

// Only the plain decimal form of an id is a key: "007", "+7" and "7 " name nothing.
std::optional<TokenId> parse_token_key(const std::string& key, int32_t vocab_size) {
  int64_t id = -1;
  const auto [end, fault] = std::from_chars(key.data(), key.data() + key.size(), id);
  if (fault != std::errc() || end != key.data() + key.size()) return std::nullopt;
  if (id < 0 || id >= vocab_size || std::to_string(id) != key) return std::nullopt;
  return static_cast<TokenId>(id);
}

void read_logit_bias(FieldReader& reader, const RequestRules& rules, SamplingParams* sampling) {
  const Json* bias = reader.object("logit_bias");
  if (bias == nullptr) return;
  if (bias->size() > kMaxLogitBias) {
    return reader.fail("logit_bias", "logit_bias must have at most {} entries; it has {}.", kMaxLogitBias,
                       bias->size());
  }
  for (const auto& [key, value] : bias->items()) {
    const auto token = parse_token_key(key, rules.vocab_size);
    if (!token) {
      return reader.fail("logit_bias", "logit_bias: each key must be a token id from 0 to {}.", rules.vocab_size - 1);
    }
    const double number = value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
    if (!(number >= -kMaxLogitBiasValue && number <= kMaxLogitBiasValue)) {
      return reader.fail("logit_bias", "logit_bias: the value of token {} must be a number from -100 to 100.", *token);
    }
    sampling->logit_bias.emplace_back(*token, static_cast<float>(number));
  }
  std::sort(sampling->logit_bias.begin(), sampling->logit_bias.end());
}

void read_stop(FieldReader& reader, std::vector<std::string>* stop) {
  const Json* value = reader.find("stop");
  if (value == nullptr) return;
  const auto add = [&](const Json& item) {
    if (!item.is_string()) return reader.fail("stop", "stop must be a string or a list of strings.");
    const auto& text = item.get_ref<const std::string&>();
    if (text.empty()) return reader.fail("stop", "stop must not hold an empty string.");
    if (text.size() > kMaxStopBytes) return reader.fail("stop", "A stop string has at most {} bytes.", kMaxStopBytes);
    stop->push_back(text);
  };
  if (!value->is_array()) return add(*value);
  if (const Json* list = reader.array("stop", kMaxStopStrings)) {
    for (const Json& item : *list) add(item);
  }
}

void read_stream_options(FieldReader& reader, GenerateOptions* options) {
  const Json* object = reader.object("stream_options");
  if (object == nullptr) return;
  FieldReader inner(*object, "stream_options.");
  inner.boolean("include_usage", &options->include_usage);
  inner.boolean("continuous_usage_stats", &options->continuous_usage);
  if (!inner.ok()) reader.fail("stream_options", "{}", inner.status().error().message);
}

void read_debug(FieldReader& reader, const RequestRules& rules, GenerateOptions* options) {
  const Json* object = reader.object("vayu_debug");
  if (object == nullptr) return;
  if (!rules.debug_hooks) return reader.fail("vayu_debug", "vayu_debug needs a server started with debug hooks.");
  FieldReader inner(*object, "vayu_debug.");
  inner.int_list("forced_ids", 0, rules.vocab_size - 1, kMaxJsonValues, &options->forced_output);
  inner.integer("fail_at_token", -1, kMaxInt32, &options->fail_at_token);
  inner.integer("stall_ms", 0, 600'000, &options->stall_ms);
  if (!inner.ok()) reader.fail("vayu_debug", "{}", inner.status().error().message);
}

void read_response_format(FieldReader& reader) {
  const Json* format = reader.object("response_format");
  if (format == nullptr) return;
  const auto type = format->find("type");
  if (type == format->end() || *type != "text") {
    reader.fail("response_format", "Only response_format of type \"text\" is supported.");
  }
}

// A value that asks for nothing: false, "", [], {} (null counts as absent already).
bool asks_for_nothing(const Json& value) {
  return value == false || ((value.is_string() || value.is_structured()) && value.size() == 0) || value == "";
}

}  // namespace

void refuse_unsupported(FieldReader& reader) {
  static constexpr std::array kUnsupported = {"suffix",
                                              "prompt_logprobs",
                                              "allowed_token_ids",
                                              "bad_words",
                                              "guided_json",
                                              "guided_regex",
                                              "guided_choice",
                                              "guided_grammar",
                                              "structured_outputs",
                                              "json_schema",
                                              "regex",
                                              "ebnf",
                                              "grammar",
                                              "prompt_embeds",
                                              "truncate_prompt_tokens",
                                              "use_beam_search",
                                              "functions",
                                              "audio",
                                              "lora_path",
                                              "session_params",
                                              "chat_template",
                                              "custom_logit_processor",
                                              "logits_processors",
                                              "priority",
                                              "prediction",
                                              "web_search_options"};
  for (const char* name : kUnsupported) {
    const Json* value = reader.find(name);
    if (value == nullptr || asks_for_nothing(*value) || *value == 0) continue;
    reader.fail(name, "{} is not supported by this server.", name);
  }
  const auto require = [&](const char* name, const Json& only) {
    const Json* value = reader.find(name);
    if (value != nullptr && *value != only) reader.fail(name, "{} other than {} is not supported.", name, dump(only));
  };
  require("length_penalty", 1);
  require("spaces_between_special_tokens", true);
  require("modalities", Json::array({"text"}));
}

void read_generate_options(FieldReader& reader, const RequestRules& rules, GenerateOptions* options) {
  SamplingParams& sampling = options->sampling;
  reader.text("model", kMaxNameBytes, &options->model);
  reader.number("temperature", 0, kMaxTemperature, &sampling.temperature);
  if (sampling.temperature < kMinTemperature) sampling.temperature = 0;
  reader.number("top_p", 0, 1, &sampling.top_p);
  reader.integer("top_k", -1, kMaxInt32, &sampling.top_k);
  sampling.top_k = std::clamp(sampling.top_k, 0, rules.vocab_size);
  reader.number("min_p", 0, 1, &sampling.min_p);
  reader.number("repetition_penalty", kMinRepetitionPenalty, kMaxRepetitionPenalty, &sampling.repetition_penalty);
  reader.number("presence_penalty", -kMaxPenalty, kMaxPenalty, &sampling.presence_penalty);
  reader.number("frequency_penalty", -kMaxPenalty, kMaxPenalty, &sampling.frequency_penalty);
  read_logit_bias(reader, rules, &sampling);
  std::optional<int64_t> seed;
  reader.integer("seed", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(), &seed);
  if (seed) {
    sampling.seed = static_cast<uint64_t>(*seed);
  } else {
    std::random_device random;
    sampling.seed = static_cast<uint64_t>(random()) << 32 | random();
  }
  reader.integer("n", 1, kMaxN, &options->n);
  std::optional<int32_t> best_of;
  reader.integer("best_of", 1, kMaxN, &best_of);
  if (best_of && *best_of != options->n) reader.fail("best_of", "best_of other than n is not supported.");
  reader.integer("min_tokens", 0, kMaxInt32, &sampling.min_tokens);
  reader.boolean("ignore_eos", &sampling.ignore_eos);
  reader.int_list("stop_token_ids", 0, rules.vocab_size - 1, kMaxStopTokenIds, &sampling.stop_token_ids);
  std::sort(sampling.stop_token_ids.begin(), sampling.stop_token_ids.end());
  read_stop(reader, &options->stop);
  reader.boolean("include_stop_str_in_output", &options->include_stop_str);
  reader.boolean("skip_special_tokens", &options->skip_special);
  reader.boolean("add_special_tokens", &options->add_special);
  reader.boolean("stream", &options->stream);
  reader.boolean("return_token_ids", &options->return_token_ids);
  reader.text("cache_salt", kMaxNameBytes, &options->cache_salt);
  std::string ignored;
  reader.text("user", kMaxNameBytes, &ignored);
  read_stream_options(reader, options);
  read_response_format(reader);
  refuse_unsupported(reader);
  read_debug(reader, rules, options);
}

Status check_logprob_volume(const GenerateOptions& options, size_t answers, int32_t max_tokens) {
  if (options.sampling.logprobs < 0) return {};
  const int64_t entries = static_cast<int64_t>(answers) * max_tokens * (options.sampling.logprobs + 1);
  if (entries <= kMaxLogprobEntries) return {};
  return field_error(
      "logprobs",
      "{} answers of up to {} tokens with {} alternatives ask for {} log-probabilities; the limit is {}. "
      "Lower max_tokens.",
      answers, max_tokens, options.sampling.logprobs, entries, kMaxLogprobEntries);
}

}  // namespace vayu::server
