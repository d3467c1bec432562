// Attention over sealed runs, every kernel set against a reference in double that reads the layout
// by its documentation (packed_layout.h) with offsets of its own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/units.h"
#include "cpu/kernels/attend/attend.h"
#include "cpu/kernels/testing/attend_emulated.h"
#include "cpu/kernels/testing/attend_packed_problem.h"
#include "cpu/kernels/testing/attend_ref.h"
#include "tensor/buffer.h"

namespace kvlathe {
namespace {

struct KernelSet {
  std::string name;
  const AttendKernels* kernels;
  DType row_type;
  bool is_bf16;   // rounds q * scale and p * scale to Bf16
  bool is_steps;  // rounds them to steps of 2^-16 of the largest

  // For so many rows sealed blocks become plain ones in Bf16: then values are rounded, and minima
  // and repairs with them.
  bool is_plain(int n_rows) const { return is_bf16 && n_rows >= 64; }
};

std::vector<KernelSet> KernelSets() {
  std::vector<KernelSet> sets;
  for (Isa isa : AvailableIsas()) {
    for (DType row_type : {DType::kF32, DType::kBf16}) {
      const bool has_dots = row_type == DType::kBf16 && HasBf16Dots(isa);
      sets.push_back({fmt::format("{} {}", IsaName(isa), DTypeName(row_type)),
                      &GetAttendKernels(isa, row_type), row_type, has_dots,
                      row_type == DType::kBf16 && isa == Isa::kAvx2});
    }
  }
  return sets;
}

struct Partial {
  std::vector<float> o, row_max, row_sum;
  std::vector<float> scores;  // [n_rows, scores_stride], without a window
  int64_t scores_stride = 0;
};

Partial RunAttend(const KernelSet& set, const PackedProblem& problem) {
  const PackedCase& c = problem.c;
  constexpr float kUntouched = 12345.0f;
  Partial out = {.o = std::vector<float>(problem.n_rows * c.rank_v, kUntouched),
                 .row_max = std::vector<float>(problem.n_rows, kUntouched),
                 .row_sum = std::vector<float>(problem.n_rows, kUntouched)};
  if (c.window == kNoWindow) {
    out.scores_stride = RoundUp(problem.KvEnd() - c.kv_begin, kBlockSize);
    out.scores.assign(problem.n_rows * out.scores_stride, kUntouched);
  }
  Buffer scratch = Buffer::Allocate(kAttendScratchBytes, "test scratch").value();
  std::memset(scratch.data(), 0xff, scratch.n_bytes());
  const void* q = problem.q_bf16.data();
  if (set.row_type == DType::kF32) q = problem.q_stored.data();
  set.kernels->attend({.shape = problem.shape,
                       .gqa_group = c.gqa_group,
                       .n_rows = problem.n_rows,
                       .q = q,
                       .q_stride = c.rank_k,
                       .blocks = problem.blocks.data(),
                       .packed = &problem.head,
                       .kv_begin = c.kv_begin,
                       .kv_end = problem.KvEnd(),
                       .first_visible = problem.FirstVisible(),
                       .window = c.window,
                       .sm_scale = problem.SmScale(),
                       .score_cap = problem.score_cap,
                       .score_offsets = problem.score_offsets.data(),
                       .o = out.o.data(),
                       .o_stride = c.rank_v,
                       .row_max = out.row_max.data(),
                       .row_sum = out.row_sum.data(),
                       .scores = out.scores.empty() ? nullptr : out.scores.data(),
                       .scores_stride = out.scores_stride},
                      scratch.data());
  return out;
}

// Attention of one row in double, with the standard deviations that its errors may have.
struct RowReference {
  double log_sum = -std::numeric_limits<double>::infinity();  // log of the sum of exp(score)
  double log_sum_error = 0;
  std::vector<double> o, o_error;
  std::vector<double> scores, score_errors;  // of the entries that it sees; not scaled
};

// A rounding to Bf16 changes a number by at most 2^-8 of it; were the error uniform below that, its
// deviation would be 2^-8 / sqrt(3) (it is less, as most numbers are not just above a power of
// two). Even steps of 2^-16 of the largest of them change all by less, together, than 2^-12 of
// each. Errors of the products of one score are independent, so its deviation is their root sum of
// squares; those of the scores are not (q * scale is rounded once for all tokens of a group), so
// their effects on o add up. Errors of the weights of values are independent again. Even steps give
// every product the same error, a share of the largest one. F32 arithmetic adds 1e-6 of the sum of
// magnitudes.
RowReference Reference(const PackedProblem& problem, int row, const KernelSet& set) {
  const PackedCase& c = problem.c;
  const TestMatrix &k = problem.k, &v = problem.v;
  RowReference ref = {.o = std::vector<double>(c.rank_v), .o_error = ref.o};
  ref.o_error.assign(c.rank_v, 0);
  const int seen_end = problem.FirstVisible() + row / c.gqa_group;
  const int begin = std::max(c.kv_begin, seen_end - c.window);
  const int end = std::min(problem.KvEnd(), seen_end);
  if (begin >= end) return ref;
  const double unit = set.is_bf16 ? 0x1p-8 / std::sqrt(3.0) : 0;
  const double step = set.is_steps ? 0x1p-16 / std::sqrt(3.0) : 0;
  const bool is_plain =
      set.is_plain(problem.n_rows) || (set.is_bf16 && KeySide(c.format.codec).has_signs);
  double top = 0;  // of the products of a score
  for (int r = 0; r < c.rank_k; ++r) {
    const double q = std::abs(problem.q_stored[int64_t{row} * c.rank_k + r]);
    for (int t = begin; t < end; ++t) top = std::max(top, q * k.parts[k.At(t, r)]);
  }
  const double steps_of_score = step * top * std::sqrt(c.rank_k);
  std::vector<double> weights, score_errors;
  for (int t = begin; t < end; ++t) {
    double score = 0, variance = 0, parts = 0;
    for (int r = 0; r < c.rank_k; ++r) {
      const double q = problem.q_stored[int64_t{row} * c.rank_k + r];
      const int64_t at = k.At(t, r);
      score += q * k.values[at];
      variance += q * q * k.rounded[at] * k.rounded[at];
      if (is_plain) variance += q * q * k.values[at] * k.values[at];
      parts += std::abs(q) * k.parts[at];
    }
    ref.score_errors.push_back(unit * std::sqrt(variance) + steps_of_score + 2e-7 * parts);
    if (problem.score_cap > 0) {
      const double scale = problem.SmScale(), cap = problem.score_cap;
      score = CapScoreRef((score + problem.score_offsets[row]) * scale, cap) / scale;
      // Its slope is at most 1.
      const double tangent = score * scale / cap;
      ref.score_errors.back() *= std::max(1 - tangent * tangent, 0.01);
      ref.score_errors.back() += 1e-6 * std::abs(score);
    }
    ref.scores.push_back(score);
    weights.push_back(score * problem.SmScale());
    score_errors.push_back(ref.score_errors.back() * problem.SmScale());
  }
  const double row_max = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (double& w : weights) sum += w = std::exp(w - row_max);
  ref.log_sum = row_max + std::log(sum);
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] /= sum;
    ref.log_sum_error += weights[i] * score_errors[i];
  }
  ref.log_sum_error += (set.is_bf16 ? 0x1p-12 : 0) + 1e-6 * (1 + std::abs(row_max));
  top = 0;  // of the products of a value
  for (int t = begin; t < end; ++t) {
    for (int r = 0; r < c.rank_v; ++r) {
      top = std::max(top, weights[t - begin] * v.parts[v.At(t, r)]);
    }
  }
  const double steps_of_value = step * top * std::sqrt(end - begin);
  for (int r = 0; r < c.rank_v; ++r) {
    double o = 0;
    for (int t = begin; t < end; ++t) o += weights[t - begin] * v.values[v.At(t, r)];
    double common = 0, variance = 0;
    for (int t = begin; t < end; ++t) {
      const double w = weights[t - begin];
      const int64_t at = v.At(t, r);
      common += w * (std::abs(v.values[at] - o) * score_errors[t - begin] + 2e-7 * v.parts[at]);
      variance += w * w * v.rounded[at] * v.rounded[at];
      if (is_plain) variance += 2 * w * w * v.values[at] * v.values[at];
    }
    ref.o[r] = o;
    ref.o_error[r] = common + unit * std::sqrt(variance) + steps_of_value;
  }
  return ref;
}

