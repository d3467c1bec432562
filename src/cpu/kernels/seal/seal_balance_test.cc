// The balance of tiles against the literal one in double; what becomes of rows that are divided by
// it is in seal_test.cc.
#include "cpu/kernels/seal/seal_balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cpu/kernels/testing/balance_ref.h"
#include "cpu/kernels/testing/seal_test_layer.h"

namespace kvlathe {
namespace {

using Tile = std::vector<std::vector<double>>;

// Of K channels are members and tokens elements; of V it is the other way round.
Tile TileOf(const RefHead& head, bool is_key, int first_token, int n_tokens) {
  const int rank = is_key ? head.rank_k : head.rank_v;
  const std::vector<float>& x = is_key ? head.k : head.v;
  Tile tile(is_key ? rank : n_tokens);
  for (int t = 0; t < n_tokens; ++t) {
    for (int c = 0; c < rank; ++c) {
      tile[is_key ? c : t].push_back(x[static_cast<size_t>(first_token + t) * rank + c]);
    }
  }
  return tile;
}

// How rows are drawn: with deviations of `width` or so, whose logarithms vary by channel and by
// token with these deviations, and with means of channels up to 4 times `mean` deviations.
struct Widths {
  double width, of_channels, of_tokens, mean;
};
RefHead UnevenHead(const Ranks& ranks, int n_blocks, const Widths& widths, uint64_t seed) {
  Random random(seed);
  RefHead head = {ranks.k, ranks.v, {}, {}};
  for (bool is_key : {true, false}) {
    const int rank = is_key ? ranks.k : ranks.v;
    std::vector<double> of_channel(rank);
    for (double& x : of_channel) x = widths.width * std::exp(widths.of_channels * random.Normal());
    for (int t = 0; t < n_blocks * kBlockSize; ++t) {
      const double of_token = std::exp(widths.of_tokens * random.Normal());
      for (int c = 0; c < rank; ++c) {
        const double x = of_token * of_channel[c] * (widths.mean * (c % 5) + random.Normal());
        (is_key ? head.k : head.v).push_back(static_cast<float>(x));
      }
    }
  }
  return head;
}

// The stored balance of the tile that begins at first_token.
std::vector<double> StoredOf(const RefBalance& balance, bool is_key, int first_token, int n) {
  const uint16_t* const from =
      is_key ? &balance.k[first_token] : &balance.v[first_token / kMostTileTokens * n];
  std::vector<double> stored;
  for (int i = 0; i < n; ++i) stored.push_back(F16ValueRef(from[i]));
  return stored;
}

class SealBalanceTest : public testing::TestWithParam<Isa> {
 protected:
  Layer Seal(const RefHead& head, int n_blocks) {
    Layer layer({BalancedCodec{}}, DType::kF32, {head}, n_blocks, true);
    ThreadPool pool(1);
    Sealer sealer(layer.format, DType::kF32, 1, &pool, GetParam());
    const SealJob job = layer.Job(1);
    EXPECT_TRUE(sealer.Run({&job, 1}).ok());
    return layer;
  }
};

// f(tile, the stored balance of its elements) for all tiles of a head of three blocks.
template <typename F>
void ForEachTile(const Layer& layer, const F& f) {
  for (bool is_key : {true, false}) {
    for (int first : {0, kMostTileTokens}) {
      const int n_tokens = first == 0 ? kMostTileTokens : kBlockSize;
      const Tile tile = TileOf(layer.heads[0], is_key, first, n_tokens);
      const int n_elements = static_cast<int>(tile[0].size());
      f(tile, StoredOf(layer.BalanceOf(0), is_key, first, n_elements));
    }
  }
}

TEST_P(SealBalanceTest, IsThatOfTheDefinition) {
  int seed = 0;
  for (const Ranks& ranks : std::vector<Ranks>{{64, 64}, {48, 80}, {128, 16}, {16, 256}}) {
    // What lies at the least scale, about it and far above.
    for (double width : {0.05, 0.8, 3.0, 500.0, 1e5}) {
      const Layer layer = Seal(UnevenHead(ranks, 3, {width, 0.5, 0.4, 0.3}, ++seed), 3);
      ForEachTile(layer, [&](const Tile& tile, const std::vector<double>& stored) {
        const std::vector<double> want = BalanceRef(tile).elements;
        for (size_t i = 0; i < stored.size(); ++i) {
          // A factor that all elements have makes no difference, and where two rounds are as good
          // the last bit says which of them is taken. F16 rounds by 2^-11 at most, here twice.
          ASSERT_NEAR(stored[i] * want[0], want[i] * stored[0], 0x1.2p-10 * want[i] * stored[0])
              << ranks.k << " " << width << " element " << i;
        }
      });
    }
  }
}

// Under the stored balance, and what the scales of the members hold of it, all deviations are the
// same but for the rounding to F16, as far as no scale is held at the least one.
TEST_P(SealBalanceTest, MakesVariancesEqual) {
  const Layer layer = Seal(UnevenHead({256, 256}, 3, {5, 0.05, 0.05, 0}, 9), 3);
  ForEachTile(layer, [&](Tile tile, const std::vector<double>& stored) {
    std::vector<double> before, after;
    for (size_t j = 0; j < stored.size(); ++j) {
      std::vector<double> element;
      for (const std::vector<double>& member : tile) element.push_back(member[j]);
      before.push_back(DeviationRef(element));
    }
    for (std::vector<double>& member : tile) {
      for (size_t j = 0; j < member.size(); ++j) member[j] /= stored[j];
      const double deviation = DeviationRef(member);
      for (double& x : member) x /= deviation;
    }
    for (size_t j = 0; j < stored.size(); ++j) {
      std::vector<double> element;
      for (const std::vector<double>& member : tile) element.push_back(member[j]);
      after.push_back(DeviationRef(element));
    }
    const auto [low, high] = std::minmax_element(before.begin(), before.end());
    EXPECT_GT(*high, 1.25 * *low);
    const auto [least, most] = std::minmax_element(after.begin(), after.end());
    EXPECT_LT(*most, 1.005 * *least);
  });
}

// Rows of one value, of zeros, of one token that is not zero.
TEST_P(SealBalanceTest, TakesRowsWithoutVariance) {
  for (double value : {0.0, 7.5, -3e4}) {
    for (bool has_other : {false, true}) {
      RefHead head = {64, 48, {}, {}};
      head.k.assign(3 * kBlockSize * 64, static_cast<float>(value));
      head.v.assign(3 * kBlockSize * 48, static_cast<float>(value));
      if (has_other) head.k[70 * 64 + 5] = head.v[70 * 48 + 5] = 100;
      const Layer layer = Seal(head, 3);
      const std::vector<float> keys = ReadKeysRef(layer.Objects(0));
      const std::vector<float> values = ReadValuesRef(layer.Objects(0));
      // Tokens and channels of one value come back as F16 holds them, twice rounded.
      const double tolerance = 0x1p-9 * std::abs(value);
      EXPECT_NEAR(keys[0], value, tolerance);
      EXPECT_NEAR(keys[70 * 64 + 6], value, tolerance);
      EXPECT_NEAR(values[0], value, tolerance);
      EXPECT_NEAR(values[71 * 48 + 5], value, tolerance);
      EXPECT_NEAR(keys[70 * 64 + 5], has_other ? 100 : value, tolerance + 0.1);
      EXPECT_NEAR(values[70 * 48 + 5], has_other ? 100 : value, tolerance + 0.1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, SealBalanceTest, testing::ValuesIn(AvailableIsas()),
                         [](const auto& suite) { return std::string(IsaName(suite.param)); });

}  // namespace
}  // namespace kvlathe
