#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <vector>

#include "cpu/memory/cpu_device.h"
#include "model/rotation_tables.h"
#include "model/small_config.h"

namespace kvlathe {
namespace {

TEST(RopeTable, HoldsTheAnglesOfThePaper) {
  RopeTable table({}, 8);
  table.Extend(3);
  table.Extend(100);
  for (int p : {0, 1, 2, 77}) {
    for (int i = 0; i < 4; ++i) {
      const double angle = p * std::pow(10000.0, -2.0 * i / 8);
      EXPECT_NEAR(table.cos(p)[i], std::cos(angle), 1e-6);
      EXPECT_NEAR(table.sin(p)[i], std::sin(angle), 1e-6);
    }
  }
}

TEST(RopeFrequencies, LinearScalingDividesAll) {
  RopeConfig config;
  const auto plain = RopeFrequencies(config, 64);
  config.scaling = RopeConfig::Scaling::kLinear;
  config.factor = 4;
  const auto scaled = RopeFrequencies(config, 64);
  for (int i = 0; i < 32; ++i) EXPECT_DOUBLE_EQ(scaled[i], plain[i] / 4);
}

TEST(RopeTable, LongRopeDividesEveryPairByItsFactorAndScalesAll) {
  RopeConfig config;
  config.scaling = RopeConfig::Scaling::kLongRope;
  config.short_factors = {1, 2};
  config.long_factors = {3, 50};
  config.amplitude = 1.25;
  RopeTable short_table(config, 4);
  config.uses_long_factors = true;
  RopeTable long_table(config, 4);
  short_table.Extend(8);
  long_table.Extend(8);
  EXPECT_NEAR(short_table.cos(7)[0], 1.25 * std::cos(7.0), 1e-6);
  EXPECT_NEAR(short_table.sin(7)[1], 1.25 * std::sin(7 * 0.01 / 2), 1e-6);
  EXPECT_NEAR(long_table.cos(7)[0], 1.25 * std::cos(7.0 / 3), 1e-6);
  EXPECT_NEAR(long_table.sin(7)[1], 1.25 * std::sin(7 * 0.01 / 50), 1e-6);
}

TEST(RopeTable, WithoutChannelsIsEmpty) {
  RopeTable table({}, 0);
  table.Extend(1000);
  EXPECT_EQ(table.rope_dim(), 0);
}

TEST(RopeFrequencies, Llama3KeepsShortAndStretchesLongWavelengths) {
  RopeConfig config;
  config.theta = 500000;
  const auto plain = RopeFrequencies(config, 128);
  config.scaling = RopeConfig::Scaling::kLlama3;
  config.factor = 8;
  const auto scaled = RopeFrequencies(config, 128);
  EXPECT_DOUBLE_EQ(scaled[0], plain[0]);
  EXPECT_DOUBLE_EQ(scaled[63], plain[63] / 8);
  int n_between = 0;
  for (int i = 0; i < 64; ++i) {
    EXPECT_LE(scaled[i], plain[i]);
    EXPECT_GE(scaled[i], plain[i] / 8);
    n_between += scaled[i] < plain[i] && scaled[i] > plain[i] / 8;
  }
  EXPECT_GT(n_between, 3);
}

TEST(BlockRotationsTest, HoldTheTableInTheOrderOfBlocks) {
  const RopeConfig config{.theta = 100, .amplitude = 1.25};
  constexpr int kRopeDim = 12, kBefore = 3;
  RopeTable table(config, kRopeDim);
  BlockRotations rotations(config, kRopeDim, kBefore);
  std::vector<float> cos(3 * rotations.block_size()), sin(cos.size());
  rotations.Write(0, 1, &table, cos.data(), sin.data());
  rotations.Write(1, 2, &table, &cos[rotations.block_size()], &sin[rotations.block_size()]);
  EXPECT_EQ(rotations.half(), kRopeDim / 2);
  EXPECT_FLOAT_EQ(rotations.way_back(), 1 / (1.25f * 1.25f));
  const KeyRotation all = {cos.data(), sin.data(), rotations.half(), rotations.way_back()};
  for (int b = 0; b < 3; ++b) {
    const KeyRotation block = all.From(b);
    for (int t = 0; t < kBlockSize; ++t) {
      const int position = kBefore + b * kBlockSize + t;
      for (int i = 0; i < kRopeDim / 2; ++i) {
        EXPECT_EQ(block.cos[KeyOffset(t, i)], table.cos(position)[i]);
        EXPECT_EQ(block.sin[KeyOffset(t, i)], table.sin(position)[i]);
      }
    }
  }
}

// As RopeTable turns every position, in a plain loop.
std::vector<double> MeanByLoop(const std::vector<float>& row, const RopeConfig& rope, int rope_dim,
                               int n_positions) {
  RopeTable table(rope, rope_dim);
  table.Extend(n_positions);
  const int half = rope_dim / 2;
  std::vector<double> mean(row.size());
  for (int p = 0; p < n_positions; ++p) {
    for (size_t i = 0; i < row.size(); ++i) {
      const int c = static_cast<int>(i);
      double turned = row[c];
      if (c < half) {
        turned = double{row[c]} * table.cos(p)[c] - double{row[c + half]} * table.sin(p)[c];
      } else if (c < rope_dim) {
        turned = double{row[c]} * table.cos(p)[c - half] +
                 double{row[c - half]} * table.sin(p)[c - half];
      }
      mean[i] += turned / n_positions;
    }
  }
  return mean;
}

TEST(MeanTurnedTest, IsTheMeanOverThePositions) {
  std::vector<float> row(40);
  for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(i * 37 % 101) - 50;
  RopeConfig plain, scaled;
  plain.theta = 1e6;
  scaled.scaling = RopeConfig::Scaling::kLinear;
  scaled.factor = 4;
  scaled.amplitude = 1.25;
  for (const RopeConfig& rope : {plain, scaled}) {
    for (const int rope_dim : {40, 16}) {
      for (const int n_positions : {1, 2, 1000, 32768}) {
        const auto expected = MeanByLoop(row, rope, rope_dim, n_positions);
        const auto found = MeanTurned(row, rope, rope_dim, n_positions);
        ASSERT_EQ(found.size(), row.size());
        for (size_t i = 0; i < row.size(); ++i) {
          EXPECT_NEAR(found[i], expected[i], 1e-3) << rope_dim << ", " << n_positions << ": " << i;
        }
      }
    }
  }
}

std::vector<float> RowsAt(Device* memory, const ObjectPlace& place, int64_t n) {
  std::vector<float> rows(n);
  memory->Download(place, std::as_writable_bytes(std::span(rows)));
  return rows;
}

TEST(RotationTables, QueriesGrowAndKeysDoNot) {
  CpuDevice memory;
  ModelConfig config = SmallConfig();
  config.attention.kinds[0].query_growth = 0.5;
  config.attention.kinds[0].growth_context = 3;
  RotationTables tables(config, &memory);
  constexpr int kPositions = 20;
  ASSERT_TRUE(tables.Extend(kPositions).ok());
  const int64_t half = config.rope_dim() / 2, n = kPositions * half;
  const auto cos = RowsAt(&memory, tables.cos(0), n), sin = RowsAt(&memory, tables.sin(0), n);
  const auto query_cos = RowsAt(&memory, tables.query_cos(0), n);
  const auto query_sin = RowsAt(&memory, tables.query_sin(0), n);
  for (int64_t i = 0; i < n; ++i) {
    const double growth = 1 + 0.5 * std::log(1.0 + static_cast<double>(i / half / 3));
    EXPECT_FLOAT_EQ(query_cos[i], static_cast<float>(growth) * cos[i]);
    EXPECT_FLOAT_EQ(query_sin[i], static_cast<float>(growth) * sin[i]);
    EXPECT_NEAR(cos[i] * cos[i] + sin[i] * sin[i], 1, 1e-6);
  }
  EXPECT_EQ(tables.key_cos(0), tables.cos(0));
}

TEST(RotationTables, QueriesThatDoNotGrowShareTheTablesOfKeys) {
  CpuDevice memory;
  const ModelConfig config = SmallConfig();
  RotationTables tables(config, &memory);
  ASSERT_TRUE(tables.Extend(4).ok());
  EXPECT_EQ(tables.query_cos(0), tables.cos(0));
  EXPECT_EQ(tables.query_sin(0), tables.sin(0));
}

}  // namespace
}  // namespace kvlathe
