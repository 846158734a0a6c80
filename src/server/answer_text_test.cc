#include "server/answer_text.h"

#include <gtest/gtest.h>

#include "server/test_fakes.h"

namespace vayu::server {
namespace {

struct Outcome {
  std::string text;
  int32_t tokens = 0;
  std::string stop;  // the matched one
  bool operator==(const Outcome&) const = default;
};

// Feeds `text` cut into pieces of `piece` bytes and joins what comes out.
Outcome match(const std::string& text, std::vector<std::string> stops, size_t piece, bool include = false) {
  StopMatcher matcher(std::move(stops), include);
  Outcome outcome;
  for (size_t at = 0; at < text.size() && !matcher.matched(); at += piece) {
    outcome.text += matcher.push(text.substr(at, piece));
    ++outcome.tokens;
  }
  outcome.text += matcher.flush();
  if (matcher.matched()) outcome.stop = matcher.matched_stop();
  return outcome;
}

TEST(StopMatcher, EveryCutOfTheTextGivesTheSameResult) {
  const std::string text = "north east south west";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    EXPECT_EQ(match(text, {"t south w"}, piece).text, "north eas") << piece;
    EXPECT_EQ(match(text, {"t south w"}, piece, true).text, "north east south w") << piece;
    EXPECT_EQ(match(text, {"eas", "east", "st s"}, piece).text, "north ") << piece;
    EXPECT_EQ(match(text, {"eas", "east", "st s"}, piece).stop, "eas") << piece;
    EXPECT_EQ(match(text, {"south e"}, piece).text, text) << piece;
    EXPECT_EQ(match(text, {"west"}, piece).text, "north east south ") << piece;
    // "east s" and "st s" end together: the longer one cuts.
    EXPECT_EQ(match(text, {"st s", "east s"}, piece).text, "north ") << piece;
    // The one complete first wins although the other begins earlier.
    EXPECT_EQ(match(text, {"east south", "st"}, piece).text, "north ea") << piece;
  }
}

TEST(StopMatcher, HeldBackTextComesOutAsSoonAsTheMatchFails) {
  StopMatcher matcher({"south e"}, false);
  EXPECT_EQ(matcher.push("go "), "go ");
  EXPECT_EQ(matcher.push("sou"), "");
  EXPECT_EQ(matcher.push("th "), "");
  EXPECT_EQ(matcher.push("w"), "south w");
  EXPECT_FALSE(matcher.matched());
  EXPECT_EQ(matcher.push("s"), "");
  EXPECT_EQ(matcher.flush(), "s");
}

TEST(StopMatcher, RestartsInsideAFailedMatch) {
  for (size_t piece = 1; piece < 5; ++piece) {
    EXPECT_EQ(match("aaab!", {"aab"}, piece).text, "a") << piece;
    EXPECT_EQ(match("ababac", {"abac"}, piece).text, "ab") << piece;
  }
}

TEST(StopMatcher, HindiStopThatEndsInACombiningMark) {
  const std::string text = "नमस्ते दुनिया की ओर";
  for (size_t piece = 1; piece < 10; ++piece) {
    EXPECT_EQ(match(text, {"निया क"}, piece).text, "नमस्ते दु") << piece;
    EXPECT_EQ(match(text, {"की"}, piece).text, "नमस्ते दुनिया ") << piece;
  }
}

class AnswerTextTest : public ::testing::Test {
 protected:
  // Bytes of `text` as tokens, one a byte.
  Outcome run(const std::string& text, AnswerTextOptions options, size_t max_tokens = 1000) {
    AnswerText answer(tokenizer_, std::move(options));
    Outcome outcome;
    for (size_t i = 0; i < std::min(text.size(), max_tokens) && !answer.stopped(); ++i) {
      outcome.text += answer.push(static_cast<unsigned char>(text[i]), false);
    }
    outcome.text += answer.finish();
    outcome.tokens = answer.num_tokens();
    if (answer.stopped()) outcome.stop = answer.matched_stop();
    return outcome;
  }
  FakeTokenizer tokenizer_;
};

TEST_F(AnswerTextTest, CharactersCutOverTokensComeOutWhole) {
  const std::string text = "क्षि தமிழ் 漢字 👩‍👩‍👧 é";
  AnswerText answer(tokenizer_, {});
  std::string joined;
  for (const char c : text) {
    const std::string piece = answer.push(static_cast<unsigned char>(c), false);
    EXPECT_EQ(piece.find("\xEF\xBF\xBD"), std::string::npos);
    // A piece begins at a character's first byte.
    EXPECT_TRUE(piece.empty() || (static_cast<unsigned char>(piece[0]) & 0xc0) != 0x80);
    joined += piece;
  }
  EXPECT_EQ(joined + answer.finish(), text);
}

TEST_F(AnswerTextTest, AnEndInsideACharacterGivesOneReplacement) {
  EXPECT_EQ(run("aक", {}, 3).text, "a\xEF\xBF\xBD");
  EXPECT_EQ(run("aक", {}, 4).text, "aक");
}

TEST_F(AnswerTextTest, CountsTokensUpToTheMatch) {
  const Outcome outcome = run("north east south west", {.stop = {"t south w"}});
  EXPECT_EQ(outcome.text, "north eas");
  EXPECT_EQ(outcome.tokens, 18);
  EXPECT_EQ(outcome.stop, "t south w");
}

TEST_F(AnswerTextTest, MinTokensKeepsItsTextOutOfMatches) {
  EXPECT_EQ(run("stop and stop", {.stop = {"stop"}, .min_tokens = 4}).text, "stop and ");
  EXPECT_EQ(run("stop and go", {.stop = {"stop"}, .min_tokens = 3}).text, "stop and go");
  EXPECT_EQ(run("stop and go", {.stop = {"stop"}, .min_tokens = 0}).text, "");
}

TEST_F(AnswerTextTest, TheEndMarkIsCountedAndNotShown) {
  AnswerText answer(tokenizer_, {.skip_special = false});
  EXPECT_EQ(answer.push('a', false), "a");
  EXPECT_EQ(answer.push(FakeTokenizer::kTurn, false), "<|turn|>");
  EXPECT_EQ(answer.push(FakeTokenizer::kEos, true), "");
  EXPECT_EQ(answer.finish(), "");
  EXPECT_EQ(answer.num_tokens(), 3);
}

}  // namespace
}  // namespace vayu::server
