// Levels against integrals in double, and signs of residuals against their definition.
#include "format/sphere_codes/sphere_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "format/codes/code_lines.h"
#include "format/sphere_codes/residual_signs.h"

namespace kvlathe {
namespace {

double NormalDensity(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * 3.14159265358979); }

// The distinct levels of codes of `bits`, ascending.
std::vector<double> LevelsOf(int bits) {
  const NormalTable& table = kNormalTables[bits - 1];
  std::vector<double> levels;
  for (int code = 0; code < 1 << bits; ++code) {
    levels.push_back(static_cast<double>(table.table.numbers[code]) * table.step);
  }
  return levels;
}

TEST(NormalTables, LevelsAreTheMeansOfTheirCells) {
  for (int bits = 1; bits <= kMostNormalBits; ++bits) {
    const std::vector<double> levels = LevelsOf(bits);
    for (size_t i = 0; i < levels.size(); ++i) {
      const double low = i == 0 ? -9 : (levels[i - 1] + levels[i]) / 2;
      const double high = i + 1 == levels.size() ? 9 : (levels[i] + levels[i + 1]) / 2;
      double mass = 0, first = 0;
      constexpr int kSteps = 20000;
      for (int j = 0; j < kSteps; ++j) {
        const double x = low + (high - low) * (j + 0.5) / kSteps;
        mass += NormalDensity(x);
        first += x * NormalDensity(x);
      }
      // Half a step off at most, and so are the ends of the cell.
      EXPECT_NEAR(levels[i], first / mass, kNormalTables[bits - 1].step) << bits << " " << i;
      EXPECT_DOUBLE_EQ(levels[i], -levels[levels.size() - 1 - i]);
    }
  }
}

// The least squared errors of a standard normal number are those of table 1 of Max, 1960.
TEST(NormalTables, SquaredErrorsAreNearlyTheLeast) {
  const std::vector<double> least = {0.3634, 0.1175, 0.03454, 0.009497};
  for (int bits = 1; bits <= kMostNormalBits; ++bits) {
    const std::vector<double> levels = LevelsOf(bits);
    double error = 0;
    constexpr double kStep = 1e-4;
    for (double x = -9 + kStep / 2; x < 9; x += kStep) {
      double nearest = 100;
      for (const double level : levels) nearest = std::min(nearest, std::fabs(x - level));
      error += nearest * nearest * NormalDensity(x) * kStep;
    }
    EXPECT_LT(error, 1.01 * least[bits - 1]) << bits;
    EXPECT_GT(error, 0.999 * least[bits - 1]) << bits;
  }
}

TEST(NormalTables, NumbersRepeatWhereCodesHaveFewerBits) {
  for (int bits = 1; bits <= kMostNormalBits; ++bits) {
    const NamedTable& table = kNormalTables[bits - 1].table;
    EXPECT_EQ(table.steps.n, 1 << bits);
    EXPECT_EQ(table.steps.boundaries[1 << (bits - 1)], 0) << "0 has the code below";
    for (int code = 0; code < kTableCodes; ++code) {
      EXPECT_EQ(table.numbers[code], table.numbers[code % (1 << bits)]);
    }
    for (size_t i = 0; i < table.words.size(); ++i) {
      const size_t code = bits == 3 ? i % 4 + i / 32 * 4 : i % kTableCodes;
      const auto word = std::bit_cast<float>(uint32_t{table.words[i]} << 16);
      EXPECT_EQ(word, static_cast<float>(table.numbers[code]));
    }
  }
}

TEST(SphereCodes, SignsOfChannelsDifferByRotation) {
  int n_negative = 0, n_different = 0;
  for (int channel = 0; channel < kMaxPackedRank; ++channel) {
    const float of_row = SignOfChannel(SphereRotation::kOfRows, channel);
    EXPECT_EQ(std::fabs(of_row), 1);
    n_negative += of_row < 0;
    n_different += of_row != SignOfChannel(SphereRotation::kOfResiduals, channel);
  }
  EXPECT_NEAR(n_negative, kMaxPackedRank / 2, 24);
  EXPECT_NEAR(n_different, kMaxPackedRank / 2, 24);
}

// Keys of a block, [token][channel].
std::vector<float> DrawKeys(int rank, Random* random) {
  std::vector<float> keys(int64_t{kBlockSize} * rank);
  for (float& x : keys) x = static_cast<float>(random->Normal());
  return keys;
}

std::vector<float> ByLines(int rank, const std::vector<float>& keys) {
  std::vector<float> lines(keys.size());
  for (int t = 0; t < kBlockSize; ++t) {
    for (int r = 0; r < rank; ++r) lines[KeyOffset(t, r)] = keys[t * rank + r];
  }
  return lines;
}

// Entry (i, j) of the Hadamard matrix over the square root of its size, of the blocks of `rank`.
double HadamardEntry(int rank, int i, int j) {
  for (int begin = 0; begin < rank;) {
    int n = 1;
    while (2 * n <= rank - begin) n *= 2;
    if (i >= begin && i < begin + n) {
      if (j < begin || j >= begin + n) return 0;
      const bool is_odd = __builtin_popcount((i - begin) & (j - begin)) % 2 == 1;
      return (is_odd ? -1 : 1) / std::sqrt(static_cast<double>(n));
    }
    begin += n;
  }
  return 0;
}

TEST(SphereCodes, ResidualsTurnAsDefined) {
  Random random(3);
  for (const int rank : {16, 48, 64, 128, 256}) {
    const std::vector<float> keys = DrawKeys(rank, &random);
    std::vector<float> turned = ByLines(rank, keys);
    TurnResiduals(rank, turned.data());
    for (const int t : {0, 17, 63}) {
      for (int i = 0; i < rank; ++i) {
        double want = 0;
        for (int j = 0; j < rank; ++j) {
          want += HadamardEntry(rank, i, j) * SignOfChannel(SphereRotation::kOfResiduals, j) *
                  keys[t * rank + j];
        }
        EXPECT_NEAR(turned[KeyOffset(t, i)], want, 1e-5) << rank;
      }
    }
    // The way back is the transpose.
    std::vector<float> back(keys.size());
    AddResiduals(rank, turned.data(), back.data());
    const std::vector<float> lines = ByLines(rank, keys);
    for (size_t i = 0; i < back.size(); ++i) EXPECT_NEAR(back[i], lines[i], 1e-5);
  }
}

TEST(SphereCodes, SignsAreTheHighestBitsOfCodes) {
  Random random(4);
  for (int bits = 2; bits <= 4; ++bits) {
    for (const int rank : {16, 80, 128}) {
      std::vector<std::byte> codes(CodeBytes(bits, rank));
      const std::vector<float> keys = DrawKeys(rank, &random);
      std::vector<int> levels(keys.size());
      for (int t = 0; t < kBlockSize; ++t) {
        for (int r = 0; r < rank; ++r) {
          levels[t * rank + r] = static_cast<int>(random.Below(1 << (bits - 1)));
          WriteCode(codes.data(), bits, KeyCodePlace(bits, t, r),
                    static_cast<uint8_t>(levels[t * rank + r]));
        }
      }
      WriteSigns(bits, rank, ByLines(rank, keys).data(), codes.data());
      for (int t = 0; t < kBlockSize; ++t) {
        for (int r = 0; r < rank; ++r) {
          const int code = ReadCode(codes.data(), bits, KeyCodePlace(bits, t, r));
          ASSERT_EQ(code % (1 << (bits - 1)), levels[t * rank + r]);
          ASSERT_EQ(NumbersOfSigns(bits)[code], keys[t * rank + r] < 0 ? -1 : 1);
        }
      }
    }
  }
}

// A residual is given back such that products with any q have the mean of those with the residual
// itself; the draws are of directions, and the rotation stays. Each product errs by about
// sqrt(pi / 2 / rank).
TEST(SphereCodes, ProductsWithResidualsHaveNoBias) {
  Random random(5);
  constexpr int kBlocks = 200;
  for (const int rank : {64, 128}) {
    for (const double cosine : {0.0, 0.3, 0.9}) {
      double sum = 0, squares = 0;
      for (int b = 0; b < kBlocks; ++b) {
        std::vector<float> q = DrawKeys(rank, &random), r = DrawKeys(rank, &random);
        std::vector<double> lengths(kBlockSize);
        for (int t = 0; t < kBlockSize; ++t) {
          float *const qt = &q[t * rank], *const rt = &r[t * rank];
          double qq = 0, qr = 0, rr = 0;
          for (int c = 0; c < rank; ++c) qq += qt[c] * qt[c], qr += qt[c] * rt[c];
          for (int c = 0; c < rank; ++c) {
            qt[c] = static_cast<float>(qt[c] / std::sqrt(qq));
            rt[c] -= static_cast<float>(qr / std::sqrt(qq) * qt[c]);
            rr += rt[c] * rt[c];
          }
          for (int c = 0; c < rank; ++c) {
            rt[c] =
                static_cast<float>(cosine * qt[c] + std::sqrt((1 - cosine * cosine) / rr) * rt[c]);
          }
        }
        std::vector<float> signs = ByLines(rank, r), got(r.size());
        TurnResiduals(rank, signs.data());
        for (float& s : signs) s = s < 0 ? -ResidualUnit(rank) : ResidualUnit(rank);
        AddResiduals(rank, signs.data(), got.data());
        for (int t = 0; t < kBlockSize; ++t) {
          double product = 0;
          for (int c = 0; c < rank; ++c) product += q[t * rank + c] * got[KeyOffset(t, c)];
          sum += product - cosine;
          squares += (product - cosine) * (product - cosine);
        }
      }
      const double n = kBlocks * kBlockSize, mean = sum / n;
      EXPECT_LT(std::fabs(mean), 4 * std::sqrt(squares / n / n) + 0.005 * cosine)
          << rank << " " << cosine;
      EXPECT_LT(squares / n, 3.15 / 2 / rank);
    }
  }
}

}  // namespace
}  // namespace kvlathe
