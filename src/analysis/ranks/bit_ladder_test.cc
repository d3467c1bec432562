#include "analysis/ranks/bit_ladder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/random.h"

namespace kvlathe {
namespace {

constexpr int kHeadDim = 64;

std::vector<HeadSpectra> RandomSpectra(int n_heads, uint64_t seed) {
  Random random(seed);
  std::vector<HeadSpectra> spectra(n_heads);
  for (HeadSpectra& head : spectra) {
    for (std::vector<double>* pair : {&head.qk, &head.v}) {
      const double size = std::exp(2 * random.Normal()), decay = 0.02 + 0.1 * random.Uniform();
      for (int i = 0; i < kHeadDim; ++i) pair->push_back(size * std::exp(-decay * i));
    }
  }
  return spectra;
}

// Noise that costs what cutting does, times `factor`.
std::vector<HeadNoise> NoiseLike(const std::vector<HeadSpectra>& spectra, double factor = 1) {
  std::vector<HeadNoise> noise;
  for (const HeadSpectra& head : spectra) {
    HeadNoise& to = noise.emplace_back();
    for (const double s : head.qk) to.qk.push_back(factor * s * s);
    for (const double s : head.v) to.v.push_back(factor * s * s);
  }
  return noise;
}

// Bits of each channel, from the most.
std::vector<int> BitsOfChannels(const BitSplit& split) {
  std::vector<int> bits;
  for (size_t i = 0; i < kSplitBits.size(); ++i) {
    bits.insert(bits.end(), split.channels[i], kSplitBits[i]);
  }
  bits.resize(kHeadDim, 0);
  return bits;
}

// What bits lose of unit variance, as documented.
const std::map<int, double> kLoss = {
    {0, 1},         {1, 0.414063},   {2, 0.150466},      {3, 0.0484252},
    {4, 0.0141481}, {5, 0.00386733}, {8, 1.0 / 256 / 12}};

double LossOf(const std::vector<HeadSpectra>& spectra, const std::vector<HeadRanks>& ranks,
              double factor) {
  const auto at = [&](int bits) {  // four times what goes with the number itself
    const double lost = kLoss.at(bits);
    return 4 * lost / (lost + 4 * (1 - lost)) * (bits == 0 ? 1 : factor);
  };
  double loss = 0;
  for (size_t h = 0; h < ranks.size(); ++h) {
    const std::vector<int> k = BitsOfChannels(ranks[h].bits.middle.k),
                           v = BitsOfChannels(ranks[h].bits.middle.v);
    for (int i = 0; i < kHeadDim; ++i) {
      loss += spectra[h].qk[i] * spectra[h].qk[i] * at(k[i]);
      loss += spectra[h].v[i] * spectra[h].v[i] * at(v[i]);
    }
  }
  return loss;
}

int BitsPerToken(const std::vector<HeadRanks>& ranks) {
  int bits = 0;
  for (const HeadRanks& r : ranks)
    bits += r.bits.middle.k.bits_per_token() + r.bits.middle.v.bits_per_token();
  return bits;
}

TEST(BitLadderTest, GoesFromOneBitOfTheFirstChannelsToEightOfAll) {
  const std::vector<HeadSpectra> spectra = RandomSpectra(3, 1);
  const BitLadder ladder(spectra, NoiseLike(spectra), kHeadDim);
  for (const HeadRanks& r : ladder.RanksAt(0)) {
    EXPECT_EQ(r.rank_k, kHeadDim);  // rows have all channels until they are sealed
    EXPECT_EQ(r.bits.middle.k.bits_per_token(), 16);
    EXPECT_EQ(r.bits.middle.v.bits_per_token(), 16);
  }
  for (const HeadRanks& r : ladder.RanksAt(ladder.n_levels() - 1)) {
    EXPECT_EQ(r.bits.middle.k.channels[0], kHeadDim);
    EXPECT_EQ(r.bits.middle.v.channels[0], kHeadDim);
  }
  EXPECT_EQ(ladder.GainAt(ladder.n_levels() - 1), 0);
}

// Where noise costs much, one bit is worse than none and passed over.
class BitLadderNoiseTest : public ::testing::TestWithParam<double> {};
INSTANTIATE_TEST_SUITE_P(Factors, BitLadderNoiseTest, ::testing::Values(0.1, 1.0, 4.0));

TEST_P(BitLadderNoiseTest, EveryLevelIsTheLeastLossOfItsBits) {
  // Exhaustive where it can be: two pairs of four groups.
  const std::vector<HeadSpectra> spectra = RandomSpectra(1, 4);
  const double factor = GetParam();
  const BitLadder ladder(spectra, NoiseLike(spectra, factor), kHeadDim);
  constexpr int kLevels[] = {0, 1, 2, 3, 4, 5, 8};
  std::vector<BitSplit> splits;  // with falling bits, at least one
  for (int a : kLevels) {
    for (int b : kLevels) {
      for (int c : kLevels) {
        for (int d : kLevels) {
          if (a == 0 || b > a || c > b || d > c) continue;
          BitSplit split;
          for (int bits : {a, b, c, d}) {
            for (size_t i = 0; i < kSplitBits.size(); ++i) {
              if (kSplitBits[i] == bits) split.channels[i] += 16;
            }
          }
          splits.push_back(split);
        }
      }
    }
  }
  for (int level = 0; level < ladder.n_levels(); ++level) {
    const std::vector<HeadRanks> ranks = ladder.RanksAt(level);
    const int bits = BitsPerToken(ranks);
    const double loss = LossOf(spectra, ranks, factor);
    for (const BitSplit& k : splits) {
      for (const BitSplit& v : splits) {
        if (k.bits_per_token() + v.bits_per_token() > bits) continue;
        ASSERT_GE(LossOf(spectra, {{k.n_channels(), v.n_channels(), k, v}}, factor),
                  loss * (1 - 1e-9));
      }
    }
  }
}

// A bit that is held for a tenth of the positions is worth what one is that saves ten times as
// much.
TEST(BitLadderTest, BitsOfLayersThatHoldFewPositionsCostLess) {
  const std::vector<HeadSpectra> spectra = RandomSpectra(4, 5);
  std::vector<HeadSpectra> worth = spectra;
  for (int h : {2, 3}) {  // of the second layer
    for (std::vector<double>* pair : {&worth[h].qk, &worth[h].v}) {
      for (double& s : *pair) s *= std::sqrt(10);
    }
  }
  const BitLadder ladder(spectra, NoiseLike(spectra), kHeadDim, StoredUnit::kToken, {5000, 500});
  const BitLadder want(worth, NoiseLike(worth), kHeadDim, StoredUnit::kToken);
  const BitLadder even(spectra, NoiseLike(spectra), kHeadDim, StoredUnit::kToken);
  ASSERT_EQ(ladder.n_levels(), want.n_levels());
  int n_differences = 0;
  for (int level = 0; level < ladder.n_levels(); ++level) {
    EXPECT_EQ(ladder.RanksAt(level), want.RanksAt(level)) << level;
    n_differences += ladder.RanksAt(level) == even.RanksAt(level) ? 0 : 1;
  }
  EXPECT_GT(n_differences, ladder.n_levels() / 2);
}

TEST(BitLadderTest, BitsNeverRiseWhereSpectraDo) {
  std::vector<HeadSpectra> spectra = RandomSpectra(2, 3);
  for (int i = 48; i < kHeadDim; ++i) spectra[1].qk[i] = 100 * spectra[1].qk[0];
  const BitLadder ladder(spectra, NoiseLike(spectra), kHeadDim);
  for (int level = 0; level < ladder.n_levels(); ++level) {
    for (const HeadRanks& r : ladder.RanksAt(level)) {
      EXPECT_EQ(r.rank_k, kHeadDim);
      EXPECT_EQ(r.rank_v, kHeadDim);
      EXPECT_LE(r.bits.middle.k.n_channels(), kHeadDim);
      EXPECT_LE(r.bits.middle.v.n_channels(), kHeadDim);
    }
  }
}

RankRequest Ratio(double ratio) {
  RankRequest request{.goal = RankRequest::Goal::kRatio, .value = ratio};
  request.kv_fraction = [](const std::vector<HeadRanks>& ranks) {
    return BitsPerToken(ranks) / (16.0 * 2 * kHeadDim * static_cast<double>(ranks.size()));
  };
  return request;
}

TEST(AllocateBits, TakesTheMostThatTheRatioLeaves) {
  const std::vector<HeadSpectra> spectra = RandomSpectra(4, 8);
  for (const double ratio : {2.0, 3.3, 4.0, 8.0, 12.0, 30.0}) {
    const auto allocation = AllocateBits(spectra, NoiseLike(spectra), kHeadDim, Ratio(ratio));
    ASSERT_TRUE(allocation.ok());
    const int bits = BitsPerToken(allocation->ranks);
    EXPECT_LE(bits * ratio, 16.0 * 2 * kHeadDim * 4);
    // A step takes at most 16 channels from 4 to 8 bits.
    if (ratio > 2) {
      EXPECT_GT((bits + 64.1) * ratio, 16.0 * 2 * kHeadDim * 4);
    }
  }
}

TEST(AllocateBits, SaysWhatTheFewestBitsReach) {
  const std::vector<HeadSpectra> spectra = RandomSpectra(1, 8);
  const auto allocation = AllocateBits(spectra, NoiseLike(spectra), kHeadDim, Ratio(65));
  EXPECT_EQ(allocation.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(MessageOf(allocation.status()), ::testing::HasSubstr("reach only 64.00"));
  EXPECT_EQ(AllocateBits(spectra, NoiseLike(spectra), kHeadDim, Ratio(0.5)).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvlathe
