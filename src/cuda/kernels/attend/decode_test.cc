// Attention of steps that decode, on a GPU, against plain attention in double.
#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "base/random.h"
#include "cuda/kernels/attend/decode_case.h"
#include "format/mean_angles.h"

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

// What sinks hold, and queries before any basis for them.
void AddSinks(int n, int width, int first_visible, DecodeCase* c) {
  Random random(21);
  const auto fill = [&](int64_t n_numbers, std::vector<Bf16>* rows) {
    for (int64_t i = 0; i < n_numbers; ++i) {
      rows->push_back(ToBf16(static_cast<float>(random.Normal())));
    }
  };
  c->n_sinks = n;
  c->width = width;
  c->first_sinks_visible = first_visible;
  fill(int64_t{c->n_rows} * c->head_dim, &c->q_full);
  fill(int64_t{n} * c->head_dim, &c->sink_k);
  fill(int64_t{n} * width, &c->sink_v);
}

TEST(DecodeTest, AddsSinks) {
  for (const int width : {48, 80}) {
    for (const int n_parts : {1, 2}) {
      const AttendShape shape = {
          .rank_v = 48, .n_tokens = 4, .gqa_group = 3, .kv_end = 300, .first_visible = 297};
      const AttendProblem problem(shape, DType::kBf16, 10);
      DecodeCase c = CaseOf(problem);
      AddSinks(5, width, 3, &c);
      c.behind = 16;
      c.out_type = width == 80 ? DType::kBf16 : DType::kF32;
      EXPECT_LT(WorstDeviation(c, {.n_parts = n_parts}), kMostDeviations) << width << n_parts;
    }
  }
}

// Logits of a group around the largest score of a row, and far away from it.
std::vector<float> DrawnLogits(int gqa_group) {
  Random random(23);
  std::vector<float> logits;
  for (int h = 0; h < gqa_group; ++h) logits.push_back(static_cast<float>(2 * random.Normal()));
  logits.front() = 30;
  logits.back() = -30;
  return logits;
}

TEST(DecodeTest, CountsSinkLogitsBesideEntries) {
  for (const int group : {3, 9, 16}) {
    for (const int n_parts : {1, 3}) {
      // The first of the tokens sees nothing.
      const AttendShape shape = {
          .rank_v = 48, .n_tokens = 4, .gqa_group = group, .kv_end = 300, .first_visible = 297};
      AttendShape starting = shape;
      starting.first_visible = -1;
      for (const AttendShape& of : {shape, starting}) {
        const AttendProblem problem(of, DType::kBf16, 10);
        DecodeCase c = CaseOf(problem);
        if (group == 9) AddSinks(5, 80, 3, &c);
        c.sink_logits = DrawnLogits(group);
        EXPECT_LT(WorstDeviation(c, {.n_parts = n_parts}), kMostDeviations) << of.Describe();
      }
    }
  }
}

TEST(DecodeTest, CapsScores) {
  for (const int group : {3, 9}) {
    AttendShape shape = {
        .rank_v = 48, .n_tokens = 2, .gqa_group = group, .kv_end = 300, .first_visible = 299};
    shape.q_sigma = 4;
    const AttendProblem plain(shape, DType::kBf16, 10);
    DecodeCase of_rows = CaseOf(plain);
    AddSinks(5, 80, 3, &of_rows);
    PackedCase packed = NumberCase(kOfToken, kOfToken, 64);
    packed.gqa_group = group;
    const PackedProblem problem(packed, DType::kBf16, 3);
    for (DecodeCase c : {of_rows, CaseOf(problem)}) {
      for (const float cap : {1.5f, 50.0f}) {
        c.score_cap = cap;
        EXPECT_LT(WorstDeviation(c, {.n_parts = 2}), kMostDeviations) << group << " cap " << cap;
        c.sink_logits = DrawnLogits(group);
        EXPECT_LT(WorstDeviation(c), kMostDeviations) << group << " cap " << cap;
      }
    }
  }
}

