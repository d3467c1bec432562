#include "analysis/ranks/ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/random.h"

namespace kvlathe {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

std::vector<HeadSpectra> RandomSpectra(int n_heads, int head_dim, uint64_t seed) {
  Random random(seed);
  std::vector<HeadSpectra> spectra(n_heads);
  for (HeadSpectra& head : spectra) {
    for (std::vector<double>* sigma : {&head.qk, &head.v}) {
      const double decay = 0.1 * random.Uniform();
      double x = 1 + random.Uniform();
      for (int i = 0; i < head_dim; ++i, x *= std::exp(-decay * random.Uniform())) {
        sigma->push_back(x);
      }
    }
  }
  return spectra;
}

RankRequest RateRequest(double rate, int round = 16, bool uniform = false) {
  RankRequest request;
  request.value = rate;
  request.round = round;
  request.uniform = uniform;
  return request;
}

double RateOf(const std::vector<HeadRanks>& ranks, int head_dim) {
  double kept = 0;
  for (const HeadRanks& head : ranks) kept += head.rank_k + head.rank_v;
  return 1 - kept / (2.0 * head_dim * static_cast<double>(ranks.size()));
}

// The squares that the pairs lose.
double ErrorOf(const std::vector<HeadSpectra>& spectra, const std::vector<HeadRanks>& ranks) {
  double error = 0;
  for (size_t h = 0; h < spectra.size(); ++h) {
    for (size_t i = ranks[h].rank_k; i < spectra[h].qk.size(); ++i) {
      error += spectra[h].qk[i] * spectra[h].qk[i];
    }
    for (size_t i = ranks[h].rank_v; i < spectra[h].v.size(); ++i) {
      error += spectra[h].v[i] * spectra[h].v[i];
    }
  }
  return error;
}

TEST(RankLadderTest, EveryLevelOfLeastErrorBeatsAllAllocationsOfItsSize) {
  const auto spectra = RandomSpectra(2, 64, 7);
  // Every allocation of two heads in multiples of 16, by the elements that it keeps.
  std::vector<double> least(4 * 64 + 1, INFINITY);
  for (int code = 0; code < 256; ++code) {
    const auto rank = [&](int shift) { return 16 * ((code >> shift & 3) + 1); };
    const std::vector<HeadRanks> ranks = {{rank(0), rank(2)}, {rank(4), rank(6)}};
    double& best = least[rank(0) + rank(2) + rank(4) + rank(6)];
    best = std::min(best, ErrorOf(spectra, ranks));
  }
  const RankLadder ladder = RankLadder::LeastError(spectra, 64, 16);
  EXPECT_EQ(ladder.n_levels(), 13);
  for (int level = 0; level < ladder.n_levels(); ++level) {
    const std::vector<HeadRanks> ranks = ladder.AllocationAt(level).ranks;
    const int n_kept = ranks[0].rank_k + ranks[0].rank_v + ranks[1].rank_k + ranks[1].rank_v;
    EXPECT_EQ(n_kept, 256 - 16 * level);
    EXPECT_NEAR(ErrorOf(spectra, ranks), least[n_kept], 1e-9);
  }
}

TEST(AllocateRanksTest, LeastErrorServesRatesAndRatios) {
  const auto spectra = RandomSpectra(10, 64, 3);
  RankRequest request = RateRequest(0.41);
  const auto by_rate = *AllocateRanks(spectra, 64, request, RankRule::kLeastError);
  EXPECT_LE(by_rate.removal_rate, 0.41);
  EXPECT_GT(by_rate.removal_rate, 0.41 - 16.0 / (2 * 64 * 10));
  EXPECT_LT(ErrorOf(spectra, by_rate.ranks),
            ErrorOf(spectra, AllocateRanks(spectra, 64, request)->ranks));
  request.goal = RankRequest::Goal::kRatio;
  request.value = 2;
  request.kv_fraction = [](const std::vector<HeadRanks>& ranks) { return 1 - RateOf(ranks, 64); };
  const auto by_ratio = *AllocateRanks(spectra, 64, request, RankRule::kLeastError);
  EXPECT_EQ(by_ratio.removal_rate, 0.5);
}

TEST(AllocateRanksTest, AchievedRateNeverExceedsTheRequestAndGrowsWithIt) {
  for (const int head_dim : {64, 80, 128}) {
    const auto spectra = RandomSpectra(20, head_dim, head_dim);
    for (const int round : {8, 16}) {
      for (const bool uniform : {false, true}) {
        double last = 0;
        for (int percent = 0; percent < 100; ++percent) {
          const auto allocation =
              *AllocateRanks(spectra, head_dim, RateRequest(percent / 100.0, round, uniform));
          EXPECT_LE(allocation.removal_rate, percent / 100.0 + 1e-12);
          EXPECT_GE(allocation.removal_rate, last);
          EXPECT_NEAR(allocation.removal_rate, RateOf(allocation.ranks, head_dim), 1e-12);
          for (const HeadRanks& head : allocation.ranks) {
            EXPECT_EQ(head.rank_k % round, 0);
            EXPECT_EQ(head.rank_v % round, 0);
            EXPECT_GE(std::min(head.rank_k, head.rank_v), round);
            EXPECT_LE(std::max(head.rank_k, head.rank_v), head_dim);
          }
          last = allocation.removal_rate;
        }
      }
    }
  }
}

TEST(AllocateRanksTest, AdaptiveRatesComeWithinOneStepOfTheRequest) {
  const auto spectra = RandomSpectra(20, 128, 3);
  for (double rate = 0.05; rate < 0.8; rate += 0.05) {
    const auto allocation = *AllocateRanks(spectra, 128, RateRequest(rate));
    EXPECT_GT(allocation.removal_rate, rate - 1.01 * 16 / (2 * 128 * 20));
  }
}

TEST(AllocateRanksTest, ZeroRateKeepsEverythingEvenWhereSingularValuesAreZero) {
  auto spectra = RandomSpectra(2, 64, 1);
  for (int i = 16; i < 64; ++i) spectra[0].qk[i] = 0;
  spectra[1].v.assign(64, 0.0);
  const auto allocation = *AllocateRanks(spectra, 64, RateRequest(0));
  EXPECT_THAT(allocation.ranks, Each(HeadRanks{64, 64}));
}

TEST(AllocateRanksTest, UniformRanksAreOnePairForAllAndTheLowestThatTheRateAllows) {
  const auto spectra = RandomSpectra(6, 64, 2);
  const auto ranks_at = [&](double rate, int round) {
    const auto allocation = *AllocateRanks(spectra, 64, RateRequest(rate, round, true));
    EXPECT_THAT(allocation.ranks, Each(allocation.ranks[0]));
    return allocation.ranks[0];
  };
  EXPECT_EQ(ranks_at(0.5, 16), (HeadRanks{32, 32}));
  EXPECT_EQ(ranks_at(0.49, 16), (HeadRanks{48, 32}));
  EXPECT_EQ(ranks_at(0.375, 16), (HeadRanks{48, 32}));
  EXPECT_EQ(ranks_at(0.49, 8), (HeadRanks{40, 32}));
  EXPECT_EQ(ranks_at(0.99, 16), (HeadRanks{16, 16}));
}

TEST(AllocateRanksTest, AHeadDimBetweenMultiplesFallsToTheNextMultipleFirst) {
  const auto ranks_at = [&](double rate) {
    return AllocateRanks(RandomSpectra(1, 72, 4), 72, RateRequest(rate, 16, true))->ranks[0];
  };
  EXPECT_EQ(ranks_at(0), (HeadRanks{72, 72}));
  EXPECT_EQ(ranks_at(8.0 / 144), (HeadRanks{72, 64}));
  EXPECT_EQ(ranks_at(16.0 / 144), (HeadRanks{64, 64}));
}

TEST(AllocateRanksTest, APairThatNeedsMoreMassKeepsMoreRanks) {
  std::vector<HeadSpectra> spectra(1);
  for (int i = 0; i < 64; ++i) {
    spectra[0].qk.push_back(1.0);
    spectra[0].v.push_back(std::exp(-0.2 * i));
  }
  const auto allocation = *AllocateRanks(spectra, 64, RateRequest(0.375));
  EXPECT_EQ(allocation.ranks[0], (HeadRanks{64, 16}));
}

TEST(AllocateRanksTest, RatioFindsTheLeastRemovalThatReachesIt) {
  const auto spectra = RandomSpectra(8, 64, 5);
  // 5% overhead that no rank removes.
  const auto kv_fraction = [](const std::vector<HeadRanks>& ranks) {
    return 1 - RateOf(ranks, 64) + 0.05;
  };
  RankRequest request;
  request.goal = RankRequest::Goal::kRatio;
  request.value = 2;
  request.kv_fraction = kv_fraction;
  const auto allocation = *AllocateRanks(spectra, 64, request);
  EXPECT_LE(kv_fraction(allocation.ranks), 0.5);
  const auto less = *AllocateRanks(spectra, 64, RateRequest(allocation.removal_rate - 1e-6));
  EXPECT_GT(kv_fraction(less.ranks), 0.5);
  request.value = 4;
  EXPECT_EQ(AllocateRanks(spectra, 64, request).status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(MessageOf(AllocateRanks(spectra, 64, request).status()), HasSubstr("only 3.33"));
}

TEST(AllocateRanksTest, RequestsThatCannotBeAreRefused) {
  const auto spectra = RandomSpectra(1, 64, 5);
  const auto code = [&](const RankRequest& request) {
    return AllocateRanks(spectra, 64, request).status().code();
  };
  EXPECT_EQ(code(RateRequest(1.0)), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(RateRequest(-0.1)), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(RateRequest(NAN)), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(RateRequest(0.5, 12)), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvlathe
