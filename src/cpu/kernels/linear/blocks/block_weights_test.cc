#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"
#include "cpu/kernels/linear/blocks/block_values.h"
#include "cpu/kernels/linear/blocks/quantized_rows.h"
#include "cpu/kernels/linear/linear.h"
#include "io/gguf/ggml_types.h"
#include "tensor/dtype.h"

namespace kvlathe {
namespace {

struct TypeCase {
  WeightType type;
  GgmlType stored;
  std::vector<int> halves;  // offsets of a block's F16 numbers
};

const std::vector<TypeCase>& Types() {
  static const std::vector<TypeCase> kTypes = {
      {WeightType::kQ4_0, GgmlType::kQ4_0, {0}},    {WeightType::kQ4_1, GgmlType::kQ4_1, {0, 2}},
      {WeightType::kQ5_0, GgmlType::kQ5_0, {0}},    {WeightType::kQ5_1, GgmlType::kQ5_1, {0, 2}},
      {WeightType::kQ8_0, GgmlType::kQ8_0, {0}},    {WeightType::kQ2_K, GgmlType::kQ2_K, {80, 82}},
      {WeightType::kQ3_K, GgmlType::kQ3_K, {108}},  {WeightType::kQ4_K, GgmlType::kQ4_K, {0, 2}},
      {WeightType::kQ5_K, GgmlType::kQ5_K, {0, 2}}, {WeightType::kQ6_K, GgmlType::kQ6_K, {208}},
      {WeightType::kIq4Nl, GgmlType::kIq4Nl, {0}},  {WeightType::kIq4Xs, GgmlType::kIq4Xs, {0}},
      {WeightType::kMxfp4, GgmlType::kMxfp4, {}}};
  return kTypes;
}

// Blocks of random bits with scales of both signs near 0.01, or exponents near 2^-7.
std::vector<std::byte> RandomBlocks(const TypeCase& type, int64_t n_blocks, Random& random) {
  const int64_t block_bytes = StoredBlockBytes(type.type);
  std::vector<std::byte> blocks(n_blocks * block_bytes);
  for (std::byte& b : blocks) b = static_cast<std::byte>(random.Below(256));
  for (int64_t i = 0; i < n_blocks; ++i) {
    std::byte* const block = &blocks[i * block_bytes];
    for (const int offset : type.halves) {
      const float scale = static_cast<float>(random.Normal()) * 0.01f;
      ConvertFromFloat(DType::kF16, &scale, 1, block + offset);
    }
    if (type.halves.empty()) block[0] = static_cast<std::byte>(118 + random.Below(6));
  }
  return blocks;
}

// W [n_out, n_in] as it is stored, as numbers, and packed.
struct Weights {
  int64_t n_out, n_in, row_bytes;
  std::vector<std::byte> stored;
  std::vector<float> numbers;
  PackedMatrix packed;
};

Weights RandomWeights(const TypeCase& type, int64_t n_out, int64_t n_in, Random& random) {
  const int64_t n_blocks = n_in / LayoutOfBlocks(type.type).block;
  Weights w = {n_out,
               n_in,
               n_blocks * StoredBlockBytes(type.type),
               RandomBlocks(type, n_out * n_blocks, random),
               std::vector<float>(n_out * n_in),
               *PackedMatrix::Create(n_out, n_in, type.type)};
  DequantizeBlocks(type.stored, w.stored.data(), n_out * n_in, w.numbers.data());
  w.packed.PackBlocks({0, n_out, w.stored.data(), w.row_bytes});
  return w;
}

std::vector<Bf16> RandomRows(int64_t n, Random& random) {
  std::vector<Bf16> x(n);
  for (Bf16& value : x) value = ToBf16(static_cast<float>(random.Normal()));
  return x;
}

TEST(BlockWeightsTest, RowsComeBackAsTheFileHasThem) {
  Random random(1);
  for (const TypeCase& type : Types()) {
    SCOPED_TRACE(WeightTypeName(type.type));
    ASSERT_EQ(StoredBlockBytes(type.type), LayoutOf(type.stored).block_bytes);
    const Weights w = RandomWeights(type, 83, 512, random);
    std::vector<float> row(w.n_in);
    for (int64_t out = 0; out < w.n_out; ++out) {
      w.packed.UnpackRow(out, row.data());
      ASSERT_EQ(std::memcmp(row.data(), &w.numbers[out * w.n_in], w.n_in * sizeof(float)), 0)
          << "row " << out;
    }
    // All at once: a group of 64, and what is left.
    std::vector<float> rows(w.n_out * w.n_in);
    w.packed.UnpackRows(0, w.n_out, rows.data());
    for (size_t i = 0; i < rows.size(); ++i) ASSERT_FLOAT_EQ(rows[i], w.numbers[i]) << i;
    w.packed.UnpackRows(3, 70, rows.data());
    for (int64_t i = 0; i < 70 * w.n_in; ++i) {
      ASSERT_FLOAT_EQ(rows[i], w.numbers[3 * w.n_in + i]) << i;
    }
  }
}

TEST(BlockWeightsTest, PiecesInAnyOrderEqualTheWhole) {
  Random random(2);
  for (const TypeCase& type : Types()) {
    const Weights w = RandomWeights(type, 200, 256, random);
    PackedMatrix pieces = *PackedMatrix::Create(w.n_out, w.n_in, type.type);
    for (const auto& [begin, end] :
         {std::pair{130, 200}, std::pair{0, 1}, std::pair{1, 63}, std::pair{63, 130}}) {
      pieces.PackBlocks({begin, end - begin, &w.stored[begin * w.row_bytes], w.row_bytes});
    }
    EXPECT_EQ(std::memcmp(w.packed.data(), pieces.data(), pieces.n_bytes()), 0)
        << WeightTypeName(type.type);
  }
}

TEST(BlockWeightsTest, TakesHardlyMoreThanTheFile) {
  for (const TypeCase& type : Types()) {
    const int64_t n_out = 256, n_in = 2048;
    const int64_t in_file =
        n_out * n_in / LayoutOfBlocks(type.type).block * StoredBlockBytes(type.type);
    const int64_t in_memory = PackedMatrix::BytesFor(n_out, n_in, type.type);
    EXPECT_LE(in_memory, in_file * 104 / 100) << WeightTypeName(type.type);
  }
}

class BlockProductTest : public testing::TestWithParam<Isa> {
 protected:
  std::vector<float> Product(const PackedMatrix& w, const void* x, DType x_type, int64_t n_rows,
                             bool on_worker = false) {
    std::vector<float> y(n_rows * w.n_out());
    const LinearParams params = {.w = &w,
                                 .n_rows = n_rows,
                                 .x_type = x_type,
                                 .x = x,
                                 .x_stride = w.n_in(),
                                 .y = y.data(),
                                 .y_stride = w.n_out()};
    on_worker ? linear_.RunOnWorker(params, 1) : linear_.Run(params);
    return y;
  }

