// MB/s of encode, and of streaming decode, with the tokenizer of the GGUF file in VAYU_TEST_MODEL:
//   VAYU_TEST_MODEL=model.gguf build/src/tokenizer/tokenizer_bench
// and the time to load a synthetic tokenizer.json.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <random>
#include <string>
#include <unordered_set>

#include "loader/gguf.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/utf8.h"

namespace vayu {
namespace {

constexpr const char* kEnglish =
    "The kettle clicked off before anyone noticed the rain. She opened the window, counted to 10, and wrote \"nothing "
    "yet\" in the margin of yesterday's list.\n";
constexpr const char* kHindi = "कल शाम को हम सब नदी किनारे टहलने गए थे। विद्यार्थियों ने राष्ट्रीय पुस्तकालय में शोध किया।\n";
constexpr const char* kHindiNoSpaces = "विद्यार्थियोंनेराष्ट्रीयपुस्तकालयमेंशोधकिया";
constexpr const char* kCode = "for (int i = 0; i < n; ++i) {\n    total += values[i] * 2;  // weight\n}\n";

std::shared_ptr<const Tokenizer> tokenizer() {
  static const std::shared_ptr<const Tokenizer> loaded = [] {
    const char* path = std::getenv("VAYU_TEST_MODEL");
    if (path == nullptr) return std::shared_ptr<const Tokenizer>();
    auto file = loader::GgufFile::open(path);
    return file.ok() ? load_tokenizer(**file).value() : nullptr;
  }();
  return loaded;
}

std::string repeat(std::string_view unit, size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += unit;
  return text;
}

void encode(benchmark::State& state, const char* unit) {
  const auto t = tokenizer();
  if (t == nullptr) return state.SkipWithError("VAYU_TEST_MODEL is not set to a GGUF file");
  const std::string text = repeat(unit, state.range(0));
  size_t num_ids = 0;
  for (auto _ : state) {
    num_ids = t->encode(text, {.parse_special = true, .add_special = false, .trusted = {}}).size();
    benchmark::DoNotOptimize(num_ids);
  }
  state.SetBytesProcessed(state.iterations() * text.size());
  state.counters["bytes_per_token"] = static_cast<double>(text.size()) / static_cast<double>(num_ids);
}

void stream_decode(benchmark::State& state, const char* unit) {
  const auto t = tokenizer();
  if (t == nullptr) return state.SkipWithError("VAYU_TEST_MODEL is not set to a GGUF file");
  const std::string text = repeat(unit, state.range(0));
  const auto ids = t->encode(text, {});
  for (auto _ : state) {
    StreamDecoder decoder(*t);
    for (const TokenId id : ids) benchmark::DoNotOptimize(decoder.push(id));
  }
  state.SetBytesProcessed(state.iterations() * text.size());
}

void load(benchmark::State& state) {
  const char* path = std::getenv("VAYU_TEST_MODEL");
  if (path == nullptr) return state.SkipWithError("VAYU_TEST_MODEL is not set to a GGUF file");
  const auto file = loader::GgufFile::open(path).value();
  for (auto _ : state) benchmark::DoNotOptimize(load_tokenizer(*file).value());
}

// A tokenizer.json of `size` tokens like Sarvam's: random words, each merged from two shorter ones, byte fallback.
std::string synthetic_json(int64_t size) {
  std::mt19937 random(1);
  std::vector<std::string> words;
  std::unordered_set<std::string> seen;
  std::string vocab, merges;
  const auto add = [&](const std::string& word) {
    if (!seen.insert(word).second) return false;
    vocab += fmt::format("{}\"{}\":{}", words.empty() ? "" : ",", word, words.size());
    words.push_back(word);
    return true;
  };
  for (int byte = 0; byte < 256; ++byte) add(byte_token(static_cast<uint8_t>(byte)));
  const size_t first = words.size();
  add(std::string(kMetaspace));
  for (char32_t c = 0x905; c < 0x940; ++c) {
    std::string word;
    append_utf8(c, word);
    add(word);
  }
  for (char c = 'a'; c <= 'z'; ++c) add(std::string(1, c));
  while (static_cast<int64_t>(words.size()) < size) {
    const std::string left = words[first + random() % std::min<size_t>(words.size() - first, 4096)];
    const std::string right = words[first + random() % std::min<size_t>(words.size() - first, 4096)];
    if (right.starts_with(kMetaspace) || left.size() + right.size() > 40 || !add(left + right)) continue;
    merges += fmt::format("{}[\"{}\",\"{}\"]", merges.empty() ? "" : ",", left, right);
  }
  return fmt::format(
      R"({{"normalizer":{{"type":"Replace","pattern":{{"String":" "}},"content":"{}"}},"decoder":)"
      R"({{"type":"Sequence","decoders":[{{"type":"Replace","pattern":{{"String":"{}"}},"content":" "}},)"
      R"({{"type":"ByteFallback"}},{{"type":"Fuse"}}]}},"model":{{"type":"BPE","byte_fallback":true,)"
      R"("vocab":{{{}}},"merges":[{}]}}}})",
      kMetaspace, kMetaspace, vocab, merges);
}

void load_json(benchmark::State& state) {
  const std::string text = synthetic_json(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(parse_tokenizer_json(text, {}).value());
  state.SetBytesProcessed(state.iterations() * text.size());
}

BENCHMARK(load_json)->Arg(262'144)->Unit(benchmark::kMillisecond);
BENCHMARK(load)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode, english, kEnglish)->Arg(16 << 10)->Arg(1 << 20);
BENCHMARK_CAPTURE(encode, hindi, kHindi)->Arg(16 << 10)->Arg(1 << 20);
BENCHMARK_CAPTURE(encode, code, kCode)->Arg(1 << 20);
BENCHMARK_CAPTURE(stream_decode, hindi, kHindi)->Arg(1 << 20);
// Hostile: one word each. Time must grow about as the length.
BENCHMARK_CAPTURE(encode, one_letter, "a")
    ->Arg(100'000)
    ->Arg(1'000'000)
    ->Arg(10'000'000)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode, newlines, "\n")->Arg(100'000)->Arg(1'000'000)->Arg(10'000'000)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode, hindi_no_spaces, kHindiNoSpaces)
    ->Arg(100'000)
    ->Arg(1'000'000)
    ->Arg(10'000'000)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode, markers, "<|im_start|>a")->Arg(1'000'000)->Arg(10'000'000)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode, half_markers, "<|im_start|")->Arg(1'000'000)->Arg(10'000'000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace vayu
