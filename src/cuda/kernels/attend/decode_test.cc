// Attention of steps that decode, on a GPU, against plain attention in double.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "cuda/kernels/attend/decode_case.h"

namespace kvlathe::cuda {
namespace {

// No number of the many that are compared is beyond so many deviations by chance.
constexpr double kMostDeviations = 6;

TEST(DecodeTest, ReadsPlainRows) {
  for (const int rank : {16, 48, 64, 128, 256}) {
    for (const int n : {1, 63, 64, 65, 300}) {
      const AttendProblem problem({.rank_k = rank,
                                   .rank_v = rank == 48 ? 80 : rank,
                                   .gqa_group = 3,
                                   .kv_end = n,
                                   .first_visible = n},
                                  DType::kBf16, 7);
      EXPECT_LT(WorstDeviation(CaseOf(problem)), kMostDeviations) << problem.shape.Describe();
    }
  }
}

TEST(DecodeTest, TakesAnyRowsWindowsAndParts) {
  for (const int group : {1, 2, 3, 5, 8, 9, 16}) {
    for (const int n_tokens : {1, 2, 7, 32 / group}) {
      for (const int window : {0, 40, 100}) {
        AttendShape shape = {.rank_k = 32,
                             .rank_v = 48,
                             .n_tokens = n_tokens,
                             .gqa_group = group,
                             .kv_end = 333,
                             .first_visible = 333 - n_tokens};  // the last entry is seen by none
        if (window > 0) shape.window = window;
        const AttendProblem problem(shape, DType::kBf16, 8);
        const DecodeCase c = CaseOf(problem);
        const int n_parts = 1 + (group + n_tokens) % 3;
        EXPECT_LT(WorstDeviation(c, {.n_parts = n_parts, .n_warps = 1 + group % 4}),
                  kMostDeviations)
            << shape.Describe() << " parts " << n_parts;
      }
    }
  }
}

TEST(DecodeTest, RowsThatSeeNothingAreZeros) {
  const AttendShape shape = {.n_tokens = 4, .gqa_group = 2, .kv_end = 2, .first_visible = -1};
  const AttendProblem problem(shape, DType::kBf16, 9);
  DecodeCase c = CaseOf(problem);
  c.out_type = DType::kBf16;
  c.behind = 24;
  EXPECT_LT(WorstDeviation(c), kMostDeviations);
  EXPECT_LT(WorstDeviation(c, {.n_parts = 2}), kMostDeviations);
}

PackedCase NumberCase(const PackedSide& k, const PackedSide& v, int rank) {
  PackedCase c;
  c.format.codec = UniformCodec{k, v};
  c.rank_k = rank;
  c.rank_v = rank == 64 ? 80 : rank;
  c.runs = {{3, true}, {2, false}};
  c.n_plain = 30;
  c.gqa_group = 3;
  return c;
}

const PackedSide kOfToken = {.bits = 4, .sharing = ScaleSharing::kToken, .group = 0};

TEST(DecodeTest, ReadsCodesUnderScales) {
  struct Sides {
    PackedSide k, v;
  };
  std::vector<Sides> all;
  for (const int bits : {2, 3, 4, 8}) {
    for (const int group : {0, 32}) {
      all.push_back({{.bits = bits, .sharing = ScaleSharing::kToken, .group = group},
                     {.bits = bits, .sharing = ScaleSharing::kToken, .group = group}});
    }
    for (const int group : {0, 16, 32, 64, 128}) {
      all.push_back({{.bits = bits, .sharing = ScaleSharing::kChannel, .group = group},
                     {.bits = bits, .sharing = ScaleSharing::kTokenLayer}});
    }
    if (bits < 4) continue;
    const PackedSide symmetric = {.bits = bits,
                                  .sharing = ScaleSharing::kToken,
                                  .group = bits == 4 ? 32 : 0,
                                  .is_symmetric = true};
    all.push_back({symmetric, symmetric});
  }
  for (const Sides& sides : all) {
    for (const int rank : {16, 64, 128}) {
      const PackedCase c = NumberCase(sides.k, sides.v, rank);
      const PackedProblem problem(c, DType::kBf16, 3);
      EXPECT_LT(WorstDeviation(CaseOf(problem)), kMostDeviations) << c.Describe();
    }
  }
}

TEST(DecodeTest, ReadsCodesBySeveralRowsWindowsAndParts) {
  for (const int n_tokens : {1, 3, 8}) {
    for (const int window : {kNoWindow, 70}) {
      PackedCase c = NumberCase(kOfToken, kOfToken, 64);
      c.n_tokens = n_tokens;
      c.gqa_group = 4;
      c.window = window;
      c.hidden_blocks = 1;
      c.unseen = 2;
      c.past_end = window == kNoWindow ? 0 : 1;
      const PackedProblem problem(c, DType::kBf16, 4);
      EXPECT_LT(WorstDeviation(CaseOf(problem), {.n_parts = 2, .n_warps = 2}), kMostDeviations)
          << c.Describe();
    }
  }
}

TEST(DecodeTest, ReadsSplitBits) {
  for (SplitHead head : kSplitHeads) {
    for (const bool has_coded_rows : {false, true}) {
      head.has_coded_rows = has_coded_rows;
      SplitProblem problem(head, DType::kBf16, 11);
      ASSERT_TRUE(problem.Seal(AvailableIsas().back()).ok());
      problem.UsePacked();
      for (const int group : {3, 8, 14}) {
        EXPECT_LT(WorstDeviation(CaseOf(problem, 1, group, 0)), kMostDeviations) << group;
      }
      EXPECT_LT(WorstDeviation(CaseOf(problem, 6, 5, 33), {.n_parts = 2}), kMostDeviations);
    }
  }
}

}  // namespace
}  // namespace kvlathe::cuda