// Keys that have lost what no softmax would miss.
TEST(DecodeTest, CapsAndLogitsMissWhatAllKeysHaveLost) {
  const AttendShape shape = {
      .rank_v = 48, .n_tokens = 3, .gqa_group = 3, .kv_end = 300, .first_visible = 298};
  const AttendProblem problem(shape, DType::kBf16, 10);
  DecodeCase c = CaseOf(problem);
  AddSinks(5, 80, 3, &c);
  Random random(24);
  for (int d = 0; d < c.head_dim; ++d) {
    c.lost_keys.push_back(static_cast<float>(random.Normal()));
  }
  const auto forget = [](DecodeJob& job) { job.lost_keys = nullptr; };
  for (const float cap : {0.0f, 3.0f}) {
    for (const bool has_logits : {false, true}) {
      c.score_cap = cap;
      c.sink_logits = has_logits ? std::vector<float>{1, 3, 2} : std::vector<float>();
      EXPECT_LT(WorstDeviation(c, {.n_parts = 2}), kMostDeviations) << cap << has_logits;
      if (cap == 0 && !has_logits) continue;
      EXPECT_GT(WorstDeviation(c, {.spoil_job = forget}), kMostDeviations) << cap << has_logits;
    }
  }
}

// Keys of two KV heads of the model that have lost a mean before they turned. What `mean` says of
// other channels is not used.
void AddMean(int n_pairs, int first_position, DecodeCase* c) {
  constexpr int kJoined = 2, kHalf = 20, kModelDim = 48;
  constexpr double kAmplitude = 1.25;
  Random random(22);
  c->n_pairs = n_pairs;
  c->n_joined = kJoined;
  c->half = kHalf;
  c->first_position = first_position;
  c->way_back = static_cast<float>(1 / (kAmplitude * kAmplitude));
  std::vector<double> frequencies;
  for (int i = 0; i < kHalf; ++i) frequencies.push_back(std::pow(10000.0, -i / double{kHalf}));
  c->angles = MakeMeanAngles(std::span(frequencies).first(n_pairs), kAmplitude);
  for (int p = 0; p < first_position + c->n_entries + kBlockSize; ++p) {
    for (const double frequency : frequencies) {
      c->cos.push_back(static_cast<float>(kAmplitude * std::cos(frequency * p)));
      c->sin.push_back(static_cast<float>(kAmplitude * std::sin(frequency * p)));
    }
  }
  for (int i = 0; i < kJoined * kModelDim; ++i) {
    c->mean.push_back(static_cast<float>(5 * random.Normal()));
  }
  c->q_full.assign(int64_t{c->n_rows} * kJoined * kModelDim, Bf16{});
  for (int row = 0; row < c->n_rows; ++row) {
    const int joined = row % c->gqa_group / (c->gqa_group / kJoined);
    for (int i = 0; i < kModelDim; ++i) {
      c->q_full[(row * kJoined + joined) * kModelDim + i] =
          ToBf16(static_cast<float>(random.Normal()));
    }
  }
  c->added_score = [c, frequencies, n_pairs](int row, int entry) {
    const int joined = row % c->gqa_group / (c->gqa_group / kJoined);
    double score = 0;
    for (int i = 0; i < n_pairs; ++i) {
      const double angle = frequencies[i] * (c->first_position + entry);
      const Bf16* const q = &c->q_full[(row * kJoined + joined) * kModelDim];
      const float* const m = &c->mean[joined * kModelDim];
      score += ToFloat(q[i]) * (m[i] * std::cos(angle) - m[i + kHalf] * std::sin(angle)) +
               ToFloat(q[i + kHalf]) * (m[i + kHalf] * std::cos(angle) + m[i] * std::sin(angle));
    }
    return kAmplitude * score;
  };
}

