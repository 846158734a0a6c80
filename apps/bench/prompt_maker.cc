#include "apps/bench/prompt_maker.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <string_view>

namespace vayu::bench {

using nlohmann::json;

namespace {

// Short and frequent, so that most tokenizers give one token a word (with its space).
constexpr std::array<std::string_view, 64> kWords = {
    "time",  "year",   "people", "way",   "day",    "man",     "thing", "world",  "life",   "hand",  "part",
    "child", "eye",    "woman",  "place", "work",   "week",    "case",  "point",  "number", "group", "fact",
    "water", "room",   "money",  "story", "month",  "lot",     "right", "study",  "book",   "job",   "word",
    "side",  "kind",   "head",   "house", "friend", "father",  "power", "hour",   "game",   "line",  "end",
    "city",  "law",    "car",    "name",  "team",   "minute",  "idea",  "body",   "back",   "level", "office",
    "door",  "health", "person", "art",   "war",    "history", "party", "result", "change"};

json user_message(std::string text) { return json::array({{{"role", "user"}, {"content", std::move(text)}}}); }

class RandomIds : public PromptSource {
 public:
  explicit RandomIds(const RandomIdOptions& options) : options_(options) {
    Random random(options_.seed, /*stream=*/2);
    prefix_.resize(static_cast<size_t>(options_.shared_prefix_length));
    for (int32_t& id : prefix_) id = random.between(options_.first_id, options_.end_id);
  }
  Prompt prompt(int64_t index) const override {
    Random random(options_.seed, 1000 + static_cast<uint64_t>(index));
    std::vector<int32_t> ids = prefix_;
    while (ids.size() < static_cast<size_t>(options_.length)) {
      ids.push_back(random.between(options_.first_id, options_.end_id));
    }
    return Prompt{std::move(ids), options_.length};
  }

 private:
  const RandomIdOptions options_;
  std::vector<int32_t> prefix_;  // (shared_prefix_length)
};

class FixedPrompts : public PromptSource {
 public:
  explicit FixedPrompts(std::vector<Prompt> prompts) : prompts_(std::move(prompts)) {}
  Prompt prompt(int64_t index) const override { return prompts_[static_cast<size_t>(index) % prompts_.size()]; }

 private:
  const std::vector<Prompt> prompts_;  // not empty
};

Result<Prompt> parse_json_line(const std::string& line, int line_number, bool chat) {
  const json value = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) return field_error("prompt-file", "line {} is not a JSON object", line_number);
  if (value.contains("messages")) {
    if (!chat) return field_error("prompt-file", "line {} has messages: use --endpoint chat", line_number);
    return Prompt{value["messages"]};
  }
  if (!value.contains("prompt"))
    return field_error("prompt-file", "line {} has neither prompt nor messages", line_number);
  const json& prompt = value["prompt"];
  if (prompt.is_array() && chat) {
    return field_error("prompt-file", "line {} has token ids: use --endpoint completions", line_number);
  }
  if (prompt.is_array()) return Prompt{prompt, static_cast<int64_t>(prompt.size())};
  if (!prompt.is_string()) return field_error("prompt-file", "line {}: prompt is neither text nor ids", line_number);
  return Prompt{chat ? user_message(prompt.get<std::string>()) : prompt};
}

}  // namespace

std::unique_ptr<PromptSource> make_random_ids(const RandomIdOptions& options) {
  return std::make_unique<RandomIds>(options);
}

Result<std::string> make_exact_text(const std::string& prefix, int64_t length, Random& random,
                                    const TokenCounter& counter) {
  // Each round mends the difference with words; an overshoot (a word of two tokens) is cut and tried with other words.
  constexpr int kMaxRounds = 64;
  std::vector<std::string_view> words;
  int64_t missing = length;
  int64_t tokens = 0;
  for (int round = 0; round < kMaxRounds; ++round) {
    for (; missing > 0; --missing) words.push_back(kWords[static_cast<size_t>(random.between(0, kWords.size()))]);
    for (; missing < 0 && !words.empty(); ++missing) words.pop_back();
    std::string text = prefix;
    for (const std::string_view word : words) {
      if (!text.empty()) text += ' ';
      text += word;
    }
    VAYU_ASSIGN_OR_RETURN(tokens, counter(text));
    missing = length - tokens;
    if (missing == 0) return text;
    if (missing < 0 && words.empty()) break;
  }
  return field_error("input-len", "cannot make a prompt of exactly {} tokens (the nearest try had {})", length, tokens);
}

Result<std::unique_ptr<PromptSource>> make_exact_texts(int64_t count, int64_t length, int64_t shared_prefix_length,
                                                       bool chat, uint64_t seed, const TokenCounter& counter) {
  std::string prefix;
  if (shared_prefix_length > 0) {
    Random random(seed, /*stream=*/2);
    VAYU_ASSIGN_OR_RETURN(prefix, make_exact_text("", shared_prefix_length, random, counter));
  }
  std::vector<Prompt> prompts;
  for (int64_t i = 0; i < count; ++i) {
    Random random(seed, 1000 + static_cast<uint64_t>(i));
    VAYU_ASSIGN_OR_RETURN(std::string text, make_exact_text(prefix, length, random, counter));
    prompts.push_back(Prompt{chat ? user_message(std::move(text)) : json(std::move(text)), length});
  }
  return std::unique_ptr<PromptSource>(std::make_unique<FixedPrompts>(std::move(prompts)));
}

Result<std::unique_ptr<PromptSource>> parse_prompt_lines(const std::string& text, bool chat) {
  std::istringstream lines(text);
  std::vector<Prompt> prompts;
  std::string line;
  bool is_json = false;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    if (prompts.empty()) is_json = line.starts_with('{');
    if (is_json) {
      VAYU_ASSIGN_OR_RETURN(Prompt prompt, parse_json_line(line, number, chat));
      prompts.push_back(std::move(prompt));
    } else {
      prompts.push_back(Prompt{chat ? user_message(line) : json(line)});
    }
  }
  if (prompts.empty()) return field_error("prompt-file", "the file holds no prompt");
  return std::unique_ptr<PromptSource>(std::make_unique<FixedPrompts>(std::move(prompts)));
}

Result<std::unique_ptr<PromptSource>> read_prompt_file(const std::string& path, bool chat) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return Error{ErrorKind::kIo, "cannot read " + path, "prompt-file"};
  return parse_prompt_lines(text.str(), chat);
}

}  // namespace vayu::bench
