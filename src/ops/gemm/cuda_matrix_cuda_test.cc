// What is read back from matrices filled in pieces: bit for bit what went in, at the places of cuda_matrix.h.
#include "ops/gemm/cuda_matrix.h"

#include <numeric>
#include <thread>

#include "ops/cuda/cuda_test_util.h"

namespace vayu::ops {
namespace {

template <class T>
std::vector<T> read_back(const void* device, int64_t count) {
  std::vector<T> out(count);
  EXPECT_TRUE(copy_to_host(out.data(), device, count * static_cast<int64_t>(sizeof(T)), nullptr).ok());
  EXPECT_TRUE(synchronize(nullptr).ok());
  return out;
}

struct Case {
  WeightScale scale;
  std::vector<int64_t> part_rows;
  int64_t cols;
  int32_t ffn = 0;
  bool pad_cols = false;

  int64_t rows() const { return std::accumulate(part_rows.begin(), part_rows.end(), int64_t{0}); }
  int64_t scales_a_row() const { return scale == WeightScale::kBlock ? cols / kScaleGroup : 1; }
};

// Rows of all parts, one behind the other, and the scales of each.
struct Content {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
};

Content random_content(TestRandom& random, const Case& c) {
  Content out;
  out.codes.resize(c.rows() * c.cols);
  for (uint8_t& code : out.codes) code = static_cast<uint8_t>(random.integer(0, 255));  // NaN codes too
  const int64_t per = c.scales_a_row();
  for (const int64_t rows : c.part_rows) {
    std::vector<float> block(per);
    for (int64_t r = 0; r < rows; ++r) {
      if (c.scale == WeightScale::kRow || r % 128 == 0) {
        for (float& s : block) s = static_cast<float>(0.01 + random.uniform());
      }
      out.scales.insert(out.scales.end(), block.begin(), block.end());
    }
  }
  return out;
}

// Pieces of the loader: multiples of 16 rows, in any order, from two threads.
void fill_in_pieces(TestRandom& random, const Case& c, Matrix& matrix, const Content& content) {
  struct Piece {
    size_t part;
    int64_t first, count, row;
  };
  std::vector<Piece> pieces;
  int64_t row = 0;
  for (size_t part = 0; part < c.part_rows.size(); ++part) {
    const int64_t rows = c.part_rows[part];
    for (int64_t first = 0; first < rows;) {
      const int64_t count = std::min<int64_t>(rows - first, kFillRows * random.integer(1, rows > 1000 ? 200 : 9));
      pieces.push_back({part, first, count, row + first});
      first += count;
    }
    row += rows;
  }
  for (size_t i = pieces.size(); i > 1; --i) std::swap(pieces[i - 1], pieces[random.integer(0, i - 1)]);
  const auto run = [&](size_t begin) {
    for (size_t i = begin; i < pieces.size(); i += 2) {
      const Piece& p = pieces[i];
      matrix.fill_scaled(p.part, p.first, p.count, &content.codes[p.row * c.cols],
                         &content.scales[p.row * c.scales_a_row()]);
    }
  };
  std::thread other(run, 1);
  run(0);
  other.join();
}

void check_codes(TestRandom& random, const Case& c) {
  SCOPED_TRACE(::testing::Message() << c.rows() << " x " << c.cols << " ffn " << c.ffn << " scale "
                                    << static_cast<int>(c.scale));
  std::vector<PartShape> parts;
  for (const int64_t rows : c.part_rows) parts.push_back({DataFormat::kF8E4M3, rows, "w"});
  const CudaMatrixShape shape{c.scale, c.cols, c.ffn, c.pad_cols};
  const auto matrix = std::move(CudaMatrix::create(shape, parts)).value();
  EXPECT_EQ(matrix->bytes(), device_matrix_bytes(shape, c.rows()));
  const Content content = random_content(random, c);
  fill_in_pieces(random, c, *matrix, content);

  const DeviceMatrix& view = device_view(*matrix);
  const auto codes = read_back<uint8_t>(view.data, view.rows * view.cols);
  const auto scales = read_back<float>(view.scales, view.num_scales());
  const MatrixPlaces places{c.rows(), c.ffn};
  const int64_t per = c.scales_a_row(), unit = c.scale == WeightScale::kBlock ? kScaleBlockRows : 1;
  std::vector<uint8_t> want(codes.size(), 0);
  for (int64_t row = 0; row < c.rows(); ++row) {
    const int64_t place = places.of(row);
    std::copy_n(&content.codes[row * c.cols], c.cols, &want[place * view.cols]);
    for (int64_t i = 0; i < per; ++i) {
      ASSERT_EQ(scales[place / unit * per + i], content.scales[row * per + i]) << "row " << row << " scale " << i;
    }
  }
  EXPECT_EQ(codes, want);
}

TEST(CudaMatrixCuda, CodesAndScalesStayAsTheyAre) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  check_codes(random, {WeightScale::kRow, {48, 16, 100}, 200});
  check_codes(random, {WeightScale::kRow, {70}, 200, 0, true});
  check_codes(random, {WeightScale::kRow, {96, 96, 96, 96}, 256, 96});  // gate, up, gate, up
  check_codes(random, {WeightScale::kRow, {400, 400}, 144, 200});       // gate over up in one tensor
  check_codes(random, {WeightScale::kBlock, {192, 64, 128, 72}, 384});  // queries, keys, values, and a ragged end
  check_codes(random, {WeightScale::kBlock, {96, 96, 96, 96}, 256, 96});
  check_codes(random, {WeightScale::kBlock, {704, 704}, 256, 704});
  check_codes(random, {WeightScale::kBlock, {128, 128, 128, 128}, 128, 128});
  const int64_t many = unless_short(5000, 300);  // more than the staging memory holds
  check_codes(random, {WeightScale::kRow, {many}, 4096});
  check_codes(random, {WeightScale::kBlock, {many}, 4096});
}

// Codes and BF16 in one matrix. The BF16 rows are 448 times a power of two at most and multiples of what E4M3 has under
// that: the search keeps the rule's scale, and their codes come out exactly.
TEST(CudaMatrixCuda, PartsInBf16AreQuantisedBesideCodes) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  const int64_t cols = 208, rows = 64;
  const std::vector<PartShape> parts = {{DataFormat::kF8E4M3, rows, "q"}, {DataFormat::kBF16, rows, "k"}};
  const auto matrix = std::move(CudaMatrix::create({WeightScale::kRow, cols, 0, false}, parts)).value();
  std::vector<uint8_t> codes(2 * rows * cols);
  std::vector<float> scales(2 * rows), values(rows * cols);
  for (uint8_t& code : codes) {
    code = static_cast<uint8_t>(random.integer(0, 0x7e) | random.integer(0, 1) << 7);
    if (code == 0x80) code = 0;
  }
  for (int64_t r = 0; r < 2 * rows; ++r) {
    scales[r] = std::exp2(static_cast<float>(random.integer(-12, 3)));
    codes[r * cols + random.integer(0, cols - 1)] = 0x7e;
  }
  dequantize_row(DataFormat::kF8E4M3, &codes[rows * cols], values.data(), rows * cols);
  for (int64_t i = 0; i < rows * cols; ++i) values[i] *= scales[rows + i / cols];
  const std::vector<Bf16> bf16 = as_bf16(values);
  matrix->fill(1, 0, rows, bf16.data());
  matrix->fill_scaled(0, 0, rows, codes.data(), scales.data());
  const DeviceMatrix& view = device_view(*matrix);
  EXPECT_EQ(read_back<uint8_t>(view.data, view.rows * view.cols), codes);
  EXPECT_EQ(read_back<float>(view.scales, view.rows), scales);
}