void CheckPartial(const KernelSet& set, const PackedProblem& problem, const std::string& what) {
  const Partial got = RunAttend(set, problem);
  const int rank_v = problem.c.rank_v;
  double sum_error = 0, sum_deviation = 0;
  for (int row = 0; row < problem.n_rows; ++row) {
    const RowReference want = Reference(problem, row, set);
    if (std::isinf(want.log_sum)) {
      EXPECT_EQ(got.row_max[row], -std::numeric_limits<float>::infinity()) << what;
      EXPECT_EQ(got.row_sum[row], 0) << what;
    } else {
      ASSERT_NEAR(got.row_max[row] + std::log(got.row_sum[row]), want.log_sum,
                  6 * want.log_sum_error)
          << what << " row " << row;
    }
    for (size_t i = 0; i < want.scores.size() && !got.scores.empty(); ++i) {
      ASSERT_NEAR(got.scores[row * got.scores_stride + static_cast<int64_t>(i)], want.scores[i],
                  6 * want.score_errors[i])
          << what << " row " << row << " entry " << i;
    }
    for (int r = 0; r < rank_v; ++r) {
      const float o = got.o[int64_t{row} * rank_v + r];
      const double value = std::isinf(want.log_sum) ? o : o / double{got.row_sum[row]};
      // Six deviations: none of the millions of numbers compared here is beyond by chance.
      ASSERT_NEAR(value, want.o[r], 6 * want.o_error[r]) << what << " row " << row << " r " << r;
      sum_error += std::abs(value - want.o[r]);
      sum_deviation += want.o_error[r];
    }
  }
  EXPECT_LE(sum_error, sum_deviation) << what << ": mean error against the model";
}

