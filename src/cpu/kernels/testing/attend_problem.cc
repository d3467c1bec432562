#include "cpu/kernels/testing/attend_problem.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>

#include "cpu/kernels/testing/attend_emulated.h"

namespace kvlathe {

std::vector<AttendKernelSet> AttendKernelSets() {
  std::vector<AttendKernelSet> sets;
  for (Isa isa : AvailableIsas()) {
    for (DType row_type : {DType::kF32, DType::kBf16}) {
      sets.push_back({fmt::format("{} {}", IsaName(isa), DTypeName(row_type)),
                      &GetAttendKernels(isa, row_type), row_type, isa});
    }
  }
  if (HasBf16Dots(AvailableIsas().back())) {
    sets.push_back({"emulated_tiles", &kAttendEmulatedTiles, DType::kBf16, Isa::kAmx});
  }
  return sets;
}

StoredRows RandomRows(int64_t n, DType dtype, double sigma, double mean, Random& random) {
  StoredRows rows(n, dtype);
  for (int64_t i = 0; i < n; ++i) rows.Set(i, mean + sigma * random.Normal());
  return rows;
}

AttendProblem::AttendProblem(const AttendShape& problem_shape, DType row_type, uint64_t seed)
    : shape(problem_shape),
      block_shape{shape.rank_k, shape.rank_v, row_type},
      random(seed),
      n_rows(shape.n_tokens * shape.gqa_group),
      q_stride(shape.rank_k + 7),
      q(RandomRows(int64_t{n_rows} * q_stride, row_type, shape.q_sigma, 0, random)),
      k(RandomRows(int64_t{shape.kv_end} * shape.rank_k, row_type, 1, 0, random)),
      v(RandomRows(int64_t{shape.kv_end} * shape.rank_v, row_type, 1, 0.5, random)) {
  const int n_blocks = (shape.kv_end + kBlockSize - 1) / kBlockSize;
  // Blocks lie in reverse order with a line between them: no kernel may rely on adjacency.
  const int64_t step = BlockBytes(block_shape) + 64;
  memory = Buffer::Allocate(n_blocks * step + 64, "test blocks").value();
  std::memset(memory.data(), 0xff, memory.n_bytes());
  for (int b = 0; b < n_blocks; ++b) blocks.push_back(memory.data() + (n_blocks - 1 - b) * step);
  for (std::vector<float>* table : {&cos, &sin, &mean_weights}) {
    const int n =
        table == &mean_weights ? n_blocks * n_rows * kMeanWeights : shape.n_pairs * kHalfBlock;
    for (int i = 0; i < n; ++i) table->push_back(static_cast<float>(random.Normal()));
  }
  for (int row = 0; shape.score_cap > 0 && row < n_rows; ++row) {
    score_offsets.push_back(static_cast<float>(4 * random.Normal()));
  }
  const AttendKernels& append = GetAttendKernels(Isa::kScalar, row_type);
  for (int t = 0; t < shape.kv_end; t += kBlockSize) {
    append.append({.shape = block_shape,
                   .block = blocks[t / kBlockSize],
                   .n_rows = std::min(kBlockSize, shape.kv_end - t),
                   .k = k.at(int64_t{t} * shape.rank_k),
                   .k_stride = shape.rank_k,
                   .v = v.at(int64_t{t} * shape.rank_v),
                   .v_stride = shape.rank_v});
  }
}

AttendRefResult AttendProblem::Reference() const {
  AttendRefParams ref{.n_rows = n_rows,
                      .gqa_group = shape.gqa_group,
                      .rank_k = shape.rank_k + 2 * shape.n_pairs * static_cast<int>(blocks.size()),
                      .rank_v = shape.rank_v,
                      .kv_begin = shape.kv_begin,
                      .kv_end = shape.kv_end,
                      .first_visible = shape.first_visible,
                      .window = shape.window,
                      .sm_scale = SmScale(),
                      .score_cap = shape.score_cap,
                      .score_offsets = {score_offsets.begin(), score_offsets.end()},
                      .q = {},
                      .k = KeysWithAngles(),
                      .v = v.values};
  for (int row = 0; row < n_rows; ++row) {
    const std::vector<double> query = QueryWithWeights(row);
    ref.q.insert(ref.q.end(), query.begin(), query.end());
  }
  return AttendRef(ref);
}

std::vector<double> AttendProblem::KeysWithAngles() const {
  std::vector<double> keys;
  for (int64_t t = 0; t < shape.kv_end; ++t) {
    const auto row = k.values.begin() + t * shape.rank_k;
    keys.insert(keys.end(), row, row + shape.rank_k);
    const int slot = static_cast<int>(t % kBlockSize);
    const bool is_behind = slot >= kHalfBlock;
    const int d = is_behind ? slot - kHalfBlock : kHalfBlock - 1 - slot;
    for (int64_t block = 0; block < std::ssize(blocks); ++block) {
      const double is_own = block == t / kBlockSize ? 1 : 0;
      for (int i = 0; i < shape.n_pairs; ++i) {
        keys.push_back(is_own * (is_behind ? 1 : -1) * sin[i * kHalfBlock + d]);
      }
      for (int i = 0; i < shape.n_pairs; ++i) keys.push_back(is_own * cos[i * kHalfBlock + d]);
    }
  }
  return keys;
}

std::vector<double> AttendProblem::QueryWithWeights(int row) const {
  const auto begin = q.values.begin() + int64_t{row} * q_stride;
  std::vector<double> query(begin, begin + shape.rank_k);
  for (int64_t block = 0; block < std::ssize(blocks); ++block) {
    const auto weights = mean_weights.begin() + (block * n_rows + row) * kMeanWeights;
    query.insert(query.end(), weights, weights + 2 * shape.n_pairs);
  }
  return query;
}

TurningMean AttendProblem::Mean(int kv_begin) const {
  const int64_t before = int64_t{kv_begin / kBlockSize} * n_rows * kMeanWeights;
  return {mean_weights.data() + before, cos.data(), sin.data(), shape.n_pairs};
}

AttendOutput RunAttend(const AttendKernels& kernels, const AttendProblem& problem, int kv_begin,
                       int kv_end, bool wants_scores) {
  AttendOutput out;
  if (wants_scores) {
    out.scores_stride = (kv_end - kv_begin + kBlockSize - 1) / kBlockSize * kBlockSize;
    out.scores.assign(problem.n_rows * out.scores_stride, kUntouched);
  }
  const int rank_v = problem.shape.rank_v;
  out.o_stride = rank_v + 16;
  out.o.assign(problem.n_rows * out.o_stride, kUntouched);
  out.row_max.assign(problem.n_rows + 1, kUntouched);
  out.row_sum.assign(problem.n_rows + 1, kUntouched);
  Buffer scratch = Buffer::Allocate(kAttendScratchBytes, "test scratch").value();
  std::memset(scratch.data(), 0xff, scratch.n_bytes());
  kernels.attend({.shape = problem.block_shape,
                  .gqa_group = problem.shape.gqa_group,
                  .n_rows = problem.n_rows,
                  .q = problem.q.bytes.data(),
                  .q_stride = problem.q_stride,
                  .blocks = problem.blocks.data(),
                  .mean = problem.Mean(kv_begin),
                  .kv_begin = kv_begin,
                  .kv_end = kv_end,
                  .first_visible = problem.shape.first_visible,
                  .window = problem.shape.window,
                  .sm_scale = problem.SmScale(),
                  .score_cap = problem.shape.score_cap,
                  .score_offsets = problem.score_offsets.data(),
                  .o = out.o.data(),
                  .o_stride = out.o_stride,
                  .row_max = out.row_max.data(),
                  .row_sum = out.row_sum.data(),
                  .scores = wants_scores ? out.scores.data() : nullptr,
                  .scores_stride = out.scores_stride},
                 scratch.data());
  for (int row = 0; row < problem.n_rows; ++row) {
    for (int64_t r = rank_v; r < out.o_stride; ++r) {
      EXPECT_EQ(out.o[row * out.o_stride + r], kUntouched) << "row " << row << " wrote past rank_v";
    }
  }
  EXPECT_EQ(out.row_max.back(), kUntouched);
  EXPECT_EQ(out.row_sum.back(), kUntouched);
  return out;
}

void ExpectMatches(const AttendOutput& got, const AttendRefResult& want, int n_rows, int rank_v,
                   DType row_type, const std::string& what) {
  const double p_error = row_type == DType::kBf16 ? 0x1p-9 : 1e-6;
  double sum_error = 0, sum_allowed = 0;
  for (int row = 0; row < n_rows; ++row) {
    const double row_max = want.row_max[row], row_sum = want.row_sum[row];
    if (row_sum == 0) {
      EXPECT_EQ(got.row_max[row], -std::numeric_limits<float>::infinity())
          << what << " row " << row;
      EXPECT_EQ(got.row_sum[row], 0) << what << " row " << row;
    } else {
      const double score_error = 1.5e-6 * (1 + std::abs(row_max));
      ASSERT_NEAR(got.row_max[row], row_max, score_error) << what << " row " << row;
      ASSERT_NEAR(got.row_sum[row], row_sum, row_sum * (p_error + 2 * score_error))
          << what << " row " << row;
    }
    for (int r = 0; r < rank_v; ++r) {
      const int64_t at = int64_t{row} * rank_v + r;
      const float o = got.o[row * got.o_stride + r];
      const double value = row_sum == 0 ? o : o / double{got.row_sum[row]};
      const double score_error = row_sum == 0 ? 0 : 2e-6 * (1 + std::abs(row_max));
      const double allowed = (2 * p_error + score_error) * want.o_abs[at];
      ASSERT_NEAR(value, want.o[at], allowed) << what << " row " << row << " r " << r;
      sum_error += std::abs(value - want.o[at]);
      sum_allowed += p_error * want.o_spread[at] + score_error * want.o_abs[at];
    }
  }
  EXPECT_LE(sum_error, 0.8 * sum_allowed + 1e-30) << what << ": mean error against the model";
}

void CheckAllSets(const AttendShape& plain, uint64_t seed) {
  AttendShape shape = plain;
  if ((seed + seed / 16) % 2 == 1) shape.score_cap = static_cast<float>(1 + seed % 5);
  for (const AttendKernelSet& set : AttendKernelSets()) {
    const AttendProblem problem(shape, set.row_type, seed);
    const AttendOutput got = RunAttend(*set.kernels, problem, shape.kv_begin, shape.kv_end);
    ExpectMatches(got, problem.Reference(), problem.n_rows, shape.rank_v, set.row_type,
                  set.name + " " + shape.Describe());
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace kvlathe
