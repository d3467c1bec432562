// A KV head of random rows in plain blocks for tests of attention, every kernel set that there is,
// and how their results are judged.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/random.h"
#include "cpu/kernels/attend/attend.h"
#include "cpu/kernels/testing/attend_ref.h"
#include "tensor/buffer.h"

namespace kvlathe {

struct AttendKernelSet {
  std::string name;
  const AttendKernels* kernels;
  DType row_type;
  Isa isa;
};

// Those of this machine, and the AMX algorithm on emulated tiles where it can run.
std::vector<AttendKernelSet> AttendKernelSets();

// Rows of a storage type, with the values that the reference sees.
struct StoredRows {
  StoredRows(int64_t n, DType row_type) : dtype(row_type), bytes(n * SizeOf(row_type)), values(n) {}
  void Set(int64_t i, double x) {
    const float f = static_cast<float>(x);
    ConvertFromFloat(dtype, &f, 1, bytes.data() + i * SizeOf(dtype));
    float rounded;
    ConvertToFloat(dtype, bytes.data() + i * SizeOf(dtype), 1, &rounded);
    values[i] = rounded;
  }
  const std::byte* at(int64_t i) const { return bytes.data() + i * SizeOf(dtype); }

  DType dtype;
  std::vector<std::byte> bytes;
  std::vector<double> values;
};

StoredRows RandomRows(int64_t n, DType dtype, double sigma, double mean, Random& random);

struct AttendShape {
  int rank_k = 64, rank_v = 64;
  int n_tokens = 1, gqa_group = 1;
  int kv_begin = 0, kv_end = 64;
  int first_visible = 64;
  int window = kNoWindow;
  double q_sigma = 1;   // scores have about this standard deviation
  int n_pairs = 0;      // of a turning mean
  float score_cap = 0;  // also what keys have lost is drawn with one

  std::string Describe() const {
    return fmt::format(
        "rank_k={} rank_v={} n_tokens={} gqa_group={} kv=[{}, {}) first_visible={} window={} "
        "cap={}",
        rank_k, rank_v, n_tokens, gqa_group, kv_begin, kv_end, first_visible, window, score_cap);
  }
};

// One KV head in blocks, all slots that hold no entry poisoned with NaN.
struct AttendProblem {
  AttendProblem(const AttendShape& problem_shape, DType row_type, uint64_t seed);

  AttendRefResult Reference() const;
  // A turning mean is 2 n_pairs channels more for each block, which only keys of that block have:
  // cosines and sines around its middle.
  std::vector<double> KeysWithAngles() const;
  std::vector<double> QueryWithWeights(int row) const;
  TurningMean Mean(int kv_begin) const;
  float SmScale() const { return 1.0f / std::sqrt(static_cast<float>(shape.rank_k)); }

  AttendShape shape;
  BlockShape block_shape;
  Random random;
  int n_rows;
  int64_t q_stride;
  StoredRows q, k, v;
  Buffer memory;
  std::vector<std::byte*> blocks;
  std::vector<float> cos, sin;      // of the mean
  std::vector<float> mean_weights;  // from block 0 on
  std::vector<float> score_offsets;
};

inline constexpr float kUntouched = 12345.0f;

struct AttendOutput {
  std::vector<float> o, row_max, row_sum;
  int64_t o_stride;
  std::vector<float> scores;  // asked for if it has the size of [n_rows, scores_stride]
  int64_t scores_stride = 0;
};

// Checks that nothing is written past the rows.
AttendOutput RunAttend(const AttendKernels& kernels, const AttendProblem& problem, int kv_begin,
                       int kv_end, bool wants_scores = false);

// Judges o / row_sum, row_max and row_sum of a partial result.
//
// Bf16 probabilities carry independent relative errors of at most 2^-9, so an element of o is off
// by at most 2^-9 * sum of weight * |v|, twice that because row_sum moves too; the mean error over
// all elements stays below 2^-9 * o_spread (a third of it where many entries share the weight, up
// to two thirds where one or two do). A score sums rank_k products in F32, which shifts a weight by
// up to 1.5e-6 * (1 + |score|).
void ExpectMatches(const AttendOutput& got, const AttendRefResult& want, int n_rows, int rank_v,
                   DType row_type, const std::string& what);

// Runs every kernel set on the shape, with a cap for half of the seeds, and judges what comes out.
void CheckAllSets(const AttendShape& shape, uint64_t seed);

}  // namespace kvlathe
