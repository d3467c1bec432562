#include "analysis/bases/lathe_maps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "analysis/bases/lathe.h"
#include "base/random.h"
#include "io/files.h"

namespace kvlathe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr StatisticsShape kShape = {.n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = 32};
constexpr int kWidth = 64;

// [n, kWidth, kWidth], each a sum of squares whose directions fall by a hundred in size.
std::vector<float> RandomSquares(Random* random, int n) {
  std::vector<float> squares;
  for (int i = 0; i < n; ++i) {
    std::vector<double> root(kWidth * kWidth);
    for (int r = 0; r < kWidth; ++r) {
      for (int c = 0; c < kWidth; ++c) {
        root[r * kWidth + c] = random->Normal() * std::exp(-4.6 * c / kWidth);
      }
    }
    for (int a = 0; a < kWidth; ++a) {
      for (int b = 0; b < kWidth; ++b) {
        double sum = 0;
        for (int c = 0; c < kWidth; ++c) sum += root[a * kWidth + c] * root[b * kWidth + c];
        squares.push_back(static_cast<float>(sum));
      }
    }
  }
  return squares;
}

CalibrationStatistics RandomStatistics() {
  CalibrationStatistics s = MakeStatistics(kShape);
  s.source = {"abc", "theta=10000", "text:1", 7, 4096, 1024, 8192};
  s.n_rows = 4000;
  s.joint.n_tokens = 3000;
  s.held_back.n_tokens = 1000;
  Random random(3);
  for (JointMoments* moments :
       {&s.joint.k, &s.joint.k_centred, &s.joint.k_block, &s.joint.k_pre, &s.joint.v}) {
    moments->covariance = RandomSquares(&random, kShape.n_layers);
    moments->weighed_covariance = RandomSquares(&random, kShape.n_layers);
    moments->fisher = RandomSquares(&random, kShape.n_layers);
    for (float& x : moments->mean) x = static_cast<float>(random.Normal());
    for (float& x : moments->weighed_mean) x = static_cast<float>(random.Normal());
  }
  for (float& x : s.turning_mean) x = static_cast<float>(random.Normal());
  return s;
}

class LatheMapsTest : public ::testing::Test {
 protected:
  std::string PathOf(const std::string& name) const {
    return ::testing::TempDir() + "/lathe_maps_" + name;
  }
  StatusOr<CalibrationStatistics> WrittenAndRead(KeyRows keys) const {
    const std::string path = PathOf(NameOf(keys));
    KVL_RETURN_IF_ERROR(WriteLatheMaps(statistics_, keys, path));
    return ReadStatisticsOrMaps(path);
  }

  CalibrationStatistics statistics_ = RandomStatistics();
};

// What the allocation of bits sees of each channel.
TEST_F(LatheMapsTest, LatheFindsTheSameLossesInThem) {
  for (const KeyRows keys : kAllKeyRows) {
    const auto read = WrittenAndRead(keys);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->maps_of, keys);
    EXPECT_EQ(read->shape, kShape);
    EXPECT_EQ(read->source.model_hash, "abc");
    EXPECT_EQ(read->source.n_positions, 8192);
    EXPECT_EQ(read->held_back.n_tokens, 0);
    EXPECT_EQ(read->turning_mean, statistics_.turning_mean);
    BasisOptions options;
    options.keys_before_rope = keys == KeyRows::kBeforeRope;
    options.has_frames = keys == KeyRows::kBlock;
    options.turning_pairs = keys == KeyRows::kBlock || keys == KeyRows::kCentred ? 8 : 0;
    for (const int joint_channels : {0, kWidth}) {
      options.joint_channels = joint_channels;
      const auto of_all = AnalyseLathe({.statistics = &statistics_, .options = options});
      const auto of_maps = AnalyseLathe({.statistics = &*read, .options = options});
      ASSERT_TRUE(of_all.ok()) << of_all.status();
      ASSERT_TRUE(of_maps.ok()) << of_maps.status();
      for (size_t h = 0; h < of_all->heads.size(); ++h) {
        const auto expect_near = [&](const auto& expected, const auto& found) {
          ASSERT_EQ(std::ssize(found), std::ssize(expected));
          for (size_t i = 0; i < expected.size(); ++i) {
            EXPECT_NEAR(found[i], expected[i], 0.01 * std::abs(expected[i])) << i;
          }
        };
        expect_near(of_all->spectra[h].qk, of_maps->spectra[h].qk);
        expect_near(of_all->spectra[h].v, of_maps->spectra[h].v);
        expect_near(of_all->noise[h].qk, of_maps->noise[h].qk);
        expect_near(of_all->noise[h].v, of_maps->noise[h].v);
        EXPECT_EQ(of_maps->heads[h].key_offset, of_all->heads[h].key_offset);
        EXPECT_EQ(of_maps->heads[h].value_offset, of_all->heads[h].value_offset);
      }
    }
  }
}

TEST_F(LatheMapsTest, OtherKeysAreRefusedInOneLine) {
  const auto read = WrittenAndRead(KeyRows::kBlock);
  ASSERT_TRUE(read.ok()) << read.status();
  const auto analysis = AnalyseLathe({.statistics = &*read});
  EXPECT_EQ(analysis.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(analysis.status().ToString(),
              AllOf(HasSubstr("keys=block"), HasSubstr("keys=after")));
  const Status status = WriteLatheMaps(*read, KeyRows::kAfterRope, PathOf("other"));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  statistics_.joint.n_tokens = 0;
  EXPECT_EQ(WrittenAndRead(KeyRows::kBlock).status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(LatheMapsTest, TheyTakeATenthOfTheBytesAtMost) {
  const std::string all = PathOf("all"), maps = PathOf("maps");
  ASSERT_TRUE(WriteStatistics(statistics_, all).ok());
  ASSERT_TRUE(WriteLatheMaps(statistics_, KeyRows::kBlock, maps).ok());
  EXPECT_LT(10 * std::filesystem::file_size(maps), std::filesystem::file_size(all));
  EXPECT_TRUE(ReadStatisticsOrMaps(all).ok());
  EXPECT_EQ(ReadStatistics(maps).status().code(), StatusCode::kDataLoss);
}

TEST_F(LatheMapsTest, DamagedFilesAreRefused) {
  const std::string path = PathOf("damaged");
  ASSERT_TRUE(WriteLatheMaps(statistics_, KeyRows::kBlock, path).ok());
  const std::string whole = ReadTextFile(path).value();
  Random random(5);
  for (int i = 0; i < 20; ++i) {
    std::string damaged = whole;
    damaged[random.Below(damaged.size())] ^= 0x10;
    ASSERT_TRUE(WriteFileAtomically(path, damaged).ok());
    EXPECT_FALSE(ReadStatisticsOrMaps(path).ok()) << i;
  }
}

}  // namespace
}  // namespace kvlathe
