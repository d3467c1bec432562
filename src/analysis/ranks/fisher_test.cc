#include "analysis/ranks/fisher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "io/files.h"

namespace kvlathe {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ShareByWeightTest, TheLargestRemaindersComeFirst) {
  EXPECT_THAT(ShareByWeight(std::vector<double>{5, 3, 2}, 10, 11), ElementsAre(6, 3, 2));
  EXPECT_THAT(ShareByWeight(std::vector<double>{3, 5, 2}, 10, 9), ElementsAre(3, 4, 2));
  EXPECT_THAT(ShareByWeight(std::vector<double>{1, 1, 1}, 10, 5), ElementsAre(2, 2, 1));
  EXPECT_THAT(ShareByWeight(std::vector<double>{0, 0}, 10, 6), ElementsAre(3, 3));
}

TEST(ShareByWeightTest, WhatACapLeavesGoesRoundUntilAllAreFull) {
  EXPECT_THAT(ShareByWeight(std::vector<double>{8, 1, 1}, 4, 9), ElementsAre(4, 3, 2));
  EXPECT_THAT(ShareByWeight(std::vector<double>{8, 1, 1}, 4, 12), ElementsAre(4, 4, 4));
  EXPECT_THAT(ShareByWeight(std::vector<double>{8, 1, 1}, 4, 100), ElementsAre(4, 4, 4));
}

FisherWeights Weights(std::vector<double> k, std::vector<double> v) {
  return {"0123", "text:abc", 77, std::move(k), std::move(v)};
}

// The ranks of all heads when `total` ranks are left.
std::vector<HeadRanks> RanksAt(const FisherWeights& weights, int n_kv_heads, int head_dim,
                               int round, int64_t total) {
  const int64_t full = 2 * std::ssize(weights.k) * n_kv_heads * head_dim;
  const FisherLadder ladder(&weights, n_kv_heads, head_dim, round);
  return ladder.AllocationAt(static_cast<int>(full - total)).ranks;
}

TEST(FisherLadderTest, RanksAreTheNearestMultiplesAndAHalfGoesToTheEvenOne) {
  // 40 and 24 are 2.5 and 1.5 times 16.
  EXPECT_THAT(RanksAt(Weights({5}, {3}), 1, 64, 16, 64), ElementsAre(HeadRanks{32, 32}));
  EXPECT_THAT(RanksAt(Weights({41}, {23}), 1, 64, 16, 64), ElementsAre(HeadRanks{48, 16}));
  // 1 and 63: at least one multiple.
  EXPECT_THAT(RanksAt(Weights({1}, {63}), 1, 64, 16, 64), ElementsAre(HeadRanks{16, 64}));
  // Three heads share 100 and 92: 33 and 30 each.
  EXPECT_THAT(RanksAt(Weights({100}, {92}), 3, 64, 32, 192), Each(HeadRanks{32, 32}));
  // 72 is no multiple of 16, and full rank all the same; 71 is 4.4 of them.
  EXPECT_THAT(RanksAt(Weights({1}, {1}), 1, 72, 16, 144), ElementsAre(HeadRanks{72, 72}));
  EXPECT_THAT(RanksAt(Weights({1}, {1}), 1, 72, 16, 142), ElementsAre(HeadRanks{64, 64}));
  // 79 is 2.47 times 32; 87 would be 96, more than there are.
  EXPECT_THAT(RanksAt(Weights({1}, {1}), 1, 80, 32, 158), ElementsAre(HeadRanks{64, 64}));
  EXPECT_THAT(RanksAt(Weights({1}, {1}), 1, 88, 32, 174), ElementsAre(HeadRanks{88, 88}));
}

// Palu's ranks (docs/methods/palu.md) step by step, one rank at a time.
std::vector<HeadRanks> LiteralRanks(const FisherWeights& weights, int n_kv_heads, int head_dim,
                                    int round, int total) {
  std::vector<double> units = weights.k;
  units.insert(units.end(), weights.v.begin(), weights.v.end());
  double sum = 0;
  for (const double w : units) sum += w;
  const int cap = n_kv_heads * head_dim, n = static_cast<int>(units.size());
  std::vector<int> ranks(n);
  int left = total;
  for (int i = 0; i < n; ++i) {
    ranks[i] = static_cast<int>(total * units[i] / sum);
    if (ranks[i] > cap) ranks[i] = cap;
    left -= ranks[i];
  }
  std::vector<bool> was_served(n, false);
  while (left > 0) {
    int best = -1;
    for (int i = 0; i < n; ++i) {
      if (ranks[i] == cap || was_served[i]) continue;
      const auto remainder = [&](int j) { return std::fmod(total * units[j] / sum, 1.0); };
      if (best < 0 || remainder(i) > remainder(best)) best = i;
    }
    if (best < 0) {
      bool is_full = true;
      for (int i = 0; i < n; ++i) is_full = is_full && ranks[i] == cap;
      if (is_full) break;
      was_served.assign(n, false);  // the next round
      continue;
    }
    ++ranks[best];
    was_served[best] = true;
    --left;
  }
  const auto rounded = [&](int rank) {
    if (rank == cap) return head_dim;
    const double multiples = std::nearbyint(rank / n_kv_heads / static_cast<double>(round));
    return std::min(head_dim, std::max(round, static_cast<int>(multiples) * round));
  };
  std::vector<HeadRanks> heads;
  for (size_t l = 0; l < weights.k.size(); ++l) {
    for (int g = 0; g < n_kv_heads; ++g) {
      heads.push_back({rounded(ranks[l]), rounded(ranks[weights.k.size() + l])});
    }
  }
  return heads;
}

