#include "apps/bench/step_batches.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "loader/json_config.h"
#include "model/dummy_checkpoint.h"
#include "model/geometries.h"
#include "model/registry.h"

namespace vayu::bench {
namespace {

TEST(StepBatch, MixedRowsOwnTheirPages) {
  StepBatch batch(1000, 16, 3);
  batch.add(0, 30, 1);   // decodes at context 31
  batch.add(2, 0, 33);   // a prompt
  batch.add(1, 16, 16);  // a later chunk
  const Batch& b = batch.batch();
  EXPECT_EQ(b.num_tokens(), 50);
  EXPECT_EQ(b.qo_indptr, (std::vector<int32_t>{0, 1, 34, 50}));
  EXPECT_EQ(b.kv_lens, (std::vector<int32_t>{31, 33, 32}));
  EXPECT_EQ(b.kv_indptr, (std::vector<int32_t>{0, 2, 5, 7}));
  EXPECT_EQ(b.page_table, (std::vector<PageId>{0, 1, 6, 7, 8, 3, 4}));
  EXPECT_EQ(b.slot_mapping[0], 30);
  EXPECT_EQ(b.slot_mapping[1], 96);
  EXPECT_EQ(b.slot_mapping[34], 48 + 16);
  EXPECT_EQ(b.positions[33], 32);
  EXPECT_EQ(b.logit_rows, (std::vector<int32_t>{0, 33, 49}));
  ASSERT_EQ(b.samples.size(), 3);
  EXPECT_EQ(b.samples[2].logit_row, 2);
  EXPECT_EQ(b.samples[0].params->temperature, 0);
  const std::vector<TokenId> before = b.token_ids;
  batch.draw_tokens();
  EXPECT_NE(b.token_ids, before);
  EXPECT_TRUE(std::all_of(b.token_ids.begin(), b.token_ids.end(), [](TokenId id) { return id >= 0 && id < 1000; }));
  batch.clear();
  EXPECT_EQ(batch.batch().num_tokens(), 0);
  EXPECT_EQ(batch.batch().num_rows(), 0);
}

TEST(EvenRouting, OnlyTheSelectionBiasIsGone) {
  for (const char* name : {"sarvam-30b", "sarvam-105b"}) {
    auto config = loader::JsonConfig::parse(std::string(model::find_geometry(name)->config_json), name);
    ASSERT_TRUE(config.ok());
    const model::Recipe recipe = std::move(model::recipe_of(**config)).value();
    const auto dummy = model::dummy_checkpoint(recipe, 1, name);
    const auto even = even_routing(dummy);
    int32_t biases = 0;
    for (const loader::CheckpointTensor& tensor : even->tensors()) {
      const bool bias = tensor.name.find("bias") != std::string::npos;
      biases += bias;
      EXPECT_EQ(even->seeded(tensor) == nullptr, bias) << tensor.name;
      std::vector<float> row(tensor.cols()), same(tensor.cols());
      ASSERT_TRUE(even->read_rows(tensor, 0, 1, reinterpret_cast<std::byte*>(row.data())).ok());
      ASSERT_TRUE(dummy->read_rows(tensor, 0, 1, reinterpret_cast<std::byte*>(same.data())).ok());
      if (bias) same.assign(tensor.cols(), 0);
      EXPECT_EQ(row, same) << tensor.name;
    }
    EXPECT_EQ(biases, recipe.config.num_layers - 1) << name;
  }
}

}  // namespace
}  // namespace vayu::bench