TEST(DecodeTest, AddsWhatTurningMeansAdd) {
  for (const int n_pairs : {8, 16}) {
    SplitHead head = kSplitHeads[5];
    head.has_coded_rows = n_pairs == 8;
    SplitProblem problem(head, DType::kBf16, 12);
    ASSERT_TRUE(problem.Seal(AvailableIsas().back()).ok());
    problem.UsePacked();
    for (const int group : {6, 12}) {
      DecodeCase c = CaseOf(problem, 1, group, 0);
      AddMean(n_pairs, 4 + 1000 * n_pairs, &c);
      EXPECT_LT(WorstDeviation(c), kMostDeviations) << n_pairs << " pairs, " << group << " rows";
      c.score_cap = 5;  // of what both add up to
      EXPECT_LT(WorstDeviation(c), kMostDeviations) << n_pairs << " pairs, " << group << " rows";
    }
  }
}

// Mistakes of kernels and plans that the tests above would see.
TEST(DecodeTest, SeesMistakes) {
  SplitHead head = kSplitHeads[5];
  head.has_coded_rows = true;
  SplitProblem split(head, DType::kBf16, 11);
  ASSERT_TRUE(split.Seal(AvailableIsas().back()).ok());
  split.UsePacked();
  const PackedSide of_channel = {.bits = 4, .sharing = ScaleSharing::kChannel, .group = 32};
  const PackedProblem packed(NumberCase(of_channel, kOfToken, 64), DType::kBf16, 3);
  const DecodeCase of_units = CaseOf(split, 2, 4, 0), of_numbers = CaseOf(packed);
  const auto expect_seen = [](const char* what, DecodeCase c, const auto& spoil) {
    ASSERT_LT(WorstDeviation(c), kMostDeviations);
    spoil(c);
    EXPECT_GT(WorstDeviation(c), kMostDeviations) << what;
  };
  expect_seen("scales of K are those of entries beside", of_units,
              [](DecodeCase& c) { c.runs[0].layout.k.scales_at -= 4; });
  expect_seen("scales of the open block are those of entries beside", of_units,
              [](DecodeCase& c) { c.runs[1].layout.k.scales_at += 4; });
  expect_seen("a run takes scales of K that are those of its next group", of_numbers,
              [](DecodeCase& c) { c.runs[0].layout.k.group_tokens = 64; });
  for (const DecodeCase* c : {&of_units, &of_numbers}) {
    expect_seen("scales of V are those of entries beside", *c,
                [](DecodeCase& of) { of.runs[0].layout.v.scales_at -= 16; });
    expect_seen("the codes of V are those of channels beside", *c,
                [](DecodeCase& of) { of.runs[0].layout.v.segments[0].codes += 64; });
    expect_seen("the open block is read as a sealed one", *c,
                [](DecodeCase& of) { std::swap(of.blocks.front(), of.blocks.back()); });
  }
  for (const int bits : {1, 2, 3, 4, 5}) {
    const auto exchange = [bits](AttendTables& tables) {
      std::swap(tables.values[1][bits - 1][9], tables.values[1][bits - 1][22]);
    };
    EXPECT_GT(WorstDeviation(of_units, {.spoil_tables = exchange}), kMostDeviations) << bits;
  }
  const auto see_more = [](DecodeJob& job) { ++job.first_visible; };
  EXPECT_GT(WorstDeviation(of_units, {.spoil_job = see_more}), kMostDeviations);
  const auto see_less = [](DecodeJob& job) { job.window = 90; };
  EXPECT_GT(WorstDeviation(of_units, {.spoil_job = see_less}), kMostDeviations);
  DecodeCase with_logits = of_units;
  with_logits.sink_logits = {1, 2, 3, 4};
  ASSERT_LT(WorstDeviation(with_logits), kMostDeviations);
  const auto forget_logits = [](DecodeJob& job) { job.sink_logits = nullptr; };
  EXPECT_GT(WorstDeviation(with_logits, {.spoil_job = forget_logits}), kMostDeviations);
  DecodeCase capped = of_units;
  capped.score_cap = 2;
  ASSERT_LT(WorstDeviation(capped), kMostDeviations);
  const auto raise = [](float cap) { return 1.1f * cap; };
  EXPECT_GT(WorstDeviation(capped, {.spoil_cap = raise}), kMostDeviations);
}

}  // namespace
}  // namespace kvlathe::cuda
