#include "cpu/kernels/latent/latent_keys.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "tensor/buffer.h"

namespace kvlathe {
namespace {

struct Case {
  int rank, head_dim, half, rank_v;
};

// Positions of their own for every token, and an amplitude.
struct Angles {
  Angles(int half_dim, Random* random) : half(half_dim) {
    for (int i = 0; i < kBlockSize * half; ++i) {
      const double angle = 100 * random->Normal();
      cos.push_back(static_cast<float>(1.25 * std::cos(angle)));
      sin.push_back(static_cast<float>(1.25 * std::sin(angle)));
    }
  }
  int half;
  std::vector<float> cos, sin;  // as K lies in a block
};

class LatentKeysTest : public ::testing::TestWithParam<Case> {
 protected:
  std::vector<float> Draw(int n, double deviation) {
    std::vector<float> values(n);
    for (float& x : values) x = ToFloat(ToBf16(static_cast<float>(deviation * random_.Normal())));
    return values;
  }
  Random random_{11};
};

TEST_P(LatentKeysTest, TilesAreTurnedProductsAndTheSameValues) {
  const auto [rank, head_dim, half, rank_v] = GetParam();
  const std::vector<float> way_back = Draw(rank * head_dim, 1 / std::sqrt(rank));
  const std::vector<float> offset = Draw(head_dim, 1);
  const std::vector<float> latents = Draw(kBlockSize * rank, 1);  // [token][rank]
  const std::vector<float> values = Draw(kBlockSize * rank_v, 1);
  const Angles angles(half, &random_);
  for (const Isa isa : AvailableIsas()) {
    for (const DType type : {DType::kF32, DType::kBf16}) {
      SCOPED_TRACE(fmt::format("{} {}", IsaName(isa), DTypeName(type)));
      const BlockShape shape{rank, rank_v, type}, plain{head_dim, rank_v, type};
      const LatentMap map(way_back, offset, head_dim, head_dim, type);
      std::vector<float> stored(kBlockSize * (rank + rank_v));
      for (int t = 0; t < kBlockSize; ++t) {
        for (int r = 0; r < rank; ++r) stored[KeyOffset(t, r)] = latents[t * rank + r];
        for (int r = 0; r < rank_v; ++r) {
          stored[kBlockSize * rank + ValueOffset(shape, t, r)] = values[t * rank_v + r];
        }
      }
      Buffer block, tile, scratch;
      ASSERT_TRUE(block.EnsureSize(BlockBytes(shape), "block").ok());
      ASSERT_TRUE(tile.EnsureSize(BlockBytes(plain), "tile").ok());
      ASSERT_TRUE(scratch.EnsureSize(kLatentScratchBytes, "scratch").ok());
      ConvertFromFloat(type, stored.data(), std::ssize(stored), block.data());
      GetLatentReader(isa, type)({.shape = shape,
                                  .map = map.view(),
                                  .rotation = {angles.cos.data(), angles.sin.data(), half, 0.64f},
                                  .block = block.data(),
                                  .tile = tile.data()},
                                 scratch.data());
      std::vector<float> found(kBlockSize * (head_dim + rank_v));
      ConvertToFloat(type, tile.data(), std::ssize(found), found.data());
      for (int t = 0; t < kBlockSize; ++t) {
        std::vector<double> key(head_dim);
        for (int i = 0; i < head_dim; ++i) {
          key[i] = offset[i];
          for (int r = 0; r < rank; ++r) {
            key[i] += double{latents[t * rank + r]} * way_back[r * head_dim + i];
          }
        }
        for (int i = 0; i < half; ++i) {
          const double c = angles.cos[KeyOffset(t, i)], s = angles.sin[KeyOffset(t, i)];
          const double a = key[i], b = key[i + half];
          key[i] = a * c - b * s;
          key[i + half] = b * c + a * s;
        }
        for (int i = 0; i < head_dim; ++i) {
          const double slack = type == DType::kF32 ? 1e-5 : std::abs(key[i]) / 256 + 1e-4;
          ASSERT_NEAR(found[KeyOffset(t, i)], key[i], slack) << "token " << t << " channel " << i;
        }
        for (int r = 0; r < rank_v; ++r) {
          ASSERT_EQ(found[kBlockSize * head_dim + ValueOffset(plain, t, r)],
                    values[t * rank_v + r]);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, LatentKeysTest,
                         ::testing::Values(Case{16, 16, 8, 16}, Case{32, 64, 32, 48},
                                           Case{64, 128, 64, 64}, Case{112, 128, 64, 16},
                                           Case{48, 80, 16, 80},  // a part of the channels turns
                                           Case{48, 96, 0, 32},   // none does
                                           Case{256, 256, 128, 256}, Case{384, 512, 256, 512}));

}  // namespace
}  // namespace kvlathe