TEST(FisherLadderTest, EveryLevelIsTheLiteralAllocation) {
  Random random(11);
  for (const auto& [n_kv_heads, head_dim, round] :
       {std::tuple{2, 64, 16}, {3, 128, 32}, {1, 64, 32}}) {
    FisherWeights weights = Weights({}, {});
    for (int l = 0; l < 4; ++l) {
      weights.k.push_back(random.Uniform());
      weights.v.push_back(2 * random.Uniform());
    }
    const int full = 8 * n_kv_heads * head_dim;
    for (int total = full; total >= 0; total -= 13) {
      ASSERT_EQ(RanksAt(weights, n_kv_heads, head_dim, round, total),
                LiteralRanks(weights, n_kv_heads, head_dim, round, total))
          << total;
    }
  }
}

class AllocateByFisherTest : public ::testing::Test {
 protected:
  AllocateByFisherTest()
      : weights_(Weights({1, 2, 3}, {4, 9, 2})),
        spectra_(6, {std::vector<double>(64, 1.0), std::vector<double>(64, 1.0)}) {
    request_.fisher = &weights_;
  }
  FisherWeights weights_;
  std::vector<HeadSpectra> spectra_;  // two KV heads a layer
  RankRequest request_;
};

TEST_F(AllocateByFisherTest, RatesAreNeverExceeded) {
  double last = -1;
  for (int percent = 0; percent < 100; ++percent) {
    request_.value = percent / 100.0;
    const RankAllocation allocation = *AllocateRanks(spectra_, 64, request_);
    EXPECT_LE(allocation.removal_rate, request_.value + 1e-12);
    EXPECT_GE(allocation.removal_rate, last);
    last = allocation.removal_rate;
    double n_kept = 0;
    for (const HeadRanks& head : allocation.ranks) n_kept += head.rank_k + head.rank_v;
    EXPECT_NEAR(allocation.removal_rate, 1 - n_kept / (6 * 128), 1e-12);
    EXPECT_EQ(allocation.eta, 0);
    if (percent == 0) {
      EXPECT_THAT(allocation.ranks, Each(HeadRanks{64, 64}));
    }
    if (percent == 50) {  // keys of the first layer count least, values of the second most
      EXPECT_EQ(allocation.ranks[0].rank_k, 16);
      EXPECT_EQ(allocation.ranks[2].rank_v, 64);
      EXPECT_GT(allocation.removal_rate, 0.4);
    }
  }
  EXPECT_NEAR(last, 0.75, 1e-12);
}

TEST_F(AllocateByFisherTest, ServesRatios) {
  request_.goal = RankRequest::Goal::kRatio;
  request_.value = 2;
  request_.kv_fraction = [](const std::vector<HeadRanks>& ranks) {
    double n_kept = 0;
    for (const HeadRanks& head : ranks) n_kept += head.rank_k + head.rank_v;
    return n_kept / (6 * 128);
  };
  EXPECT_GE(AllocateRanks(spectra_, 64, request_)->removal_rate, 0.5);
  EXPECT_LT(AllocateRanks(spectra_, 64, request_)->removal_rate, 0.6);
  request_.value = 5;
  EXPECT_EQ(AllocateRanks(spectra_, 64, request_).status().code(), StatusCode::kInvalidArgument);
}

TEST(FisherFileTest, ComesBackAndIsRefusedElsewhere) {
  const std::string path = ::testing::TempDir() + "/kvlathe_fisher_test.json";
  const FisherWeights weights = Weights({1e-7, 0.1 + 0.2}, {0, 3});
  ASSERT_TRUE(WriteFisherWeights(weights, path).ok());
  const StatusOr<FisherWeights> read = ReadFisherWeights(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->k, weights.k);
  EXPECT_EQ(read->v, weights.v);
  EXPECT_EQ(read->token_source, "text:abc");
  EXPECT_EQ(read->n_tokens, 77);
  EXPECT_TRUE(CheckFisherMatch(*read, path, 2, "0123").ok());
  for (const auto& [n_layers, hash] : {std::pair{3, "0123"}, {2, "0124"}}) {
    const Status status = CheckFisherMatch(*read, path, n_layers, hash);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("kvlathe retrofit fisher"));
  }
  std::string changed = *ReadTextFile(path);
  changed.replace(changed.find("77"), 2, "78");
  ASSERT_TRUE(WriteFileAtomically(path, changed).ok());
  EXPECT_THAT(std::string(ReadFisherWeights(path).status().message()), HasSubstr("checksum"));
  for (const char* text :
       {"", "[]", "{}", R"({"format":"kvlathe fisher weights","format_version":2})",
        R"({"format":"kvlathe fisher weights","format_version":1,"model_hash":"0123",
            "token_source":"","n_tokens":1,"k":[1],"v":[1,2]})",
        R"({"format":"kvlathe fisher weights","format_version":1,"model_hash":"0123",
            "token_source":"","n_tokens":1,"k":[1],"v":[-1]})"}) {
    ASSERT_TRUE(WriteFileAtomically(path, text).ok());
    EXPECT_EQ(ReadFisherWeights(path).status().code(), StatusCode::kDataLoss) << text;
  }
  std::remove(path.c_str());
}

}  // namespace
}  // namespace kvlathe
