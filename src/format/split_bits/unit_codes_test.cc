#include "format/split_bits/unit_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tensor/dtype.h"

namespace kvlathe {
namespace {

constexpr StoredUnit kUnits[] = {StoredUnit::kChannel, StoredUnit::kToken};

// Student's t of unit variance, on a fine grid.
struct Density {
  explicit Density(double nu) {
    const double unit = std::sqrt((nu - 2) / nu);
    const double height = std::tgamma((nu + 1) / 2) / (std::sqrt(nu * M_PI) * std::tgamma(nu / 2));
    constexpr double kStep = 1e-3;
    for (double at = -80 + kStep / 2; at < 80; at += kStep) {
      const double t = at / unit;
      x.push_back(at);
      weight.push_back(height / unit * std::pow(1 + t * t / nu, -(nu + 1) / 2) * kStep);
    }
  }
  std::vector<double> x, weight;
};

void ExpectBestOfDensity(int bits, StoredUnit unit) {
  const Density density(TailDegrees(unit));
  const auto centroids = UnitCentroids(bits, unit), boundaries = UnitBoundaries(bits, unit);
  ASSERT_EQ(std::ssize(centroids), 1 << bits);
  ASSERT_EQ(std::ssize(boundaries), (1 << bits) - 1);
  std::vector<double> mass(centroids.size()), first(centroids.size());
  double loss = 0;
  size_t code = 0;
  for (size_t i = 0; i < density.x.size(); ++i) {
    const double x = density.x[i], w = density.weight[i];
    while (code < boundaries.size() && boundaries[code] < x) ++code;
    mass[code] += w;
    first[code] += w * x;
    loss += w * (x - centroids[code]) * (x - centroids[code]);
  }
  for (size_t i = 0; i < centroids.size(); ++i) {
    // Lloyd's condition: a centroid is the mean of what has its code, but for its rounding.
    const double rounding = std::max(0.005 * std::abs(centroids[i]), kUnitNumberStep / 2.0);
    EXPECT_NEAR(centroids[i], first[i] / mass[i], rounding) << bits;
    EXPECT_EQ(ToFloat(ToBf16(centroids[i])), centroids[i]);
    if (i > 0) {
      EXPECT_EQ(boundaries[i - 1], (centroids[i - 1] + centroids[i]) / 2);
    }
  }
  if (unit == StoredUnit::kChannel) {
    EXPECT_NEAR(UnitLoss(bits), loss, 1e-3 * loss) << bits;
  }
}

TEST(UnitCodes, AreTheBestOfTheDensity) {
  for (const StoredUnit unit : kUnits) {
    for (int bits = 1; bits <= 5; ++bits) ExpectBestOfDensity(bits, unit);
  }
}

TEST(UnitCodes, TablesHoldTheCentroidsByLowBits) {
  for (const StoredUnit unit : kUnits) {
    for (int bits = 1; bits <= 5; ++bits) {
      const int n_low = bits == 3 ? 4 : bits == 5 ? 16 : 1 << bits;
      const auto centroids = UnitCentroids(bits, unit);
      const uint16_t* table = UnitTable(bits, unit);
      for (int i = 0; i < 32; ++i) {
        EXPECT_EQ(table[i], ToBf16(centroids[i % n_low]).bits);
        if (bits == 3 || bits == 5) {
          EXPECT_EQ(table[32 + i], ToBf16(centroids[n_low + i % n_low]).bits);
        }
      }
    }
  }
}

TEST(UnitCodes, EveryBitLosesLess) {
  EXPECT_EQ(UnitLoss(0), 1);
  EXPECT_DOUBLE_EQ(UnitLoss(8), kUnitStep * kUnitStep / 12.0);
  // What the next bit gains falls: greedy choices of bits are the best.
  const int bits[] = {0, 1, 2, 3, 4, 5, 8};
  double before = INFINITY;
  for (int i = 1; i < 7; ++i) {
    const double gain = (UnitLoss(bits[i - 1]) - UnitLoss(bits[i])) / (bits[i] - bits[i - 1]);
    EXPECT_GT(gain, 0);
    EXPECT_LT(gain, before);
    before = gain;
  }
}

TEST(UnitCodes, NumbersAreTheCentroids) {
  for (const StoredUnit unit : kUnits) {
    for (int bits = 1; bits <= 5; ++bits) {
      const std::span<const float> centroids = UnitCentroids(bits, unit);
      const int8_t* numbers = UnitNumbers(bits, unit);
      for (int code = 0; code < (bits == 5 ? 32 : 16); ++code) {
        const int lower = code / 16 * 32 + code % 16;
        const int number = numbers[lower + 16] * 256 + static_cast<uint8_t>(numbers[lower]);
        EXPECT_EQ(static_cast<float>(number) * kUnitNumberStep, centroids[code % (1 << bits)])
            << bits << " bits, code " << code;
      }
    }
  }
}

TEST(UnitCodes, BytesAreNearTheCentroids) {
  for (const StoredUnit unit : kUnits) {
    EXPECT_EQ(ByteStep(ByteStepOf(8), unit), kUnitStep);
    const Density density(TailDegrees(unit));
    for (int bits = 1; bits <= 5; ++bits) {
      const std::span<const float> centroids = UnitCentroids(bits, unit);
      const uint8_t* bytes = UnitBytes(bits, unit);
      const float step = ByteStep(ByteStepOf(bits), unit);
      const auto value = [&](int code) { return static_cast<float>(bytes[code] - 128) * step; };
      for (int code = 0; code < 32; ++code) {
        EXPECT_NEAR(value(code), centroids[code % (1 << bits)], 0.5001 * step) << bits;
      }
      // What that adds to the square of what the codes lose.
      double added = 0;
      int code = 0;
      for (size_t i = 0; i < density.x.size(); ++i) {
        while (code + 1 < 1 << bits && UnitBoundaries(bits, unit)[code] < density.x[i]) ++code;
        const double error = value(code) - centroids[code];
        added += density.weight[i] * error * error;
      }
      EXPECT_LT(added, (bits == 5 ? 0.05 : 0.01) * UnitLoss(bits)) << bits;
    }
  }
}

}  // namespace
}  // namespace kvlathe