void CheckAllSets(const PackedCase& c, uint64_t seed) {
  for (const KernelSet& set : KernelSets()) {
    PackedProblem problem(c, set.row_type, seed);
    if (seed % 3 == 1) problem.DrawCap();
    CheckPartial(set, problem, set.name + " " + c.Describe());
    if (testing::Test::HasFatalFailure()) return;
  }
}

PackedSide Channel(int bits, int group) {
  return {.bits = bits, .sharing = ScaleSharing::kChannel, .group = group};
}
PackedSide Token(int bits, int group) {
  return {.bits = bits, .sharing = ScaleSharing::kToken, .group = group};
}
PackedSide TokenLayer(int bits) { return {.bits = bits, .sharing = ScaleSharing::kTokenLayer}; }
PackedSide Signed4(int group) {
  return {.bits = 4, .sharing = ScaleSharing::kToken, .group = group, .is_symmetric = true};
}
PackedSide Symmetric(int group) {
  return {.bits = 8, .sharing = ScaleSharing::kToken, .group = group, .is_symmetric = true};
}

PackedFormat Uniform(const PackedSide& k, const PackedSide& v, int prompt_rank = 0,
                     int decode_rank = 0, double share = 0) {
  return {UniformCodec{k, v}, prompt_rank, decode_rank, share};
}

