#include "server/routes.h"

#include <gtest/gtest.h>

namespace vayu::server {
namespace {

TEST(Routes, TargetsAreNormalisedOnce) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"/health", "/health"},
      {"/health/", "/health"},
      {"//health", "/health"},
      {"/health?x=/../y", "/health"},
      {"/%68ealth", "/health"},
      {"/%2568ealth", "/%68ealth"},
      {"/v1/./models", "/v1/models"},
      {"/health/../v1/models", "/v1/models"},
      {"/../../v1/models", "/v1/models"},
      {"/v1%2fmodels", "/v1/models"},
      {"/health%2f..%2fmetrics", "/metrics"},
      {"http://host:80/v1/models", "/v1/models"},
      {"HTTP://host", "/"},
      {"http://host?x", "/"},
      {"/", "/"},
      {"", "/"},
      {"/a#b", "/a"},
  };
  for (const auto& [target, path] : cases) EXPECT_EQ(normalise_target(target), path) << target;
  for (const char* bad : {"*", "health", "/%", "/%4", "/%zz", "/a%00b", "/a%0d%0ab", "ftp://x/y"}) {
    EXPECT_EQ(normalise_target(bad), std::nullopt) << bad;
  }
}

TEST(Routes, OnlyTheShortListIsOpen) {
  std::vector<std::string> open;
  for (const Route& route : route_table()) {
    if (route.open) open.emplace_back(route.path);
  }
  EXPECT_EQ(open, (std::vector<std::string>{"/", "/health", "/ready"}));
}

TEST(Routes, ModelNamesMayHoldSlashes) {
  EXPECT_EQ(find_route("/v1/models/org/name")->id, RouteId::kModel);
  EXPECT_EQ(find_route("/v1/models")->id, RouteId::kModels);
  EXPECT_EQ(find_route("/v1/modelsx"), nullptr);
  EXPECT_EQ(find_route("/HEALTH"), nullptr);
}

TEST(Routes, ApiKeys) {
  const std::vector<std::string> keys = {"alpha", "beta"};
  EXPECT_EQ(find_api_key("Bearer alpha", keys), 0u);
  EXPECT_EQ(find_api_key("bearer beta", keys), 1u);
  EXPECT_EQ(find_api_key("BEARER   beta ", keys), 1u);
  for (const char* wrong : {"", "Bearer", "Bearer ", "Bearer alph", "Bearer alphaa", "Bearer Alpha", "Basic alpha",
                            "alpha", "Bearer alpha beta", "Bearer alphaalpha"}) {
    EXPECT_EQ(find_api_key(wrong, keys), std::nullopt) << wrong;
  }
  EXPECT_EQ(find_api_key("Bearer ", std::vector<std::string>{""}), std::nullopt);
}

}  // namespace
}  // namespace vayu::server
