// Every row of a batch is attended once, in one form, by lists that fit the words set aside for them.
#include "model/latent_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ops/cpu/op_test_util.h"

namespace vayu::model {
namespace {

ModelConfig latent_config(MlaForm form) {
  ModelConfig config;
  config.num_q_heads = 4;
  config.num_kv_heads = 1;
  config.head_dim = 576;
  config.mla = {.latent_dim = 512, .nope_dim = 128, .rope_dim = 64, .v_dim = 128, .form = form};
  return config;
}

TEST(LatentPlan, KernelsAreForThePublishedHeads) {
  MlaConfig mla = latent_config(MlaForm::kAuto).mla;
  EXPECT_TRUE(has_expanded_form(mla));
  mla.v_dim = 64;
  EXPECT_FALSE(has_expanded_form(mla));
}

// 64 heads: the absorbed form has 139,264 bytes a token, the expanded 33,920 bytes a token of context.
TEST(LatentPlan, WorkspaceIsThatOfTheAbsorbedForm) {
  ModelConfig config = latent_config(MlaForm::kAuto);
  config.num_q_heads = 64;
  DeviceModelOptions options{.max_step_tokens = 4096, .max_context = 131072};
  EXPECT_EQ(expanded_token_bytes(config), 33920);
  EXPECT_EQ(expanded_capacity(config, options), 4096 * 139264 / 33920 / 16 * 16);
  options.max_step_tokens = 256;
  EXPECT_EQ(expanded_capacity(config, options), 8192);
  options.max_context = 2000;
  EXPECT_EQ(expanded_capacity(config, options), 2000);
}

TEST(LatentPlan, EveryRowInOneForm) {
  ops::TestRandom random;
  int mixed = 0, expanded = 0;
  for (int round = 0; round < 300; ++round) {
    const auto form = random.integer(0, 1) ? MlaForm::kAuto : MlaForm::kExpanded;
    const ModelConfig config = latent_config(form);
    const DeviceModelOptions options{
        .max_step_tokens = 600, .max_rows = 9, .max_context = static_cast<int32_t>(random.integer(600, 3000))};
    Batch batch;
    batch.clear();
    int32_t tokens_left = options.max_step_tokens;
    for (int64_t r = random.integer(1, options.max_rows); r > 0; --r) {
      const int64_t most = std::min<int64_t>(random.integer(0, 1) ? 1 : 300, tokens_left);
      const auto q_len = static_cast<int32_t>(random.integer(most > 0 ? 1 : 0, most));
      const auto kv_len = q_len + static_cast<int32_t>(random.integer(0, options.max_context - q_len));
      tokens_left -= q_len;
      for (int32_t i = 0; i < (kv_len + 15) / 16; ++i) batch.page_table.push_back(static_cast<PageId>(i * 3 + r));
      for (int32_t i = 0; i < q_len; ++i) batch.token_ids.push_back(i);
      batch.qo_indptr.push_back(batch.qo_indptr.back() + q_len);
      batch.kv_indptr.push_back(static_cast<int32_t>(batch.page_table.size()));
      batch.kv_lens.push_back(kv_len);
    }
    LatentPlanner planner(config, options);
    const int64_t at = random.integer(0, 40), words = LatentPlanner::max_words(config, options);
    alignas(16) static int32_t storage[200000];
    ASSERT_LE(at + words, std::size(storage));
    std::fill(std::begin(storage), std::end(storage), -7);
    LatentStep step;
    const int64_t end = planner.plan(batch, 132, storage, at, step);
    EXPECT_LE(end, at + words);
    EXPECT_TRUE(std::all_of(storage, storage + at, [](int32_t v) { return v == -7; }));
    if (step.num_passes == 0) {
      EXPECT_EQ(end, at);
      continue;
    }
    ++expanded;
    EXPECT_EQ(storage[end], -7);
    EXPECT_EQ(step.items_at % 4, 0);
    std::vector<int32_t> visits(batch.num_rows(), 0);
    const auto* items = reinterpret_cast<const ops::MlaPrefillItem*>(storage + step.items_at);
    for (int32_t p = 0; p < step.num_passes; ++p) {
      for (int32_t i = 0; i < step.passes[p].num_items; ++i) {
        const ops::MlaPrefillItem& item = items[step.passes[p].first_item + i];
        if (item.head != 0 || item.first != 0) continue;
        const auto row = std::upper_bound(batch.qo_indptr.begin(), batch.qo_indptr.end(), item.q_begin) - 1;
        ++visits[row - batch.qo_indptr.begin()];
      }
    }
    for (int32_t r = 0; r < batch.num_rows(); ++r) {
      const int32_t q_len = batch.qo_indptr[r + 1] - batch.qo_indptr[r];
      const bool listed = r >= step.first_row && r < step.first_row + step.num_rows;
      if (listed) {
        const int32_t i = r - step.first_row;
        EXPECT_EQ(storage[step.qo_indptr_at + i] + step.first_token, batch.qo_indptr[r]);
        EXPECT_EQ(storage[step.qo_indptr_at + i + 1] + step.first_token, batch.qo_indptr[r + 1]);
        const int32_t kv_len = storage[step.kv_lens_at + i];
        EXPECT_LE(kv_len, step.max_context);
        if (kv_len > 0) ++visits[r];
        EXPECT_TRUE(kv_len == 0 || kv_len == batch.kv_lens[r]);
      }
      EXPECT_EQ(visits[r], q_len > 0 ? 1 : 0) << "row " << r;
    }
    mixed += step.num_tokens > 0;
    if (step.num_rows > 0) {
      EXPECT_EQ(step.num_tokens, storage[step.qo_indptr_at + step.num_rows]);
    }
  }
  EXPECT_GT(expanded, 50);
  EXPECT_GT(mixed, 20);
}

}  // namespace
}  // namespace vayu::model
