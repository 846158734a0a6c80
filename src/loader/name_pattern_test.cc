#include "loader/name_pattern.h"

#include <gtest/gtest.h>

#include <vector>

namespace vayu::loader {
namespace {

TEST(NamePattern, WithAndWithoutWeight) {
  EXPECT_TRUE(matches_name("lm_head", "lm_head.weight"));
  EXPECT_TRUE(matches_name("lm_head.weight", "lm_head.weight"));
  EXPECT_TRUE(matches_name("lm_head", "lm_head"));
  EXPECT_FALSE(matches_name("lm_head", "lm_head.bias"));
  EXPECT_FALSE(matches_name("lm_head", "model.lm_head.weight"));
  EXPECT_FALSE(matches_name("lm_hea", "lm_head.weight"));
  EXPECT_FALSE(matches_name("", "lm_head.weight"));
}

TEST(NamePattern, Stars) {
  EXPECT_TRUE(matches_name("*", "a"));
  EXPECT_TRUE(matches_name("blk.*.attn_*", "blk.17.attn_output.weight"));
  EXPECT_TRUE(matches_name("blk.*.attn_q", "blk.3.attn_q.weight"));
  EXPECT_FALSE(matches_name("blk.*.attn_q", "blk.3.attn_q_norm.weight"));
  EXPECT_TRUE(matches_name("model.layers.0.*", "model.layers.0.mlp.experts.7.down_proj.weight"));
  EXPECT_FALSE(matches_name("model.layers.0.*", "model.layers.10.mlp.down_proj.weight"));
  EXPECT_TRUE(matches_name("*.down_proj", "model.layers.1.mlp.down_proj.weight"));
  EXPECT_TRUE(matches_name("a*b*c", "aXbYbZc"));
  EXPECT_FALSE(matches_name("a*b*c", "aXbYbZ"));
  EXPECT_TRUE(matches_name("**a**", "bab"));
}

TEST(NamePattern, Any) {
  const std::vector<std::string> patterns = {"lm_head", "*.q_proj"};
  EXPECT_TRUE(matches_any(patterns, "x.q_proj.weight"));
  EXPECT_FALSE(matches_any(patterns, "x.k_proj.weight"));
  EXPECT_FALSE(matches_any({}, "x"));
}

}  // namespace
}  // namespace vayu::loader
