#include "loader/json_config.h"

#include <gtest/gtest.h>

#include "loader/testing/temp_folder.h"

namespace vayu::loader {
namespace {

std::shared_ptr<const JsonConfig> parse(std::string_view text) {
  auto config = JsonConfig::parse(text, "config.json");
  EXPECT_TRUE(config.ok()) << config.error().message;
  return config.ok() ? *config : nullptr;
}

TEST(JsonConfig, ReadsWhatIsThere) {
  const auto c = parse(R"({"i":3,"n":1e6,"b":true,"s":"x","l":["a","b"],"is":[1,-2],"none":null,"o":{"p":{"q":4}}})");
  EXPECT_EQ(*c->integer("i", 0, 9), 3);
  EXPECT_EQ(*c->number("n"), 1e6);
  EXPECT_EQ(*c->number("i"), 3);
  EXPECT_TRUE(*c->boolean_or("b", false));
  EXPECT_EQ(*c->text("s"), "x");
  EXPECT_EQ(*c->texts_or_empty("l"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(*c->integers_or_empty("is"), (std::vector<int32_t>{1, -2}));
  const auto inner = *(*c->object_or_null("o"))->object_or_null("p");
  EXPECT_EQ(*inner->integer("q", 0, 9), 4);
  expect_fault(inner->integer("r", 0, 9), ErrorKind::kCorrupt, {"config.json", "'o.p.r'", "missing"});
}

TEST(JsonConfig, NullIsAbsent) {
  const auto c = parse(R"({"none":null})");
  EXPECT_FALSE(c->has("none"));
  EXPECT_EQ(*c->integer_or("none", 5, 0, 9), 5);
  EXPECT_EQ(*c->number_or("none", 0.5), 0.5);
  EXPECT_EQ(*c->text_or("none", "y"), "y");
  EXPECT_TRUE(*c->boolean_or("none", true));
  EXPECT_EQ(*c->object_or_null("none"), nullptr);
  EXPECT_TRUE(c->texts_or_empty("none")->empty());
  expect_fault(c->integer("none", 0, 9), ErrorKind::kCorrupt, {"'none'", "missing"});
}

TEST(JsonConfig, WrongTypesAndRangesNameTheField) {
  const auto c = parse(R"({"i":3.5,"big":3000000000,"neg":-1,"u":18446744073709551615,"s":7,"l":[1,"a"],)"
                       R"("is":[1.5],"o":[]})");
  if (!c) return;
  for (const char* key : {"i", "s_missing", "l", "o"}) {
    expect_fault(c->integer(key, 0, 9), ErrorKind::kCorrupt, {"config.json", key});
  }
  for (const char* key : {"big", "neg", "u"}) {
    expect_fault(c->integer(key, 0, 9), ErrorKind::kCorrupt, {key, "outside 0 to 9"});
  }
  expect_fault(c->text("s"), ErrorKind::kCorrupt, {"'s'", "string is expected"});
  expect_fault(c->boolean_or("s", true), ErrorKind::kCorrupt, {"'s'"});
  expect_fault(c->number("l"), ErrorKind::kCorrupt, {"'l'"});
  expect_fault(c->texts_or_empty("l"), ErrorKind::kCorrupt, {"'l'", "list of strings"});
  expect_fault(c->integers_or_empty("is"), ErrorKind::kCorrupt, {"'is'", "list of integers"});
  expect_fault(c->object_or_null("o"), ErrorKind::kCorrupt, {"'o'", "object is expected"});
}

TEST(JsonConfig, TextThatIsNoConfiguration) {
  for (const std::string text : {"", "[1]", "3", "{", "{\"a\":1,}", "{\"a\":1}x", "{\"a\":\"\xff\"}"}) {
    expect_fault(JsonConfig::parse(text, "config.json"), ErrorKind::kCorrupt, {"config.json: "});
  }
  expect_fault(JsonConfig::parse(R"({"a":1,"a":2})", "f"), ErrorKind::kCorrupt, {"'a'", "twice"});
  expect_fault(JsonConfig::parse(R"({"o":{"b":1,"b":1}})", "f"), ErrorKind::kCorrupt, {"'b'", "twice"});
  EXPECT_TRUE(JsonConfig::parse(R"({"a":{"x":1},"b":{"x":1}})", "f").ok());
  const std::string deep = "{\"a\":" + std::string(1'000'000, '[');
  expect_fault(JsonConfig::parse(deep, "f"), ErrorKind::kCorrupt, {"deeper than 64"});
  EXPECT_TRUE(JsonConfig::parse("{\"a\":\"" + std::string(100, '[') + "\"}", "f").ok());
}

}  // namespace
}  // namespace vayu::loader
