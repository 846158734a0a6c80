// The batch on its way to the device.
#include "model/device_buffers.h"

#include "model/testing/batch_builder.h"
#include "ops/cuda/cuda_test_util.h"

namespace vayu::model {
namespace {

ModelConfig small_config(int32_t head_dim) {
  ModelConfig config;
  config.vocab_size = 512;
  config.hidden = 256;
  config.num_layers = 1;
  config.num_q_heads = 16;
  config.num_kv_heads = 2;
  config.head_dim = head_dim;
  config.ffn = 512;
  return config;
}

DeviceModelOptions options_for(int32_t rows, int32_t context, ops::DeviceKvFormat kv_format) {
  return {.kv_format = kv_format,
          .max_step_tokens = 4 * context,
          .max_rows = rows,
          .max_logits = rows,
          .max_context = context};
}

// Both batches in pinned memory begin where the items of prompts may be written 16 bytes at a time, whatever the
// number of rows and pages: needs no device.
TEST(DeviceBuffersCuda, BothBatchesAreAligned) {
  for (const int32_t head_dim : {32, 64, 128}) {
    for (const auto format : {ops::DeviceKvFormat::kBF16, ops::DeviceKvFormat::kF8E4M3}) {
      for (int32_t rows = 1; rows <= 67; ++rows) {
        for (const int32_t context : {1, 16, 17, 100, 8192}) {
          const auto plan = plan_device_buffers(small_config(head_dim), options_for(rows, context, format), {});
          ASSERT_EQ(plan.input_words * sizeof(int32_t) % alignof(ops::PrefillItem), 0)
              << rows << " rows of " << context << " tokens";
        }
      }
    }
  }
}

// Prompts in both places in turn, with every small number of rows.
TEST(DeviceBuffersCuda, PromptsFillBothBatches) {
  VAYU_NEEDS_DEVICE();
  const ModelConfig config = small_config(64);
  for (const auto format : {ops::DeviceKvFormat::kBF16, ops::DeviceKvFormat::kF8E4M3}) {
    for (int32_t rows = 1; rows <= 5; ++rows) {
      const DeviceModelOptions options = options_for(rows, 100, format);
      auto buffers = DeviceBuffers::create(plan_device_buffers(config, options, {}), config, options, {});
      ASSERT_TRUE(buffers.ok()) << buffers.error().message;
      for (int turn = 0; turn < 3; ++turn) {
        Batch batch;
        for (int32_t row = 0; row < rows; ++row) {
          testing::TestSequence sequence{std::vector<TokenId>(75, row), {0, 1, 2, 3, 4}, 0};
          testing::append_row(batch, sequence, 75, kDevicePageSize, false);
        }
        const StepShape shape = buffers->fill(batch, config, options, 0, 0);
        EXPECT_EQ(shape.num_tiles, rows * ((75 * 8 + 191) / 192));
        EXPECT_EQ(shape.num_passes, 1);
        EXPECT_EQ(shape.passes[0].num_pages, format == ops::DeviceKvFormat::kF8E4M3 ? rows * 5 : 0);
      }
    }
  }
}

}  // namespace
}  // namespace vayu::model