TEST(AttendPacked, EveryWidthAndSharing) {
  std::vector<PackedSide> keys = {Symmetric(0), Symmetric(32), Signed4(32)}, values = keys;
  for (int bits : {2, 3, 4, 8}) {
    for (int group : {16, 32, 64, 128, 0}) keys.push_back(Channel(bits, group));
    for (int group : {16, 32, 64, 0}) keys.push_back(Token(bits, group));
    for (int group : {16, 32, 64, 0}) values.push_back(Token(bits, group));
    values.push_back(TokenLayer(bits));
  }
  for (size_t i = 0; i < std::max(keys.size(), values.size()); ++i) {
    PackedCase c;
    c.format = Uniform(keys[i % keys.size()], values[i % values.size()]);
    c.runs = {{2, true, false}, {3, true}, {1, false}, {2, false}};
    c.n_plain = 30;
    c.gqa_group = 1 + static_cast<int>(i) % 8;
    c.has_exact_scales = i % 2 == 0;
    CheckAllSets(c, i);
    c.has_exact_scales = i % 2 != 0;
    c.format.prompt_rank = 4;
    c.format.decode_rank = 2;
    c.format.sparse_share = 0.04;
    CheckAllSets(c, i);
    if (HasFatalFailure()) return;
  }
}

// Numbers of several signs and steps, of which one stands twice, under scales of a byte.
constexpr NamedTable kUneven({0, 1, 3, 6, 12, 22, 37, 58, 0, -2, -4, -8, -15, -27, -41, -52},
                             0.25f);

