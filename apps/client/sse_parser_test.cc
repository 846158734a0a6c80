#include "apps/client/sse_parser.h"

#include <gtest/gtest.h>

#include <vector>

namespace vayu::client {
namespace {

std::vector<std::string> parse_in_pieces(std::string_view bytes, size_t piece) {
  SseParser parser;
  std::vector<std::string> events;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    EXPECT_TRUE(parser.push(bytes.substr(at, piece), [&](std::string_view data) { events.emplace_back(data); }));
  }
  return events;
}

TEST(SseParser, EveryCutGivesTheSameEvents) {
  const std::string stream =
      ": ping\n\ndata: {\"a\":1}\n\nevent: x\r\ndata:नमस्ते\r\ndata: two\r\n\r\nid: 7\rdata: \r\r\n\ndata: "
      "[DONE]\n\ndata: cut off";
  const std::vector<std::string> expected = {"{\"a\":1}", "नमस्ते\ntwo", "", "[DONE]"};
  for (size_t piece = 1; piece <= stream.size(); ++piece) EXPECT_EQ(parse_in_pieces(stream, piece), expected) << piece;
}

TEST(SseParser, OnlyOneSpaceAfterTheColonIsDropped) {
  EXPECT_EQ(parse_in_pieces("data:  x \n\n", 3), std::vector<std::string>{" x "});
}

TEST(SseParser, EventOverTheLimitStopsTheStream) {
  SseParser parser(32);
  int events = 0;
  const auto count = [&](std::string_view) { ++events; };
  EXPECT_TRUE(parser.push("data: short\n\n", count));
  EXPECT_FALSE(parser.push("data: " + std::string(40, 'x'), count));
  EXPECT_FALSE(parser.push("\n\ndata: y\n\n", count));
  EXPECT_EQ(events, 1);

  SseParser many(32);  // many small data lines count together
  bool ok = true;
  for (int i = 0; i < 20 && ok; ++i) ok = many.push("data: abc\n", count);
  EXPECT_FALSE(ok);
}

}  // namespace
}  // namespace vayu::client
