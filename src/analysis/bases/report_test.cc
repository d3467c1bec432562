#include "analysis/bases/report.h"

#include <gtest/gtest.h>

namespace kvlathe {
namespace {

TEST(Concentration, IsTheShareOfTheLargestQuarter) {
  EXPECT_DOUBLE_EQ(Concentration(std::vector<double>(64, 3.0)), 0.25);
  EXPECT_DOUBLE_EQ(Concentration({5, 3, 1, 1, 0, 0, 0, 0}), 0.8);
  EXPECT_DOUBLE_EQ(Concentration({2, 0, 0, 0, 0}), 1);
  EXPECT_DOUBLE_EQ(Concentration({0, 0, 0, 0}), 1);
}

TEST(VariationByLayer, IsAmongTheHeadsOfALayer) {
  BasisAnalysis analysis;
  analysis.shape = {.n_layers = 2, .n_heads = 2, .n_kv_heads = 2, .head_dim = 2};
  analysis.spectra = {{{3, 1}, {5, 1}}, {{1, 1}, {5, 2}}, {{100, 1}, {9, 0}}, {{100, 2}, {3, 3}}};
  RankAllocation allocation;
  allocation.ranks = {{.rank_k = 1, .rank_v = 2},
                      {.rank_k = 1, .rank_v = 2},
                      {.rank_k = 1, .rank_v = 2},
                      {.rank_k = 3, .rank_v = 2}};
  const std::vector<HeadVariation> layers = VariationByLayer(analysis, allocation);
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_DOUBLE_EQ(layers[0].largest_qk, 0.5);  // 3 and 1: 1 about 2
  EXPECT_DOUBLE_EQ(layers[0].largest_v, 0);
  EXPECT_DOUBLE_EQ(layers[0].rank_k, 0);
  EXPECT_DOUBLE_EQ(layers[1].largest_qk, 0);
  EXPECT_DOUBLE_EQ(layers[1].largest_v, 0.5);
  EXPECT_DOUBLE_EQ(layers[1].rank_k, 0.5);
  EXPECT_DOUBLE_EQ(layers[1].rank_v, 0);
}

}  // namespace
}  // namespace kvlathe