TEST(AttendPacked, TablesOfEveryGroup) {
  int i = 0;
  for (int group : {16, 32, 48, 256}) {
    for (int rank : {16, 80, 128, 256}) {
      PackedCase c;
      c.format = {.codec = TableCodec{&kUneven, group}};
      c.rank_k = rank;
      c.rank_v = 272 - rank;
      c.runs = {{2, true, false}, {3, true}, {1, false}};
      c.hidden_blocks = i % 2;
      c.n_plain = 30;
      c.gqa_group = std::vector{1, 2, 3, 4, 7, 12}[i % 6];
      c.n_tokens = 1 + i % 3;
      CheckAllSets(c, i);
      c.format.prompt_rank = 4;
      c.format.decode_rank = 2;
      c.format.sparse_share = 0.04;
      CheckAllSets(c, i++);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(AttendPacked, NormsOfEveryWidth) {
  int i = 0;
  for (int bits = 2; bits <= 4; ++bits) {
    for (int rank : {16, 80, 128, 256}) {
      PackedCase c;
      c.format = {.codec = SphereCodec{.key_bits = bits, .value_bits = 2 + (bits + i) % 3}};
      c.rank_k = rank;
      c.rank_v = 272 - rank;
      c.runs = {{2, true, false}, {3, true}, {1, false}};
      c.hidden_blocks = i % 2;
      c.n_plain = 30;
      c.gqa_group = std::vector{1, 2, 3, 4, 7, 12}[i % 6];
      c.n_tokens = 1 + i % 3;
      CheckAllSets(c, i++);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(AttendPacked, SignsOfResiduals) {
  int i = 0;
  for (int bits = 2; bits <= 4; ++bits) {
    for (int rank : {16, 64, 256}) {
      PackedCase c;
      c.format = {.codec = SphereCodec{.key_bits = bits, .value_bits = 4, .keys_have_signs = true}};
      c.rank_k = rank;
      c.rank_v = std::vector{80, 16, 256}[i % 3];
      c.runs = {{2, true, false}, {1, false}};
      c.hidden_blocks = i % 2;
      c.n_plain = 30;
      c.gqa_group = std::vector{1, 3, 12}[i % 3];
      c.n_tokens = 1 + i % 4;
      CheckAllSets(c, i++);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(AttendPacked, BalancedTiles) {
  int i = 0;
  for (int bits : {2, 3, 4, 5, 8}) {
    for (int tile : {kBlockSize, 2 * kBlockSize}) {
      for (int rank : {16, 80, 128, 256}) {
        PackedCase c;
        c.format = {.codec = BalancedCodec{bits, std::vector{4, 2, 5, 8, 3}[i % 5], tile}};
        c.rank_k = rank;
        c.rank_v = 272 - rank;
        c.runs = {{3, true}, {2, false}, {1, false}};
        c.hidden_blocks = i % 2;
        c.n_plain = i % 3 * 15;
        c.gqa_group = std::vector{1, 2, 3, 4, 7, 12}[i % 6];
        c.n_tokens = 1 + i % 3;
        c.has_exact_scales = i % 2 == 0;
        c.unseen = i % 4 * 20;
        CheckAllSets(c, i++);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(AttendPacked, EveryRank) {
  for (int rank = 16; rank <= 256; rank += 16) {
    for (int group : {0, 16, 32, 64}) {
      PackedCase c;
      const int bits = std::vector{2, 3, 4, 8}[(rank / 16 + group / 16) % 4];
      const int value_bits = bits == 8 ? 2 : bits == 2 ? 8 : 7 - bits;
      c.format = Uniform(group == 64 ? Channel(bits, 32) : Token(bits, group),
                         group == 32 ? Symmetric(16) : Token(value_bits, group));
      c.rank_k = rank;
      c.rank_v = 272 - rank;
      c.runs = {{1, false}, {1, true}};
      c.gqa_group = 1 + rank / 16 % 6;
      c.format.prompt_rank = group == 0 ? 2 : 0;
      CheckAllSets(c, rank + group);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(AttendPacked, RowsOfEveryCount) {
  for (int n_rows : {1, 2, 3, 4, 5, 7, 8, 12, 33, 63, 64, 65, 70}) {
    for (bool is_sparse : {false, true}) {
      PackedCase c;
      c.format = Uniform(Channel(4, 0), Token(4, 64), 4, 2);
      if (is_sparse) c.format.sparse_share = 0.02;
      c.rank_k = c.rank_v = 80;
      c.n_tokens = n_rows;
      c.runs = {{2, true}, {1, false}};
      c.n_plain = n_rows;
      CheckAllSets(c, n_rows);
      if (HasFatalFailure()) return;
    }
  }
}

// Ranks of the residual up to the largest that a spec allows, of prompts and of decoded runs apart:
// panels have fewer rows then, down to 16.
TEST(AttendPacked, ResidualsOfEveryRank) {
  int i = 0;
  for (int lowrank : {7, 8, 9, 12, 16, 17, 31, 40, 63, 64}) {
    for (int n_rows : {1, 4, 9, 70}) {
      PackedCase c;
      c.format = Uniform(i % 2 == 0 ? Channel(4, 64) : Token(2, 32),
                         i % 3 == 0 ? TokenLayer(4) : Token(3, 64), lowrank,
                         i % 4 == 0 ? 0 : 64 - lowrank / 2);
      if (i % 2 == 1) c.format.sparse_share = 0.03;
      c.rank_k = i % 5 == 0 ? 128 : 48;
      c.rank_v = i % 3 == 0 ? 80 : 64;
      c.n_tokens = n_rows;
      c.gqa_group = n_rows == 4 ? 3 : 1;
      c.runs = {{2, true}, {1, true, false}, {1, false}, {1, false}};
      c.n_plain = n_rows / 2;
      CheckAllSets(c, i++);
      if (HasFatalFailure()) return;
    }
  }
}

// Rows whose limits and windows lie in the sealed part, runs that begin before the blocks, items
// that begin or end amid a run.
TEST(AttendPacked, LimitsInsideRuns) {
  for (int i = 0; i < 12; ++i) {
    PackedCase c;
    c.format = Uniform(i % 2 == 0 ? Channel(3, 64) : Channel(2, 128),
                       i % 3 == 0 ? TokenLayer(3) : Token(2, 32), i % 4, 1, i % 5 == 0 ? 0.05 : 0);
    c.runs = {{3, true}, {2, true}, {1, false}};
    c.hidden_blocks = i % 3;
    c.n_plain = i % 2 * 20;
    c.n_tokens = 1 + i * 3;
    c.gqa_group = 1 + i % 3;
    c.unseen = i * 17;
    c.past_end = i % 4 * 10;
    c.kv_begin = i % 3 * 64;
    if (i >= 6) c.window = 1 + i * 11;
    CheckAllSets(c, i);
    if (HasFatalFailure()) return;
  }
}

TEST(AttendPacked, RandomCases) {
  Random random(5);
  const auto pick = [&](std::initializer_list<int> from) {
    return from.begin()[random.Below(from.size())];
  };
  for (int i = 0; i < 60; ++i) {
    PackedCase c;
    PackedSide k = random.Below(2) == 0 ? Channel(pick({2, 3, 4, 8}), pick({0, 16, 32, 64, 128}))
                                        : Token(pick({2, 3, 4, 8}), pick({0, 16, 32, 64, 48}));
    PackedSide v = random.Below(3) == 0 ? TokenLayer(pick({2, 3, 4, 8}))
                                        : Token(pick({2, 3, 4, 8}), pick({0, 16, 32, 64, 80}));
    if (random.Below(8) == 0) k = Symmetric(pick({0, 16, 64}));
    if (random.Below(8) == 0) v = Symmetric(pick({0, 16, 64}));
    if (random.Below(8) == 0) k = Signed4(pick({0, 32}));
    if (random.Below(8) == 0) v = Signed4(pick({0, 32}));
    c.format = Uniform(k, v);
    c.format.prompt_rank = pick({0, 0, 2, 4, 8, 20});
    c.format.decode_rank = pick({0, 2, 11});
    c.format.sparse_share = pick({0, 0, 1, 3}) * 0.02;
    c.rank_k = 16 * pick({1, 3, 4, 5, 6, 8, 16});
    c.rank_v = 16 * pick({1, 3, 4, 5, 6, 8, 16});
    const int n_runs = 1 + random.Below(3);
    c.runs.clear();
    for (int r = 0; r < n_runs; ++r) {
      c.runs.push_back(
          {1 + static_cast<int>(random.Below(3)), random.Below(2) == 0, random.Below(4) > 0});
    }
    c.hidden_blocks = random.Below(c.runs[0].n_blocks);
    c.n_plain = random.Below(2) * random.Below(150);
    c.gqa_group = 1 + random.Below(8);
    c.n_tokens = 1 + random.Below(random.Below(4) == 0 ? 70 / c.gqa_group : 3);
    c.unseen = random.Below(3) == 0 ? random.Below(80) : 0;
    c.past_end = random.Below(3) == 0 ? random.Below(80) : 0;
    c.other_rank_v = pick({16, 64, 128});
    c.has_exact_scales = random.Below(2) == 0;
    if (random.Below(4) == 0) c.window = 1 + random.Below(300);
    CheckAllSets(c, i);
    if (HasFatalFailure()) return;
  }
}

// Many entries in few lanes and few in many, of every rank and number of rows: rounds that only
// some lanes of a vector take part in, a token all of whose channels are exact, tables of every
// size.
TEST(AttendPacked, ExactEntriesInAnyLanes) {
  int i = 0;
  for (int rank : {16, 48, 80, 96, 128, 144, 256}) {
    for (double share : {0.02, 0.1, 0.9}) {
      for (bool packs : {false, true}) {
        PackedCase c;
        c.format = Uniform(i % 2 == 0 ? Channel(2, 64) : Token(4, 32),
                           i % 3 == 0 ? TokenLayer(4) : Token(2, 64), i % 4, 2, share);
        c.rank_k = rank;
        c.rank_v = i % 5 == 0 ? 272 - rank : rank;
        c.other_rank_v = 16;
        c.runs = {{1, true}, {3, true}, {1, false}};
        c.hidden_blocks = i % 2;
        c.packs_exact = packs;
        c.gqa_group = std::vector{1, 2, 3, 4, 7, 12}[i % 6];
        CheckAllSets(c, i++);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Weights differ by hundreds of powers of e, and the maximum moves with most blocks: what was kept
// apart of o (minima, factors) has to shrink with it.
TEST(AttendPacked, LargeScoresRescale) {
  for (int i = 0; i < 4; ++i) {
    PackedCase c;
    c.format = Uniform(Channel(4, 64), Token(4, 32), 3, 1);
    c.runs = {{3, true}, {1, false}, {1, false}};
    c.n_plain = 40;
    c.gqa_group = 4;
    c.n_tokens = 2;
    c.has_exact_scales = true;
    for (const KernelSet& set : KernelSets()) {
      PackedProblem problem(c, set.row_type, i);
      for (size_t j = 0; j < problem.q_stored.size(); ++j) {
        problem.q_stored[j] *= 64;
        problem.q_bf16[j] = ToBf16(problem.q_stored[j]);
      }
      CheckPartial(set, problem, set.name + " " + c.Describe());
      if (HasFatalFailure()) return;
    }
  }
}

// The tile kernel makes sealed blocks plain for many rows, and hands few to the AVX-512 one.
TEST(AttendPacked, TileKernelsTakePackedBlocks) {
  if (!HasBf16Dots(AvailableIsas().back())) GTEST_SKIP() << "needs AVX-512 BF16";
  const KernelSet tiles = {.name = "emulated_tiles",
                           .kernels = &kAttendEmulatedTiles,
                           .row_type = DType::kBf16,
                           .is_bf16 = true,
                           .is_steps = false};
  for (const int n_tokens : {1, 9, 40}) {
    PackedCase c;
    c.format = Uniform(Channel(4, 0), Token(4, 0));
    c.n_plain = 20;
    c.n_tokens = n_tokens;
    c.gqa_group = 8;
    CheckPartial(tiles, PackedProblem(c, DType::kBf16, 1), "emulated_tiles " + c.Describe());
  }
}

TEST(PackedLayout, CodesReadBackWhereTheDocumentationPutsThem) {
  Random random(9);
  for (int bits : {2, 3, 4, 8}) {
    for (int rank : {16, 48, 128}) {
      const PackedSide side = {.bits = bits};
      TestRecord keys(CodeBytes(bits, rank)), values(CodeBytes(bits, rank));
      std::memset(keys.data(), 0, keys.n_bytes());
      std::memset(values.data(), 0, values.n_bytes());
      std::vector<uint8_t> codes(kBlockSize * rank);
      for (uint8_t& code : codes) code = static_cast<uint8_t>(random.Below(1 << bits));
      for (int i = 0; i < kBlockSize * rank; ++i) {
        const int t = i % kBlockSize, r = i / kBlockSize;
        WriteCode(keys.data(), bits, KeyCodePlace(bits, t, r), codes[i]);
        WriteCode(values.data(), bits, ValueCodePlace(bits, rank, t, r), codes[i]);
      }
      for (int i = 0; i < kBlockSize * rank; ++i) {
        const int t = i % kBlockSize, r = i / kBlockSize;
        ASSERT_EQ(ReadCode(keys.data(), bits, KeyCodePlace(bits, t, r)), codes[i]);
        ASSERT_EQ(ReadCode(values.data(), bits, ValueCodePlace(bits, rank, t, r)), codes[i]);
        ASSERT_EQ(KeyCode(keys, side, t, r), codes[i]) << bits << " bits, rank " << rank;
        ASSERT_EQ(ValueCode(values, 0, side, rank, t, r), codes[i]) << bits << " bits " << rank;
      }
    }
  }
}

}  // namespace
}  // namespace kvlathe
