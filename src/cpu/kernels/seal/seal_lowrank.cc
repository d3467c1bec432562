#include "cpu/kernels/seal/seal_lowrank.h"

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "cpu/kernels/seal/seal_exact.h"

namespace kvlathe {
namespace {

// Modified Gram-Schmidt, each column twice. Columns that depend on earlier ones become 0: then the
// residual has no such rank, and their columns of B are 0 as well.
void Orthonormalise(const SealKernels& kernels, int64_t n, int n_columns, float* columns) {
  constexpr double kDependent = 1e-6;  // of its length; the products before are F32
  for (int j = 0; j < n_columns; ++j) {
    float* const column = columns + j * n;
    const double length = std::sqrt(kernels.dot(column, column, n));
    for (int pass = 0; pass < 2; ++pass) {
      for (int i = 0; i < j; ++i) {
        const float* const earlier = columns + i * n;
        kernels.add_scaled(static_cast<float>(-kernels.dot(earlier, column, n)), earlier, n,
                           column);
      }
    }
    const double rest = std::sqrt(kernels.dot(column, column, n));
    if (rest > kDependent * length) {
      kernels.scale(static_cast<float>(1 / rest), n, column);
    } else {
      std::fill_n(column, n, 0.0f);
    }
  }
}

// Where the factors of one side go.
struct Factors {
  int64_t a_offset;  // in a block
  std::byte* b;

  Factors(const HeadRun& run, bool is_key)
      : a_offset(is_key ? KeyFactorOffset(run.shape) : ValueFactorOffset(run.shape)),
        b(run.head().record + (is_key ? KeyBasisOffset(run.shape) : ValueBasisOffset(run.shape))) {}
};

void StoreFactors(const HeadRun& run, bool is_key, const ResidualParams& params, int rank) {
  const Factors to(run, is_key);
  const int n = run.shape.lowrank();
  for (int b = 0; b < run.shape.n_blocks; ++b) {
    for (int j = 0; j < n; ++j) {
      run.kernels->to_f16(params.q + int64_t{j} * run.shape.n_tokens() + int64_t{b} * kBlockSize,
                          kBlockSize,
                          run.head().packed[b] + to.a_offset + int64_t{2} * kBlockSize * j);
    }
  }
  run.kernels->to_f16(params.p, int64_t{n} * rank, to.b);
}

// The factors as readers find them, in place of those that were fitted.
void ReadBackFactors(const HeadRun& run, bool is_key, const ResidualParams& params, int rank) {
  const Factors from(run, is_key);
  const int n = run.shape.lowrank();
  for (int b = 0; b < run.shape.n_blocks; ++b) {
    for (int j = 0; j < n; ++j) {
      run.kernels->from_f16(run.head().packed[b] + from.a_offset + int64_t{2} * kBlockSize * j,
                            kBlockSize,
                            params.q + int64_t{j} * run.shape.n_tokens() + int64_t{b} * kBlockSize);
    }
  }
  run.kernels->from_f16(from.b, int64_t{n} * rank, params.p);
}

// A to ws->q, orthonormal, and B to ws->p.
void FitFactors(const HeadRun& run, const ResidualParams& params, int rank, int power_loops,
                SealWorkspace* ws) {
  const SealKernels& kernels = *run.kernels;
  const PackedShape& s = run.shape;
  const int n = params.n_columns;
  const int64_t n_words = int64_t{s.n_tokens()} * rank;
  const float largest = kernels.max_abs(ws->residual, n_words);
  if (largest == 0) {
    std::fill_n(ws->q, int64_t{n} * s.n_tokens(), 0.0f);
    std::fill_n(ws->p, int64_t{n} * rank, 0.0f);
    return;
  }
  // Powers of two keep the sums of the largest and of the smallest residuals within F32.
  const int exponent = std::ilogb(largest);
  const int half = exponent / 2;  // 2^exponent, or its inverse, may be beyond F32
  const bool is_scaled = std::abs(exponent) > 30;
  if (is_scaled) {
    kernels.scale(std::ldexp(1.0f, -half), n_words, ws->residual);
    kernels.scale(std::ldexp(1.0f, half - exponent), n_words, ws->residual);
  }
  const auto head_idx = static_cast<uint64_t>(run.job->first_head + run.head_idx);
  Random random(run.job->seed, 2 * head_idx + (params.is_key ? 0 : 1));
  for (int64_t i = 0; i < int64_t{n} * rank; ++i) ws->p[i] = static_cast<float>(random.Uniform());
  for (int loop = 0; loop < power_loops; ++loop) {
    Orthonormalise(kernels, rank, n, ws->p);
    kernels.multiply(params);
    Orthonormalise(kernels, s.n_tokens(), n, ws->q);
    kernels.multiply_transposed(params);
  }
  if (is_scaled) {
    kernels.scale(std::ldexp(1.0f, half), int64_t{n} * rank, ws->p);
    kernels.scale(std::ldexp(1.0f, exponent - half), int64_t{n} * rank, ws->p);
  }
}

}  // namespace

void FitResidual(const HeadRun& run, bool is_key, int power_loops, SealWorkspace* ws) {
  const PackedShape& s = run.shape;
  const int rank = is_key ? s.rank_k : s.rank_v;
  const ResidualParams params = {.r = ws->residual,
                                 .grid = is_key ? KeyGrid(rank) : ValueGrid(rank),
                                 .is_key = is_key,
                                 .n_blocks = s.n_blocks,
                                 .n_columns = s.lowrank(),
                                 .q = ws->q,
                                 .p = ws->p,
                                 .doubled = ws->doubled};
  FitFactors(run, params, rank, power_loops, ws);
  StoreFactors(run, is_key, params, rank);
  if ((is_key ? s.n_key_entries() : s.n_value_entries()) == 0) return;
  ReadBackFactors(run, is_key, params, rank);
  WriteRepairedDifferences(run, is_key, ws);
}

}  // namespace kvlathe