  ThreadPool pool_{3};
  Linear linear_{&pool_, GetParam()};
};

// Sums in double of the numbers that weights and integers of rows stand for. What a minimum takes
// off again counts for the bound too.
void ExpectNear(const Weights& w, const std::vector<Bf16>& x, const std::vector<float>& y,
                int64_t unit) {
  const int64_t n_rows = std::ssize(x) / w.n_in;
  const double rounding = 0x1p-24 * (12 + std::sqrt(static_cast<double>(w.n_in)));
  std::vector<int8_t> codes(w.n_in);
  std::vector<RowBlock> blocks(w.n_in / kBlockIns);
  int n_wrong = 0;
  for (int64_t row = 0; row < n_rows; ++row) {
    QuantizeRowScalar(DType::kBf16, &x[row * w.n_in], w.n_in, codes.data(), blocks.data());
    for (int64_t out = 0; out < w.n_out; ++out) {
      double expected = 0, sizes = 0;
      for (int64_t first = 0; first < w.n_in; first += unit) {
        double largest_w = 0, sum_x = 0;
        for (int64_t i = first; i < first + unit; ++i) {
          const double number = double{blocks[i / kBlockIns].scale} * codes[i];
          const double weight = w.numbers[out * w.n_in + i];
          expected += weight * number;
          largest_w = std::max(largest_w, std::abs(weight));
          sum_x += std::abs(number);
        }
        sizes += 4 * largest_w * sum_x;
      }
      const double error = std::abs(y[row * w.n_out + out] - expected);
      if (!(error <= rounding * sizes) && ++n_wrong <= 5) {
        ADD_FAILURE() << "y[" << row << "][" << out << "] = " << y[row * w.n_out + out]
                      << ", expected " << expected << " +- " << rounding * sizes;
      }
    }
  }
  EXPECT_EQ(n_wrong, 0);
}

TEST_P(BlockProductTest, MatchesDouble) {
  Random random(3);
  for (const TypeCase& type : Types()) {
    for (const int64_t n_rows : {1, 2, 3, 4, 5, 7, 13, 33, 70}) {
      SCOPED_TRACE(fmt::format("{} {} rows", WeightTypeName(type.type), n_rows));
      const Weights w =
          RandomWeights(type, n_rows == 5 ? 130 : 69, n_rows == 7 ? 1536 : 256, random);
      const std::vector<Bf16> x = RandomRows(n_rows * w.n_in, random);
      ExpectNear(w, x, Product(w.packed, x.data(), DType::kBf16, n_rows), kMinUnit);
    }
  }
}

// Inputs that are no multiple of 256, more rows than a panel, rows of many inputs.
TEST_P(BlockProductTest, MatchesDoubleInLongAndOddShapes) {
  Random random(4);
  for (const TypeCase& type : Types()) {
    SCOPED_TRACE(WeightTypeName(type.type));
    const bool is_long = LayoutOfBlocks(type.type).block == kLongBlock;
    const Weights odd = RandomWeights(type, 33, is_long ? 768 : 576 + 32, random);
    const std::vector<Bf16> rows = RandomRows(300 * odd.n_in, random);
    ExpectNear(odd, rows, Product(odd.packed, rows.data(), DType::kBf16, 300), kMinUnit);
    const Weights wide = RandomWeights(type, 17, 8192, random);
    const std::vector<Bf16> few = RandomRows(2 * wide.n_in, random);
    ExpectNear(wide, few, Product(wide.packed, few.data(), DType::kBf16, 2), kMinUnit);
  }
}

// The largest codes of weights and of rows, all of one sign: what sums of 16 bits must hold.
TEST_P(BlockProductTest, LargestCodesDoNotOverflow) {
  for (const TypeCase& type : Types()) {
    for (const int fill : {0xff, 0x88, 0x80, 0x7f, 0x00, 0x77}) {
      SCOPED_TRACE(fmt::format("{} {:x}", WeightTypeName(type.type), fill));
      Random random(5);
      Weights w = RandomWeights(type, 16, 256, random);
      const float scale = 0.01f;
      const int64_t block_bytes = StoredBlockBytes(type.type);
      std::fill(w.stored.begin(), w.stored.end(), static_cast<std::byte>(fill));
      for (int64_t i = 0; i < std::ssize(w.stored); i += block_bytes) {
        for (const int offset : type.halves) {
          ConvertFromFloat(DType::kF16, &scale, 1, &w.stored[i + offset]);
        }
        if (type.halves.empty()) w.stored[i] = static_cast<std::byte>(120);
      }
      DequantizeBlocks(type.stored, w.stored.data(), 16 * 256, w.numbers.data());
      w.packed.PackBlocks({0, 16, w.stored.data(), w.row_bytes});
      for (const float value : {1.0f, -1.0f}) {
        const std::vector<Bf16> x(2 * 256, ToBf16(value));
        ExpectNear(w, x, Product(w.packed, x.data(), DType::kBf16, 2), kMinUnit);
      }
    }
  }
}

TEST_P(BlockProductTest, RowsAreThoseOfARowAlone) {
  Random random(6);
  linear_.set_deterministic(true);
  for (const TypeCase& type : Types()) {
    SCOPED_TRACE(WeightTypeName(type.type));
    const Weights w = RandomWeights(type, 70, 512, random);
    const int64_t n_rows_max = 70;
    const std::vector<Bf16> x = RandomRows(n_rows_max * w.n_in, random);
    std::vector<float> alone;
    for (int64_t row = 0; row < n_rows_max; ++row) {
      const std::vector<float> y = Product(w.packed, &x[row * w.n_in], DType::kBf16, 1);
      alone.insert(alone.end(), y.begin(), y.end());
    }
    for (const int64_t n_rows : {2, 3, 8, 17, 64, 70}) {
      const int64_t first = n_rows_max - n_rows;
      const std::vector<float> expected(alone.begin() + first * w.n_out, alone.end());
      EXPECT_TRUE(Product(w.packed, &x[first * w.n_in], DType::kBf16, n_rows) == expected);
      EXPECT_TRUE(Product(w.packed, &x[first * w.n_in], DType::kBf16, n_rows, true) == expected);
    }
  }
}

// Exact rows, and F32 ones, meet the numbers that weights stand for: as dense weights would.
TEST_P(BlockProductTest, ExactRowsAreThoseOfDenseWeights) {
  Random random(7);
  linear_.set_deterministic(true);
  linear_.set_exact_rows(true);
  for (const TypeCase& type : Types()) {
    const Weights w = RandomWeights(type, 130, 512, random);
    for (const DType x_type : {DType::kBf16, DType::kF32}) {
      PackedMatrix dense = *PackedMatrix::Create(w.n_out, w.n_in, DenseWeights(x_type));
      dense.PackRows(0, w.n_out, DType::kF32, w.numbers.data(), w.n_in);
      for (const int64_t n_rows : {1, 9, 70}) {
        std::vector<float> x(n_rows * w.n_in);
        for (float& value : x) value = static_cast<float>(random.Normal());
        std::vector<std::byte> stored(x.size() * SizeOf(x_type));
        ConvertFromFloat(x_type, x.data(), std::ssize(x), stored.data());
        EXPECT_TRUE(Product(w.packed, stored.data(), x_type, n_rows) ==
                    Product(dense, stored.data(), x_type, n_rows))
            << WeightTypeName(type.type) << " " << DTypeName(x_type) << " " << n_rows;
      }
    }
  }
}

TEST_P(BlockProductTest, BiasTypesOfYAndSumsAreThoseOfDenseWeights) {
  Random random(8);
  const Weights w = RandomWeights(Types()[0], 37, 64, random);
  const std::vector<Bf16> x = RandomRows(3 * w.n_in, random);
  const std::vector<float> plain = Product(w.packed, x.data(), DType::kBf16, 3);
  std::vector<float> bias(w.n_out);
  for (float& value : bias) value = static_cast<float>(random.Normal());
  const int64_t y_stride = w.n_out + 5;
  for (const bool accumulate : {false, true}) {
    std::vector<float> y(3 * y_stride, 7.0f);
    linear_.Run({.w = &w.packed,
                 .n_rows = 3,
                 .x = x.data(),
                 .x_stride = w.n_in,
                 .bias = bias.data(),
                 .y = y.data(),
                 .y_stride = y_stride,
                 .accumulate = accumulate});
    for (int64_t i = 0; i < 3 * y_stride; ++i) {
      const int64_t row = i / y_stride, out = i % y_stride;
      const float sum = out < w.n_out ? plain[row * w.n_out + out] + bias[out] : 0;
      const float expected = out < w.n_out ? (accumulate ? sum + 7.0f : sum) : 7.0f;
      EXPECT_EQ(y[i], expected) << row << " " << out;
    }
  }
  std::vector<Bf16> y(3 * w.n_out);
  linear_.Run({.w = &w.packed,
               .n_rows = 3,
               .x = x.data(),
               .x_stride = w.n_in,
               .y = y.data(),
               .y_stride = w.n_out,
               .y_type = DType::kBf16});
  for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i].bits, ToBf16(plain[i]).bits);
}

