#include "analysis/statistics/error_spectrum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

namespace kvlathe {
namespace {

constexpr int kWidth = 4, kLength = 32;

// A [kLength, kWidth] matrix whose singular values are `values`: column c is a wave of c + 1
// periods, and waves of different periods are orthogonal. `turned` mixes the columns by a rotation.
void AddMatrix(const std::vector<double>& values, bool turned, ErrorSpectrum* spectrum) {
  spectrum->Begin();
  for (int t = 0; t < kLength; ++t) {
    std::vector<double> row(kWidth);
    for (int c = 0; c < kWidth; ++c) {
      const double wave = std::cos(2 * std::numbers::pi * (c + 1) * t / kLength);
      row[c] = values[c] * wave * std::sqrt(2.0 / kLength);
    }
    if (turned) {
      // By 45 degrees in two planes.
      const double h = std::sqrt(0.5);
      row = {h * (row[0] - row[2]), h * (row[1] - row[3]), h * (row[0] + row[2]),
             h * (row[1] + row[3])};
    }
    spectrum->Add(row);
  }
  spectrum->End();
}

void ExpectShares(const std::vector<double>& shares, const std::vector<double>& expected) {
  ASSERT_EQ(shares.size(), expected.size());
  for (size_t r = 0; r < shares.size(); ++r) EXPECT_NEAR(shares[r], expected[r], 1e-9) << r;
}

TEST(ErrorSpectrumTest, HasTheSharesOfAMatrixOfKnownSpectrum) {
  for (const bool turned : {false, true}) {
    ErrorSpectrum spectrum(kWidth);
    AddMatrix({1, 4, 2, 3}, turned, &spectrum);  // squares of 1, 16, 4 and 9
    EXPECT_NEAR(spectrum.squares(), 30, 1e-9);
    ExpectShares(spectrum.Shares(), {16.0 / 30, 25.0 / 30, 29.0 / 30, 1});
  }
}

TEST(ErrorSpectrumTest, DecomposesEachMatrixByItself) {
  ErrorSpectrum spectrum(kWidth);
  AddMatrix({3, 0, 0, 0}, false, &spectrum);
  AddMatrix({0, 1, 1, 0}, true, &spectrum);
  // One direction holds all of the first matrix and half of the second.
  ExpectShares(spectrum.Shares(), {10.0 / 11, 1, 1, 1});
}

TEST(ErrorSpectrumTest, NothingIsLeftOfNoErrors) {
  ErrorSpectrum spectrum(kWidth);
  WhiteNoise noise(kWidth);
  ExpectShares(spectrum.Shares(), {1, 1, 1, 1});
  ExpectShares(spectrum.WhiteShares(&noise), {1, 1, 1, 1});
}

// Marchenko and Pastur (1967): the squared singular values of noise of n rows and d channels, over
// n, lie between (1 - sqrt(d / n))^2 and (1 + sqrt(d / n))^2, with a known density.
TEST(WhiteNoiseTest, FollowsTheLawOfMarchenkoAndPastur) {
  constexpr int kChannels = 64;
  constexpr int64_t kRows = 256;
  WhiteNoise noise(kChannels);
  const std::vector<double>& shares = noise.Shares(kRows);
  const double edge = std::pow(1 + std::sqrt(double{kChannels} / kRows), 2);
  EXPECT_NEAR(shares[0] * kChannels, edge, 0.06 * edge);
  EXPECT_LT(shares[0] * kChannels, edge);
  EXPECT_NEAR(shares[kChannels - 1], 1, 1e-9);
  for (int r = 1; r < kChannels; ++r) EXPECT_GT(shares[r], shares[r - 1]);

  // The density of the law, sqrt((b - x)(x - a)) / (2 pi x d / n), in small steps from above.
  const double ratio = double{kChannels} / kRows;
  const double low = std::pow(1 - std::sqrt(ratio), 2);
  const int n_steps = 200000;
  double values = 0, squares = 0;
  for (int i = 0; i < n_steps && values < 0.5; ++i) {
    const double x = edge - (i + 0.5) * (edge - low) / n_steps;
    const double density = std::sqrt((edge - x) * (x - low)) / (2 * std::numbers::pi * x * ratio);
    values += density * (edge - low) / n_steps;
    squares += x * density * (edge - low) / n_steps;
  }
  EXPECT_NEAR(shares[kChannels / 2 - 1], squares, 0.005);
}

TEST(WhiteNoiseTest, LongerMatricesHaveFewerDirections) {
  WhiteNoise noise(8);
  EXPECT_GT(noise.Shares(8)[0], noise.Shares(64)[0]);
  EXPECT_GT(noise.Shares(64)[0], noise.Shares(4096)[0]);
  EXPECT_NEAR(noise.Shares(4096)[0], 1.0 / 8, 0.01);
}

TEST(WhiteNoiseTest, IsWeighedByTheSquaresOfEachShape) {
  WhiteNoise noise(kWidth);
  ErrorSpectrum spectrum(kWidth);
  AddMatrix({3, 0, 0, 0}, false, &spectrum);
  spectrum.Begin();
  spectrum.Add(std::vector<double>{1, 0, 0, 0});
  spectrum.End();
  const std::vector<double> of_long = noise.Shares(kLength), of_short = noise.Shares(1);
  const std::vector<double> white = spectrum.WhiteShares(&noise);
  for (int r = 0; r < kWidth; ++r) {
    EXPECT_NEAR(white[r], 0.9 * of_long[r] + 0.1 * of_short[r], 1e-12);
  }
}

}  // namespace
}  // namespace kvlathe
