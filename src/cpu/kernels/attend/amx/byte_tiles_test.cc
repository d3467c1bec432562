// Products of bytes in tiles, emulated: that they give rows the bits of those in vectors, and when
// they are taken.
#include "cpu/kernels/attend/byte_tiles.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "cpu/kernels/attend/attend.h"
#include "cpu/kernels/attend/attend_isa.h"
#include "cpu/kernels/testing/attend_emulated.h"
#include "cpu/kernels/testing/split_bits_problem.h"
#include "tensor/buffer.h"

namespace kvlathe {
namespace {

struct TileCase {
  int n_tokens;
  int group;
  int window = kNoWindow;
  int n_hidden = 0;  // entries at the end that no row sees

  int n_rows() const { return n_tokens * group; }
};

struct TileResult {
  std::vector<float> o, row_max, row_sum;

  bool operator==(const TileResult& other) const {
    return std::memcmp(o.data(), other.o.data(), 4 * o.size()) == 0 && row_max == other.row_max &&
           row_sum == other.row_sum;
  }
};

// The result of kernels over sealed and plain entries.
TileResult Attended(const AttendKernels& kernels, const SplitProblem& p, const TileCase& c) {
  const int n = static_cast<int>(p.k.size()) / p.shape.rank_k, n_rows = c.n_rows();
  Random random(7);
  std::vector<Bf16> q(static_cast<size_t>(n_rows) * p.shape.rank_k);
  for (Bf16& x : q) x = ToBf16(static_cast<float>(random.Normal()));
  TileResult to = {std::vector<float>(static_cast<size_t>(n_rows) * p.shape.rank_v),
                   std::vector<float>(n_rows), std::vector<float>(n_rows)};
  Buffer scratch = Buffer::Allocate(kAttendScratchBytes, "test").value();
  std::memset(scratch.data(), 0xff, scratch.n_bytes());
  AttendParams params;
  params.shape = p.shape;
  params.gqa_group = c.group;
  params.n_rows = n_rows;
  params.q = q.data();
  params.q_stride = p.shape.rank_k;
  params.blocks = p.blocks.data();
  params.packed = &p.packed_head;
  params.kv_end = n;
  params.first_visible = n - c.n_hidden - c.n_tokens + 1;
  params.window = c.window;
  params.sm_scale = 1 / std::sqrt(static_cast<float>(p.shape.rank_k));
  params.o = to.o.data();
  params.o_stride = p.shape.rank_v;
  params.row_max = to.row_max.data();
  params.row_sum = to.row_sum.data();
  kernels.attend(params, scratch.data());
  return to;
}

TEST(ByteTiles, GiveTheBitsOfVectors) {
  if (!HasBf16Dots(AvailableIsas().back())) GTEST_SKIP() << "needs AVX-512 BF16";
  // The ends of what rows see lie in sealed blocks too, where only the last rows see a block.
  const TileCase cases[] = {{1, 8},     {1, 12, 70}, {9, 1, 40},  {2, 8, kNoWindow, 37},  {17, 1},
                            {5, 4, 20}, {3, 8},      {31, 1, 65}, {32, 1, kNoWindow, 50}, {8, 4}};
  for (SplitHead head : kSplitHeads) {
    for (const int kind : {0, 1, 2}) {
      head.lowrank = kind == 1 ? 2 : 0;
      head.has_coded_rows = head.has_one_side = kind == 2;
      SplitProblem p(head, DType::kBf16, 17);
      ASSERT_TRUE(p.Seal(AvailableIsas().back()).ok());
      p.UsePacked();
      for (const TileCase& c : cases) {
        EXPECT_EQ(Attended(kAttendEmulatedTiles, p, c), Attended(kAttendAvx512Bf16, p, c))
            << c.n_tokens << " tokens, group " << c.group << ", window " << c.window << ", hidden "
            << c.n_hidden << ", " << SumOfChannels(head.k_channels) << " channels, kind " << kind;
      }
    }
  }
}

// Rows of several panels, where one side makes prompts meet bytes too.
TEST(ByteTiles, TakeManyRowsOfOneSide) {
  if (!HasBf16Dots(AvailableIsas().back())) GTEST_SKIP() << "needs AVX-512 BF16";
  SplitHead head = kSplitHeads[0];
  head.has_coded_rows = head.has_one_side = true;
  SplitProblem p(head, DType::kBf16, 19);
  ASSERT_TRUE(p.Seal(AvailableIsas().back()).ok());
  p.UsePacked();
  for (const TileCase& c : {TileCase{49, 1}, TileCase{100, 1}, TileCase{33, 3, 50}}) {
    EXPECT_EQ(Attended(kAttendEmulatedTiles, p, c), Attended(kAttendAvx512Bf16, p, c))
        << c.n_rows() << " rows";
  }
}

TEST(ByteTiles, AreTakenFromTheirFewestRowsOn) {
  if (!HasBf16Dots(AvailableIsas().back())) GTEST_SKIP() << "needs AVX-512 BF16";
  SplitProblem p(kSplitHeads[0], DType::kBf16, 21);
  ASSERT_TRUE(p.Seal(AvailableIsas().back()).ok());
  p.UsePacked();
  const auto products_of = [&](int n_rows) {
    const int64_t before = EmulatedByteProducts();
    Attended(kAttendEmulatedTiles, p, {1, n_rows});
    return EmulatedByteProducts() - before;
  };
  EXPECT_EQ(products_of(kMinByteTileRows - 1), 0);
  // K has 64 channels of 1 to 4 bits and V 112, in each of two blocks.
  const int64_t of_one_tile = 2 * (4 + 112 / 16);
  EXPECT_EQ(products_of(kMinByteTileRows), of_one_tile);
  EXPECT_EQ(products_of(kMostByteTileRows), of_one_tile);
  EXPECT_EQ(products_of(kMostByteTileRows + 1), 2 * of_one_tile);
}

}  // namespace
}  // namespace kvlathe