TEST_P(BlockProductTest, WhatIsNotFiniteStaysSo) {
  Random random(9);
  for (const TypeCase& type : Types()) {
    const Weights w = RandomWeights(type, 16, 256, random);
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      std::vector<Bf16> x = RandomRows(2 * w.n_in, random);
      x[w.n_in + 40] = ToBf16(bad);
      const std::vector<float> y = Product(w.packed, x.data(), DType::kBf16, 2);
      for (int64_t out = 0; out < w.n_out; ++out) {
        EXPECT_TRUE(std::isfinite(y[out]));
        EXPECT_FALSE(std::isfinite(y[w.n_out + out])) << WeightTypeName(type.type);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, BlockProductTest, testing::ValuesIn(AvailableIsas()),
                         [](const auto& isa) { return std::string(IsaName(isa.param)); });

TEST(QuantizedRowsTest, EveryInstructionSetGivesTheSameBits) {
  if (AvailableIsas().back() == Isa::kScalar) GTEST_SKIP() << "this processor has no AVX2";
  Random random(10);
  const int64_t n_in = 32 * 40;
  std::vector<float> x(n_in);
  for (int64_t i = 0; i < n_in; ++i) {
    x[i] = static_cast<float>(random.Normal() * std::pow(10.0, static_cast<int>(i / 32) - 20));
  }
  std::fill(x.begin() + 64, x.begin() + 96, 0.0f);
  for (const DType type : {DType::kBf16, DType::kF32}) {
    std::vector<std::byte> stored(n_in * SizeOf(type));
    ConvertFromFloat(type, x.data(), n_in, stored.data());
    std::vector<int8_t> codes[2] = {std::vector<int8_t>(n_in), std::vector<int8_t>(n_in)};
    std::vector<RowBlock> blocks[2] = {std::vector<RowBlock>(40), std::vector<RowBlock>(40)};
    QuantizeRowScalar(type, stored.data(), n_in, codes[0].data(), blocks[0].data());
    QuantizeRowAvx2(type, stored.data(), n_in, codes[1].data(), blocks[1].data());
    EXPECT_EQ(codes[0], codes[1]);
    EXPECT_EQ(std::memcmp(blocks[0].data(), blocks[1].data(), 40 * sizeof(RowBlock)), 0);
    // Nearest codes of 127 steps.
    for (int64_t i = 0; i < n_in; ++i) {
      float value;
      ConvertToFloat(type, stored.data() + i * SizeOf(type), 1, &value);
      const double scale = blocks[0][i / 32].scale;
      if (scale < 1e-32) continue;
      EXPECT_LE(std::abs(value - scale * codes[0][i]), scale * 0.5001) << i;
    }
  }
}

}  // namespace
}  // namespace kvlathe
