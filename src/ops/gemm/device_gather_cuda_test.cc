#include "ops/gemm/device_gather.h"

#include "ops/norm/quantize_rows_test_util.h"

namespace vayu::ops {
namespace {

TEST(GatherRowsCuda, MatchesReference) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (int64_t cols : {8, 576, 4096, 10240}) {
    for (int64_t num_rows : {1, 5, 300}) {
      const int64_t table_rows = random.integer(1, 50);
      const std::vector<Bf16> table = random_bf16(random, table_rows * cols);
      std::vector<int32_t> ids(num_rows);
      for (int32_t& id : ids) id = static_cast<int32_t>(random.integer(-2, table_rows + 1));  // some outside
      ids.back() = static_cast<int32_t>(table_rows) - 1;
      std::vector<Bf16> want(num_rows * cols);
      gather_rows_ref({table.data(), ids.data(), want.data(), table_rows, num_rows, cols});
      const DeviceArray<Bf16> device_table(table);
      const DeviceArray<int32_t> device_ids(ids);
      DeviceArray<Bf16> y(num_rows * cols);
      gather_rows_cuda(nullptr, {device_table.get(), device_ids.get(), y.get(), table_rows, num_rows, cols});
      ASSERT_TRUE(last_launch("gather_rows").ok());
      const std::vector<Bf16> got = y.host();
      for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i].bits, want[i].bits) << cols << " at " << i;
    }
  }
}

TEST(GatherRowsCuda, TakesTokensOfTheStepBefore) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  const int64_t table_rows = 40, cols = 264;
  const std::vector<Bf16> table = random_bf16(random, table_rows * cols);
  const DeviceArray<Bf16> device_table(table);
  for (int64_t num_rows : {1, 7, 300}) {
    std::vector<int32_t> ids(num_rows), prev_index(num_rows), prev_tokens(20);
    for (int32_t& token : prev_tokens) token = static_cast<int32_t>(random.integer(0, table_rows - 1));
    prev_tokens[3] = static_cast<int32_t>(table_rows);  // outside
    for (int64_t i = 0; i < num_rows; ++i) {
      prev_index[i] = static_cast<int32_t>(random.integer(-1, 19));
      ids[i] = prev_index[i] < 0 ? static_cast<int32_t>(random.integer(0, table_rows - 1)) : -1;
    }
    prev_index[0] = num_rows == 1 ? 5 : 3;
    GatherRowsArgs args{.table_rows = table_rows, .num_rows = num_rows, .cols = cols};
    std::vector<Bf16> want(num_rows * cols);
    args.table = table.data();
    args.ids = ids.data();
    args.y = want.data();
    args.prev_index = prev_index.data();
    args.prev_tokens = prev_tokens.data();
    gather_rows_ref(args);
    for (int64_t i = 0; i < cols; ++i) {  // the reference does look there
      const int32_t first = prev_tokens[prev_index[0]];
      ASSERT_EQ(want[i].bits, first < table_rows ? table[first * cols + i].bits : 0);
    }
    const DeviceArray<int32_t> device_ids(ids), device_index(prev_index), device_tokens(prev_tokens);
    DeviceArray<Bf16> y(num_rows * cols);
    args.table = device_table.get();
    args.ids = device_ids.get();
    args.y = y.get();
    args.prev_index = device_index.get();
    args.prev_tokens = device_tokens.get();
    gather_rows_cuda(nullptr, args);
    ASSERT_TRUE(last_launch("gather_rows").ok());
    const std::vector<Bf16> got = y.host();
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i].bits, want[i].bits) << num_rows << " at " << i;
  }
}

TEST(GatherRowsCuda, Speed) {
  VAYU_NEEDS_DEVICE();
  if (!speed_wanted()) GTEST_SKIP();
  TestRandom random;
  const int64_t vocab = 32768, cols = 4096;
  const DeviceArray<Bf16> table(vocab * cols);
  for (int64_t rows : {1, 64, 3584}) {
    std::vector<int32_t> ids(rows);
    for (int32_t& id : ids) id = static_cast<int32_t>(random.integer(0, vocab - 1));
    const DeviceArray<int32_t> device_ids(ids);
    DeviceArray<Bf16> y(rows * cols);
    print_speed("gather_rows", std::to_string(rows) + "x4096", double(rows) * cols * 4, [&](CudaStream stream) {
      gather_rows_cuda(stream, {table.get(), device_ids.get(), y.get(), vocab, rows, cols});
    });
  }
}

}  // namespace
}  // namespace vayu::ops
