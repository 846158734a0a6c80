// reserve_matrix and fill: any order, any threads, and what pack_matrix gives.
#include "ops/gemm/matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>

#include "ops/cpu/op_test_util.h"
#include "ops/gemm/cpu_matrix.h"
#include "ops/gemm/linear.h"
#include "ops/gemm/matrix_test_util.h"

namespace vayu::ops {
namespace {

struct Piece {
  size_t part;
  int64_t first_row;
  int64_t num_rows;
};

std::vector<Piece> shuffled_pieces(TestRandom& random, std::span<const MatrixView> views) {
  std::vector<Piece> pieces;
  for (size_t part = 0; part < views.size(); ++part) {
    for (int64_t row = 0; row < views[part].rows;) {
      const int64_t rows = std::min(random.integer(1, 3) * kFillRows, views[part].rows - row);
      pieces.push_back({part, row, rows});
      row += rows;
    }
  }
  std::shuffle(pieces.begin(), pieces.end(), random.engine());
  return pieces;
}

std::unique_ptr<Matrix> reserve(const OpContext& ctx, std::span<const MatrixView> views) {
  std::vector<PartShape> shapes;
  for (const MatrixView& view : views) shapes.push_back({view.format, view.rows, view.name});
  auto reserved = reserve_matrix(ctx, views[0].cols, shapes);
  EXPECT_TRUE(reserved.ok());
  return std::move(reserved).value();
}

void fill_from_threads(Matrix& matrix, std::span<const MatrixView> views, const std::vector<Piece>& pieces) {
  constexpr size_t kThreads = 4;
  std::vector<std::thread> threads;
  for (size_t worker = 0; worker < kThreads; ++worker) {
    threads.emplace_back([&, worker] {
      for (size_t i = worker; i < pieces.size(); i += kThreads) {
        const Piece& piece = pieces[i];
        const MatrixView& view = views[piece.part];
        const auto* data = static_cast<const uint8_t*>(view.data);
        matrix.fill(piece.part, piece.first_row, piece.num_rows,
                    data + piece.first_row * row_bytes(view.format, view.cols));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<float> all_rows(const OpContext& ctx, const Matrix& matrix) {
  std::vector<int32_t> ids(matrix.rows());
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<float> rows(matrix.rows() * matrix.cols());
  gather_rows(ctx, matrix, ids.data(), rows.data(), matrix.rows());
  return rows;
}

TEST(Matrix, FilledInAnyOrderFromSeveralThreadsEqualsPacked) {
  TestRandom random;
  ThreadPool pool(3);
  for (DataFormat format : matrix_formats()) {
    SCOPED_TRACE(format_info(format).name);
    const DataFormat formats[] = {format, DataFormat::kQ8_0, format};
    const int64_t rows[] = {93, 16, 40};
    const TestMatrix m = random_matrix(random.engine(), formats, rows, 256);
    const auto pieces = shuffled_pieces(random, m.views);
    for (const OpContext& ctx : {OpContext{Backend::kReference, nullptr}, OpContext{Backend::kCpu, &pool}}) {
      const auto packed = std::move(pack_matrix(ctx, m.views)).value();
      const auto filled = reserve(ctx, m.views);
      fill_from_threads(*filled, m.views, pieces);
      EXPECT_EQ(filled->rows(), m.rows);
      EXPECT_EQ(filled->bytes(), packed->bytes());
      EXPECT_EQ(all_rows(ctx, *filled), all_rows(ctx, *packed));
    }
  }
}

TEST(Matrix, PaddingOfTheLastTileIsZero) {
  ThreadPool pool(1);
  const std::vector<float> ones(20 * 32, 1.0f);
  const MatrixView view{ones.data(), DataFormat::kF32, 20, 32, "ones"};
  const int64_t bytes = 2 * kTileRows * 32 * static_cast<int64_t>(sizeof(float));
  {
    const AlignedBytes dirty(static_cast<uint8_t*>(::operator new[](bytes, std::align_val_t{64})));
    std::memset(dirty.get(), 0xFF, bytes);  // what the allocator hands out next
  }
  const auto matrix = std::move(pack_matrix({Backend::kCpu, &pool}, {&view, 1})).value();
  ASSERT_EQ(matrix->bytes(), bytes);
  const PackedPart& part = dynamic_cast<const CpuMatrix&>(*matrix).parts()[0];
  const auto* floats = reinterpret_cast<const float*>(part.tiles);
  for (int64_t i = 0; i < bytes / 4; ++i) {
    const int64_t row = i / (32 * kTileRows) * kTileRows + i % kTileRows;
    ASSERT_EQ(floats[i], row < 20 ? 1.0f : 0.0f) << i;
  }
}

TEST(Matrix, FormatsThatAreNotMultipliedFromAreRefusedByName) {
  ThreadPool pool(1);
  for (Backend backend : {Backend::kReference, Backend::kCpu}) {
    for (DataFormat format : {DataFormat::kF8E4M3, DataFormat::kF8E5M2}) {
      const PartShape parts[] = {{DataFormat::kBF16, 16, "good"}, {format, 16, "layers.0.mlp"}};
      const auto reserved = reserve_matrix({backend, &pool}, 64, parts);
      ASSERT_FALSE(reserved.ok());
      EXPECT_EQ(reserved.error().kind, ErrorKind::kUnsupported);
      EXPECT_NE(reserved.error().message.find("layers.0.mlp"), std::string::npos) << reserved.error().message;
    }
  }
}

}  // namespace
}  // namespace vayu::ops