// Needs no device.
TEST(CudaMatrixCuda, StagingKeepsTheFirstFailure) {
  WeightStaging staging;
  staging.keep({});
  EXPECT_TRUE(staging.failure().ok());
  for (const char* what : {"first", "second"}) staging.keep(make_error(ErrorKind::kUnavailable, "{}", what));
  staging.keep({});
  ASSERT_FALSE(staging.failure().ok());
  EXPECT_EQ(staging.failure().error().message, "first");
}

// Places are taken by more threads than there are.
TEST(CudaMatrixCuda, ThreadsTakeTheirTurn) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  const Case c{WeightScale::kRow, {640}, 256};
  const Content content = random_content(random, c);
  const std::vector<PartShape> parts = {{DataFormat::kF8E4M3, c.rows(), "w"}};
  const auto staging = std::move(WeightStaging::create(2)).value();
  const auto matrix = std::move(CudaMatrix::create({c.scale, c.cols, 0, false}, parts, staging.get())).value();
  std::vector<std::thread> threads;
  for (int64_t first = 0; first < c.rows(); first += c.rows() / 8) {
    threads.emplace_back([&, first] {
      for (int64_t row = first; row < first + c.rows() / 8; row += kFillRows) {
        matrix->fill_scaled(0, row, kFillRows, &content.codes[row * c.cols], &content.scales[row]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(staging->failure().ok());
  const DeviceMatrix& view = device_view(*matrix);
  EXPECT_EQ(read_back<uint8_t>(view.data, view.rows * view.cols), content.codes);
  EXPECT_EQ(read_back<float>(view.scales, view.rows), content.scales);
}

TEST(CudaMatrixCuda, Bf16StaysAsItIs) {
  VAYU_NEEDS_DEVICE();
  TestRandom random;
  for (const int32_t ffn : {0, 96}) {
    const int64_t cols = 200, rows = 192;
    const std::vector<PartShape> parts = {{DataFormat::kBF16, rows, "w"}};
    const auto matrix = std::move(CudaMatrix::create({WeightScale::kNone, cols, ffn, true}, parts)).value();
    std::vector<uint16_t> bits(rows * cols);
    for (uint16_t& b : bits) b = static_cast<uint16_t>(random.integer(0, 0xffff));
    matrix->fill(0, 96, rows - 96, &bits[96 * cols]);
    matrix->fill(0, 0, 96, bits.data());
    const DeviceMatrix& view = device_view(*matrix);
    std::vector<uint16_t> want(view.rows * view.cols, 0);
    for (int64_t row = 0; row < rows; ++row) {
      std::copy_n(&bits[row * cols], cols, &want[MatrixPlaces{rows, ffn}.of(row) * view.cols]);
    }
    EXPECT_EQ(read_back<uint16_t>(view.data, view.rows * view.cols), want) << ffn;
  }
}

}  // namespace
}  // namespace vayu::ops
