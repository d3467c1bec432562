// Every kernel set of this machine (and the AMX algorithm on emulated tiles) against AttendRef.
#include "cpu/kernels/attend/attend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"
#include "cpu/kernels/testing/attend_problem.h"
#include "cpu/kernels/testing/attend_ref.h"
#include "tensor/buffer.h"

namespace kvlathe {
namespace {

using KernelSet = AttendKernelSet;
using Rows = StoredRows;
using Shape = AttendShape;
using Problem = AttendProblem;
using Partial = AttendOutput;

TEST(Attend, DecodeMatchesReferenceForEveryGroupSize) {
  for (int group : {1, 2, 3, 4, 5, 6, 7, 8, 16, 17, 71}) {
    CheckAllSets(
        {.rank_k = 128, .rank_v = 128, .gqa_group = group, .kv_end = 300, .first_visible = 300},
        group);
  }
}

TEST(Attend, MatchesReferenceForEveryRank) {
  std::vector<int> ranks;
  for (int rank = 16; rank <= 256; rank += 16) ranks.push_back(rank);
  ranks.insert(ranks.end(), {272, 384, 496, kMaxRowRank});
  for (const int rank : ranks) {
    const int other = (rank <= 256 ? 272 : kMaxRowRank + 16) - rank;
    CheckAllSets({.rank_k = rank,
                  .rank_v = other,
                  .n_tokens = 3,
                  .gqa_group = 4,
                  .kv_end = 141,
                  .first_visible = 138},
                 rank);
    // Decoding: one tile of 1 to 6 rows.
    CheckAllSets({.rank_k = other,
                  .rank_v = rank,
                  .gqa_group = 1 + rank / 16 % 6,
                  .kv_end = 205,
                  .first_visible = 205},
                 rank);
    CheckAllSets(
        {.rank_k = 16, .rank_v = rank, .gqa_group = 4, .kv_end = 205, .first_visible = 205}, rank);
  }
}

// However many rows there are, and so into whatever tiles they are cut, a row has the same bits.
TEST(Attend, BitsOfARowDoNotDependOnTilesInF32) {
  const Shape shape = {
      .rank_k = 80, .rank_v = 96, .gqa_group = 14, .kv_end = 205, .first_visible = 205};
  for (const KernelSet& set : AttendKernelSets()) {
    if (HasBf16Dots(set.isa) && set.row_type == DType::kBf16) continue;
    Problem problem(shape, set.row_type, 7);
    const Partial all = RunAttend(*set.kernels, problem, 0, shape.kv_end);
    for (int n = 1; n < shape.gqa_group; ++n) {
      problem.n_rows = problem.shape.gqa_group = n;
      const Partial some = RunAttend(*set.kernels, problem, 0, shape.kv_end);
      for (int row = 0; row < n; ++row) {
        const int64_t at = row * all.o_stride;
        ASSERT_EQ(std::memcmp(&some.o[at], &all.o[at], shape.rank_v * sizeof(float)), 0)
            << set.name << ", row " << row << " of " << n;
        ASSERT_EQ(some.row_sum[row], all.row_sum[row]) << set.name << ", row " << row;
      }
    }
  }
}

TEST(Attend, LengthsAreNotTiedToBlocks) {
  for (int n : {1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 321}) {
    CheckAllSets({.rank_k = 48, .rank_v = 80, .gqa_group = 5, .kv_end = n, .first_visible = n}, n);
  }
}

TEST(Attend, PrefillMasksEntriesAfterEachToken) {
  for (int n_rows : {1, 2, 7, 15, 16, 31, 33, 64, 65, 100, 257, 300}) {
    // The chunk's own entries are the last n_rows of the range: every row has its own limit.
    CheckAllSets({.rank_k = 64,
                  .rank_v = 48,
                  .n_tokens = n_rows,
                  .kv_end = 70 + n_rows,
                  .first_visible = 71},
                 n_rows);
  }
}

TEST(Attend, RowsThatSeeNothingAreEmpty) {
  CheckAllSets({.n_tokens = 40, .gqa_group = 3, .kv_end = 40, .first_visible = -20}, 1);
  CheckAllSets({.n_tokens = 150, .kv_begin = 64, .kv_end = 150, .first_visible = 1}, 2);
  CheckAllSets({.n_tokens = 5, .kv_end = 64, .first_visible = -100}, 3);
  CheckAllSets({.gqa_group = 4, .kv_begin = 64, .kv_end = 64, .first_visible = 64}, 4);
}

TEST(Attend, WindowsHideWhatCameBefore) {
  // Rows of one range whose windows begin before it, in it, at a block's edge, and after it.
  for (int window : {1, 2, 15, 64, 65, 100, 128, 129, 300}) {
    CheckAllSets({.rank_k = 64,
                  .rank_v = 80,
                  .n_tokens = 90,
                  .gqa_group = 3,
                  .kv_end = 390,
                  .first_visible = 301,
                  .window = window},
                 window);
    CheckAllSets({.n_tokens = 200, .kv_end = 128, .first_visible = 1, .window = window}, window);
    CheckAllSets({.gqa_group = 4, .kv_end = 333, .first_visible = 333, .window = window}, window);
  }
}

TEST(Attend, BlocksBelowTheWindowAreNeverRead) {
  for (const KernelSet& set : AttendKernelSets()) {
    const Shape shape{
        .n_tokens = 30, .gqa_group = 2, .kv_end = 330, .first_visible = 301, .window = 100};
    Problem problem(shape, set.row_type, 6);
    const AttendRefResult want = problem.Reference();
    problem.blocks[0] = problem.blocks[1] = problem.blocks[2] = nullptr;
    ExpectMatches(RunAttend(*set.kernels, problem, 0, shape.kv_end), want, problem.n_rows,
                  shape.rank_v, set.row_type, set.name);
  }
}

TEST(Attend, GivesTheScoresOfWhatARowSees) {
  const Shape shapes[] = {
      {.rank_k = 48, .gqa_group = 4, .kv_end = 300, .first_visible = 300},
      {.rank_k = 64, .n_tokens = 75, .gqa_group = 3, .kv_end = 150, .first_visible = 76},
      {.n_tokens = 300, .gqa_group = 1, .kv_begin = 64, .kv_end = 300, .first_visible = 1},
      {.gqa_group = 5, .kv_end = 300, .first_visible = 300, .score_cap = 3}};
  for (const KernelSet& set : AttendKernelSets()) {
    for (const Shape& shape : shapes) {
      const Problem problem(shape, set.row_type, 9);
      const Partial got =
          RunAttend(*set.kernels, problem, shape.kv_begin, shape.kv_end, /*wants_scores=*/true);
      ExpectMatches(got, problem.Reference(), problem.n_rows, shape.rank_v, set.row_type, set.name);
      for (int row = 0; row < problem.n_rows; ++row) {
        const int end = std::min(shape.kv_end, shape.first_visible + row / shape.gqa_group);
        for (int e = shape.kv_begin; e < end; ++e) {
          double score = 0;
          for (int r = 0; r < shape.rank_k; ++r) {
            score += problem.q.values[row * problem.q_stride + r] *
                     problem.k.values[int64_t{e} * shape.rank_k + r];
          }
          if (shape.score_cap > 0) score += problem.score_offsets[row];
          const double scale = problem.SmScale();
          score = CapScoreRef(score * scale, shape.score_cap) / scale;
          ASSERT_NEAR(got.scores[row * got.scores_stride + e - shape.kv_begin], score,
                      1e-5 * (1 + std::abs(score)))
              << set.name << " row " << row << " entry " << e;
        }
      }
    }
  }
}

TEST(Attend, RandomShapes) {
  Random random(7);
  for (int i = 0; i < 60; ++i) {
    Shape s;
    s.rank_k = 16 * (1 + random.Below(i % 8 == 0 ? 32 : 16));
    s.rank_v = 16 * (1 + random.Below(i % 8 == 1 ? 32 : 16));
    s.gqa_group = 1 + random.Below(8);
    s.n_tokens = 1 + random.Below(random.Below(4) == 0 ? 300 / s.gqa_group : 6);
    s.kv_end = 1 + random.Below(400);
    s.kv_begin = s.kv_end / kBlockSize / 2 * kBlockSize;
    s.first_visible = std::max<int>(1, s.kv_end - random.Below(2 * s.n_tokens));
    s.q_sigma = random.Below(3) == 0 ? 6 : 1;
    if (random.Below(3) == 0) s.window = 1 + random.Below(s.kv_end);
    CheckAllSets(s, i);
    if (HasFatalFailure()) return;
  }
}

// Scores of several hundreds that grow along the range: the maximum moves in almost every block and
// everything before it must shrink to nothing without overflow.
TEST(Attend, LargeScoresRescale) {
  for (const KernelSet& set : AttendKernelSets()) {
    const Shape shape{.rank_k = 64,
                      .rank_v = 64,
                      .n_tokens = 2,
                      .gqa_group = 6,
                      .kv_end = 700,
                      .first_visible = 699,
                      .q_sigma = 150};
    const Problem problem(shape, set.row_type, 11);
    ExpectMatches(RunAttend(*set.kernels, problem, 0, shape.kv_end), problem.Reference(),
                  problem.n_rows, shape.rank_v, set.row_type, set.name);
  }
}

Partial Merge(const Partial& a, const Partial& b, int n_rows, int rank_v) {
  Partial out = a;
  for (int row = 0; row < n_rows; ++row) {
    const float row_max = std::max(a.row_max[row], b.row_max[row]);
    if (row_max == -std::numeric_limits<float>::infinity()) continue;
    const float wa = std::exp(a.row_max[row] - row_max), wb = std::exp(b.row_max[row] - row_max);
    out.row_max[row] = row_max;
    out.row_sum[row] = wa * a.row_sum[row] + wb * b.row_sum[row];
    for (int r = 0; r < rank_v; ++r) {
      const int64_t at = row * a.o_stride + r;
      out.o[at] = wa * a.o[at] + wb * b.o[at];
    }
  }
  return out;
}

TEST(Attend, SplitsMergeToTheWhole) {
  const Shape shape{.rank_k = 96,
                    .rank_v = 64,
                    .n_tokens = 30,
                    .gqa_group = 4,
                    .kv_end = 389,
                    .first_visible = 360,
                    .q_sigma = 3};
  for (const KernelSet& set : AttendKernelSets()) {
    const Problem problem(shape, set.row_type, 5);
    const AttendRefResult want = problem.Reference();
    for (int split : {64, 128, 320, 384}) {
      const Partial head = RunAttend(*set.kernels, problem, 0, split);
      const Partial tail = RunAttend(*set.kernels, problem, split, shape.kv_end);
      ExpectMatches(Merge(head, tail, problem.n_rows, shape.rank_v), want, problem.n_rows,
                    shape.rank_v, set.row_type, fmt::format("{} split at {}", set.name, split));
    }
  }
}

// The item may end inside a block whose later slots hold anything, as while a chunk is written.
TEST(Attend, EntriesPastTheEndNeverLeak) {
  for (const KernelSet& set : AttendKernelSets()) {
    Shape shape{.rank_k = 64, .rank_v = 32, .gqa_group = 6, .kv_end = 192, .first_visible = 192};
    const Problem whole(shape, set.row_type, 3);
    for (int end : {1, 63, 65, 127, 129, 130, 191}) {
      Problem cut(shape, set.row_type, 3);
      cut.shape.kv_end = end;
      for (int t = end; t < 192; ++t) {
        Rows poison(64, set.row_type);
        for (int i = 0; i < 64; ++i) {
          poison.Set(i, t % 2 == 0 ? std::numeric_limits<double>::quiet_NaN()
                                   : std::numeric_limits<double>::infinity());
        }
        set.kernels->append({.shape = cut.block_shape,
                             .block = cut.blocks[t / kBlockSize],
                             .first_slot = t % kBlockSize,
                             .n_rows = 1,
                             .k = poison.at(0),
                             .v = poison.at(0)});
      }
      const Partial got = RunAttend(*set.kernels, cut, 0, end);
      Problem clean(shape, set.row_type, 3);
      clean.shape.kv_end = end;
      ExpectMatches(got, clean.Reference(), cut.n_rows, 32, set.row_type,
                    fmt::format("{} end {}", set.name, end));
    }
  }
}

TEST(AttendRows, MatchesReference) {
  Random random(21);
  for (const KernelSet& set : AttendKernelSets()) {
    for (int i = 0; i < 40; ++i) {
      Shape s;
      s.rank_k = i % 4 == 0 ? 80 : 8 * (1 + random.Below(64));  // a head_dim
      s.rank_v = 16 * (1 + random.Below(32));
      s.gqa_group = 1 + random.Below(8);
      s.n_tokens = 1 + random.Below(9);
      s.kv_end = i == 0 ? 0 : 1 + random.Below(i % 5 == 0 ? 40 : 6);
      s.first_visible = random.Below(s.kv_end + 3);
      if (i % 3 == 0) s.window = 1 + random.Below(12);
      if (i % 2 == 1) s.score_cap = static_cast<float>(1 + random.Below(4));
      Rows q = RandomRows(int64_t{s.n_tokens} * s.gqa_group * s.rank_k, set.row_type, 2, 0, random);
      Rows k = RandomRows(int64_t{s.kv_end} * s.rank_k, set.row_type, 1, 0, random);
      Rows v = RandomRows(int64_t{s.kv_end} * s.rank_v, set.row_type, 1, 0.5, random);
      const int n_rows = s.n_tokens * s.gqa_group;
      std::vector<float> offsets(n_rows);
      for (float& x : offsets) x = static_cast<float>(3 * random.Normal());
      const float sm_scale = 1.0f / std::sqrt(static_cast<float>(s.rank_k));
      Partial got{.o = std::vector<float>(n_rows * s.rank_v, kUntouched),
                  .row_max = std::vector<float>(n_rows, kUntouched),
                  .row_sum = std::vector<float>(n_rows, kUntouched),
                  .o_stride = s.rank_v};
      set.kernels->attend_rows({.row_type = set.row_type,
                                .head_dim = s.rank_k,
                                .rank_v = s.rank_v,
                                .gqa_group = s.gqa_group,
                                .n_rows = n_rows,
                                .q = q.bytes.data(),
                                .q_stride = s.rank_k,
                                .k = k.bytes.data(),
                                .v = v.bytes.data(),
                                .n_entries = s.kv_end,
                                .first_visible = s.first_visible,
                                .window = s.window,
                                .sm_scale = sm_scale,
                                .score_cap = s.score_cap,
                                .score_offsets = i % 4 == 1 ? nullptr : offsets.data(),
                                .o = got.o.data(),
                                .o_stride = got.o_stride,
                                .row_max = got.row_max.data(),
                                .row_sum = got.row_sum.data()});
      std::vector<double> seen_offsets;
      if (i % 4 != 1) seen_offsets.assign(offsets.begin(), offsets.end());
      const AttendRefResult want = AttendRef({.n_rows = n_rows,
                                              .gqa_group = s.gqa_group,
                                              .rank_k = s.rank_k,
                                              .rank_v = s.rank_v,
                                              .kv_end = s.kv_end,
                                              .first_visible = s.first_visible,
                                              .window = s.window,
                                              .sm_scale = sm_scale,
                                              .score_cap = s.score_cap,
                                              .score_offsets = seen_offsets,
                                              .q = q.values,
                                              .k = k.values,
                                              .v = v.values});
      // Probabilities of these few rows stay in F32 in every set.
      ExpectMatches(got, want, n_rows, s.rank_v, DType::kF32, set.name + " " + s.Describe());
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Append, FollowsTheBlockLayout) {
  for (const KernelSet& set : AttendKernelSets()) {
    const BlockShape shape{48, 16, set.row_type};
    Random random(2);
    const Rows k = RandomRows(5 * 48, set.row_type, 1, 0, random);
    const Rows v = RandomRows(5 * 16, set.row_type, 1, 0, random);
    std::vector<std::byte> block(BlockBytes(shape), std::byte{0xff});
    set.kernels->append({.shape = shape,
                         .block = block.data(),
                         .first_slot = 7,
                         .n_rows = 5,
                         .k = k.at(0),
                         .k_stride = 48,
                         .v = v.at(0),
                         .v_stride = 16});
    const int64_t n_bytes = SizeOf(set.row_type);
    std::vector<std::byte> want(BlockBytes(shape), std::byte{0xff});
    for (int t = 0; t < 5; ++t) {
      for (int r = 0; r < 48; ++r) {
        const int64_t element = (r / 2) * 128 + (7 + t) * 2 + r % 2;
        std::memcpy(&want[element * n_bytes], k.at(t * 48 + r), n_bytes);
      }
      for (int r = 0; r < 16; ++r) {
        const int64_t element = 64 * 48 + ((7 + t) / 2) * 32 + r * 2 + (7 + t) % 2;
        std::memcpy(&want[element * n_bytes], v.at(t * 16 + r), n_bytes);
      }
    }
    EXPECT_TRUE(block == want) << set.name;  // neighbours keep their 0xff
  }
}

TEST(Append, SingleRowsEqualBulk) {
  for (const KernelSet& set : AttendKernelSets()) {
    for (int first_slot : {0, 1, 13, 63}) {
      const BlockShape shape{64, 80, set.row_type};
      const int n_rows = kBlockSize - first_slot;
      Random random(first_slot);
      const Rows k = RandomRows(n_rows * 70, set.row_type, 1, 0, random);
      const Rows v = RandomRows(n_rows * 90, set.row_type, 1, 0, random);
      std::vector<std::byte> bulk(BlockBytes(shape), std::byte{0x5a}), single = bulk;
      AppendParams params{.shape = shape,
                          .block = bulk.data(),
                          .first_slot = first_slot,
                          .n_rows = n_rows,
                          .k = k.at(0),
                          .k_stride = 70,
                          .v = v.at(0),
                          .v_stride = 90};
      set.kernels->append(params);
      params.block = single.data();
      params.n_rows = 1;
      for (int row = 0; row < n_rows; ++row) {
        params.first_slot = first_slot + row;
        params.k = k.at(row * 70);
        params.v = v.at(row * 90);
        set.kernels->append(params);
      }
      EXPECT_TRUE(bulk == single) << set.name << " first_slot " << first_slot;
    }
  }
}

}  // namespace
}  // namespace kvlathe
