// A run of more blocks than are summed in F32, and what is refused; the rest is shown on whole
// models (tests/online_svd_test.cc, tests/online_zack_test.cc).
#include "cpu/svd_online.h"

#include <gtest/gtest.h>

#include <limits>
#include <utility>
#include <vector>

#include "analysis/bases/fdc_reference.h"
#include "base/random.h"
#include "format/rows/block_layout.h"

namespace kvlathe {
namespace {

constexpr int kDim = 32, kBlocks = 10;

class OnlineSvdSealTest : public ::testing::Test {
 protected:
  OnlineSvdSealTest() {
    Random random(3);
    for (auto& block : plain_) {
      block.resize(2 * kBlockSize * kDim);
      for (float& x : block) x = static_cast<float>(random.Normal());
    }
    for (int b = 0; b < kBlocks; ++b) {
      packed_[b].resize(PackedBlockBytes(shape_));
      blocks_.push_back(reinterpret_cast<const std::byte*>(plain_[b].data()));
      outputs_.push_back(packed_[b].data());
    }
    record_.resize(RunRecordBytes(shape_));
  }

  Status Seal(bool finds_rotations = true) {
    const OnlineSvdHead head = {.shape = shape_,
                                .blocks = blocks_.data(),
                                .packed = outputs_.data(),
                                .record = finds_rotations ? record_.data() : nullptr,
                                .rotations = record_.data(),
                                .query_gram = query_gram_.data(),
                                .output_gram = output_gram_.data()};
    const Isa isa = AvailableIsas().back();
    Linear linear(&pool_, isa);
    return SealByOnlineSvd({&head, 1}, {&GetElementwiseKernels(isa), &linear, &pool_});
  }

  const PackedShape shape_ = MakePackedShape(
      {.codec = RotatedCodec{}}, {.rank_k = kDim, .rank_v = kDim, .row_type = DType::kF32},
      RotatedRanks{.k = 16, .v = kDim}, {.n_blocks = kBlocks});
  ThreadPool pool_{1};
  std::vector<float> plain_[kBlocks];
  std::vector<std::byte> packed_[kBlocks], record_;
  std::vector<const std::byte*> blocks_;
  std::vector<std::byte*> outputs_;
  std::vector<float> query_gram_ = std::vector<float>(kDim * kDim);
  std::vector<double> output_gram_ = std::vector<double>(kDim * kDim);
};

TEST_F(OnlineSvdSealTest, RotationsAreOfTheRowsOfAllBlocks) {
  // What the first blocks hold most of, the others hold least of, and more of all.
  reference::Matrix keys;
  for (int b = 0; b < kBlocks; ++b) {
    for (int t = 0; t < kBlockSize; ++t) {
      keys.emplace_back();
      for (int i = 0; i < kDim; ++i) {
        const float step = static_cast<float>(i);
        plain_[b][KeyOffset(t, i)] *= b < 8 ? 1 + 0.3f * step : 30 - 0.9f * step;
        keys.back().push_back(plain_[b][KeyOffset(t, i)]);
      }
    }
  }
  ASSERT_TRUE(Seal().ok());
  const reference::Matrix expected = reference::DecomposeStacked(keys).right;
  const auto* const found = reinterpret_cast<const float*>(record_.data());
  for (int i = 0; i < kDim; ++i) {
    for (int j = 0; j < kDim; ++j) {
      double projection = 0, literal = 0;
      for (int r = 0; r < 16; ++r) {
        projection += double{found[i * 16 + r]} * found[j * 16 + r];
        literal += expected[r][i] * expected[r][j];
      }
      ASSERT_NEAR(projection, literal, 1e-4) << i << ' ' << j;
    }
  }
}

TEST_F(OnlineSvdSealTest, RefusesRowsThatAreNotFinite) {
  ASSERT_TRUE(Seal().ok());
  ASSERT_TRUE(Seal(/*finds_rotations=*/false).ok());
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    // The last key, and the first value.
    for (const auto& [block, idx] :
         {std::pair(kBlocks - 1, kBlockSize * kDim - 1), std::pair(0, kBlockSize * kDim)}) {
      const float good = std::exchange(plain_[block][idx], bad);
      EXPECT_EQ(Seal().code(), StatusCode::kDataLoss);
      EXPECT_EQ(Seal(/*finds_rotations=*/false).code(), StatusCode::kDataLoss);
      plain_[block][idx] = good;
    }
  }
}

TEST_F(OnlineSvdSealTest, RefusesRowsThatAreTooLargeToSquare) {
  plain_[3][7] = 1e25f;
  EXPECT_EQ(Seal().code(), StatusCode::kDataLoss);
  EXPECT_TRUE(Seal(/*finds_rotations=*/false).ok());
}

TEST_F(OnlineSvdSealTest, RefusesSumsOfQueriesThatAreNotFinite) {
  query_gram_[kDim - 1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(Seal().code(), StatusCode::kDataLoss);
  EXPECT_TRUE(Seal(/*finds_rotations=*/false).ok());  // they are not asked for
}

}  // namespace
}  // namespace kvlathe
