#include <cmath>

#include "cuda/kernels/seal/block_lines.cuh"
#include "cuda/kernels/seal/f16.cuh"
#include "cuda/kernels/seal/half_sums.cuh"
#include "cuda/kernels/seal/lowrank.h"
#include "cuda/simt/launch.h"

namespace kvlathe::cuda {
namespace {

using namespace simt;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kTogether = 4;  // columns that are multiplied together

// A fit with its side and its residual.
struct Fit {
  const LowRankFit& fit;
  const SealedHeadRun& head;
  const SealedSide& side;

  KVL_DEVICE Fit(const LowRankParams& params, int fit_idx)
      : fit(params.fits[fit_idx]),
        head(params.all.heads[fit.head]),
        side(fit.is_key ? head.k : head.v) {}

  KVL_DEVICE int n_columns() const { return side.repairs.lowrank; }
  KVL_DEVICE int n_tokens() const { return head.n_blocks * kBlockSize; }
  KVL_DEVICE int n_pairs() const { return fit.is_key ? side.rank / 2 : kBlockSize / 2; }
  KVL_DEVICE int n_lines() const { return fit.is_key ? kBlockSize / 16 : side.rank / 16; }
  // The lane's word of a line of the residual, as it is multiplied; exact entries count as 0.
  KVL_DEVICE float Number(int block, int at) const {
    const float loss = IsExact(side, block, at) ? 0.0f : *ResidualAt(side, block, at);
    return loss * fit.scales[0] * fit.scales[1];
  }
  KVL_DEVICE bool is_zero() const { return fit.scales[4] == 0; }
};

// --- Start ---

// 2^exponent.
KVL_DEVICE float PowerOfTwo(int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

// floor(log2(x)) of x > 0.
KVL_DEVICE int ExponentOf(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (bits >= 1u << 23) return static_cast<int>(bits >> 23) - 127;
  return 31 - LeadingZeros(bits) - 149;
}

// Powers of two keep the sums of the largest and of the smallest residuals within F32.
KVL_DEVICE void SetScales(float largest, float* scales) {
  const int exponent = largest == 0 ? 0 : ExponentOf(largest);
  const int half = exponent / 2;  // 2^exponent, or its inverse, may be beyond F32
  const bool is_scaled = exponent > 30 || exponent < -30;
  scales[0] = is_scaled ? PowerOfTwo(-half) : 1;
  scales[1] = is_scaled ? PowerOfTwo(half - exponent) : 1;
  scales[2] = is_scaled ? PowerOfTwo(half) : 1;
  scales[3] = is_scaled ? PowerOfTwo(exponent - half) : 1;
  scales[4] = largest;
}

// A block of threads takes a fit; `shared` has a number for each warp.
KVL_KERNEL(kThreads) StartKernel(KVL_PARAMS(LowRankParams) p) {
  const Fit fit(p, BlockIdx());
  auto* const of_warps = reinterpret_cast<float*>(Shared());
  const int n_lines = 2 * fit.side.rank;  // of a block
  float most = 0;
  for (int i = WarpIdx(); i < fit.head.n_blocks * n_lines; i += kWarps) {
    const int block = i / n_lines, at = i % n_lines;
    if (IsExact(fit.side, block, at)) continue;
    const float size = fabsf(*ResidualAt(fit.side, block, at));
    most = size > most ? size : most;
  }
  most = MaxOfWarp(most);
  if (Lane() == 0) of_warps[WarpIdx()] = most;
  SyncBlock();
  if (ThreadIdx() == 0) {
    for (int i = 0; i < kWarps; ++i) most = of_warps[i] > most ? of_warps[i] : most;
    SetScales(most, fit.fit.scales);
  }
  for (int i = ThreadIdx(); i < fit.n_columns() * fit.side.rank; i += kThreads) {
    fit.fit.p[i] = fit.fit.start[i];
  }
}

// --- Orthonormal columns ---

// The dot of two columns, by the first warp, for all threads; `shared` has room for it.
KVL_DEVICE double DotOfBlock(const float* a, const float* b, int n, double* shared) {
  SyncBlock();
  if (WarpIdx() == 0) {
    const double sum = DotOfHalf(a, b, n);
    if (Lane() == 0) *shared = sum;
  }
  SyncBlock();
  return *shared;
}

// Modified Gram-Schmidt, each column twice; columns that depend on earlier ones become 0.
KVL_DEVICE void Orthonormalise(int n, int n_columns, float* columns) {
  constexpr double kDependent = 1e-6;  // of its length
  auto* const shared = reinterpret_cast<double*>(Shared());
  for (int j = 0; j < n_columns; ++j) {
    float* const column = columns + int64_t{j} * n;
    const double length = sqrt(DotOfBlock(column, column, n, shared));
    for (int i = 0; i < 2 * j; ++i) {
      const float* const earlier = columns + int64_t{i % j} * n;
      const auto factor = static_cast<float>(-DotOfBlock(earlier, column, n, shared));
      for (int c = ThreadIdx(); c < n; c += kThreads) column[c] += factor * earlier[c];
    }
    const double rest = sqrt(DotOfBlock(column, column, n, shared));
    const bool is_dependent = !(rest > kDependent * length);
    const float factor = is_dependent ? 0.0f : static_cast<float>(1 / rest);
    for (int c = ThreadIdx(); c < n; c += kThreads) {
      column[c] = is_dependent ? 0.0f : factor * column[c];
    }
  }
}

KVL_KERNEL(kThreads) OrthonormalChannelsKernel(KVL_PARAMS(LowRankParams) p) {
  const Fit fit(p, BlockIdx());
  if (!fit.is_zero()) Orthonormalise(fit.side.rank, fit.n_columns(), fit.fit.p);
}
KVL_KERNEL(kThreads) OrthonormalTokensKernel(KVL_PARAMS(LowRankParams) p) {
  const Fit fit(p, BlockIdx());
  if (!fit.is_zero()) Orthonormalise(fit.n_tokens(), fit.n_columns(), fit.fit.q);
}

// --- Products ---

// z [column][stride], of which a number belongs to each word of a line.
struct Columns {
  const float* z;
  int stride;
  int n;  // at most kTogether
};

// Adds the words of a line times z[column][at].
KVL_DEVICE void AddProducts(float word, const Columns& columns, int at, float (&sums)[kTogether]) {
  for (int j = 0; j < kTogether; ++j) {
    if (j < columns.n) sums[j] += word * columns.z[int64_t{j} * columns.stride + at];
  }
}

// The sum of both members of a pair, for elements by line; in even lanes.
KVL_DEVICE float SumOfPair(float x) { return 0.0f + (x + ShuffleXor(x, 1)); }
// The sums of all elements of a pair's lines, by member; lanes 0 and 1 are asked.
KVL_DEVICE float SumOfElements(float x) {
  for (int step = 16; step > 1; step /= 2) x += ShuffleXor(x, step);
  return 0.0f + x;
}

// q = R p in a block, for columns from `first` on. K by lines, V by pairs of tokens.
KVL_DEVICE void MultiplyLine(const Fit& fit, int block, int i, int first) {
  const int rank = fit.side.rank, n_left = fit.n_columns() - first;
  const Columns p = {fit.fit.p + int64_t{first} * rank, rank,
                     n_left < kTogether ? n_left : kTogether};
  float sums[kTogether] = {};
  if (fit.fit.is_key) {
    for (int pair = 0; pair < fit.n_pairs(); ++pair) {
      AddProducts(fit.Number(block, 4 * pair + i), p, 2 * pair + Lane() % 2, sums);
    }
  } else {
    for (int line = 0; line < fit.n_lines(); ++line) {
      AddProducts(fit.Number(block, i * fit.n_lines() + line), p, 16 * line + Lane() / 2, sums);
    }
  }
  for (int j = 0; j < kTogether; ++j) {
    const float sum = fit.fit.is_key ? SumOfPair(sums[j]) : SumOfElements(sums[j]);
    const bool has_sum = fit.fit.is_key ? Lane() % 2 == 0 : Lane() < 2;
    if (j >= p.n || !has_sum) continue;
    const int token = block * kBlockSize + (fit.fit.is_key ? 16 * i + Lane() / 2 : 2 * i + Lane());
    fit.fit.q[int64_t{first + j} * fit.n_tokens() + token] = sum;
  }
}

// A block of threads takes a block of rows.
KVL_KERNEL_AT(kThreads, 4) MultiplyKernel(KVL_PARAMS(LowRankParams) p) {
  const Fit fit(p, BlockIdx());
  if (fit.is_zero() || BlockIdxY() >= fit.head.n_blocks) return;
  const int n = fit.fit.is_key ? fit.n_lines() : fit.n_pairs();
  for (int i = WarpIdx(); i < n; i += kWarps) {
    for (int first = 0; first < fit.n_columns(); first += kTogether) {
      MultiplyLine(fit, BlockIdxY(), i, first);
    }
  }
}

// p = R^T q of a pair of channels of K over the run.
KVL_DEVICE void MultiplyKeyPair(const Fit& fit, int pair, int first, const Columns& q) {
  float sums[kTogether] = {};
  for (int block = 0; block < fit.head.n_blocks; ++block) {
    for (int line = 0; line < 4; ++line) {
      AddProducts(fit.Number(block, 4 * pair + line), q,
                  block * kBlockSize + 16 * line + Lane() / 2, sums);
    }
  }
  for (int j = 0; j < kTogether; ++j) {
    const float sum = SumOfElements(sums[j]);
    if (j < q.n && Lane() < 2) fit.fit.p[(first + j) * fit.side.rank + 2 * pair + Lane()] = sum;
  }
}

// p = R^T q of sixteen channels of V over the run, block by block.
KVL_DEVICE void MultiplyValueLine(const Fit& fit, int line, int first, const Columns& q) {
  float of_blocks[kTogether] = {};
  for (int block = 0; block < fit.head.n_blocks; ++block) {
    float sums[kTogether] = {};
    for (int pair = 0; pair < kBlockSize / 2; ++pair) {
      AddProducts(fit.Number(block, pair * fit.n_lines() + line), q,
                  block * kBlockSize + 2 * pair + Lane() % 2, sums);
    }
    for (int j = 0; j < kTogether; ++j) of_blocks[j] += sums[j] + ShuffleXor(sums[j], 1);
  }
  for (int j = 0; j < kTogether; ++j) {
    if (j >= q.n || Lane() % 2 != 0) continue;
    fit.fit.p[(first + j) * fit.side.rank + 16 * line + Lane() / 2] = of_blocks[j];
  }
}

// A warp takes a pair of channels of K, or sixteen channels of V, and kTogether columns.
KVL_KERNEL(kThreads) MultiplyTransposedKernel(KVL_PARAMS(LowRankParams) p) {
  const Fit fit(p, BlockIdx());
  const int first = BlockIdxY() * kTogether, n_left = fit.n_columns() - first;
  if (fit.is_zero() || n_left <= 0) return;
  const Columns q = {fit.fit.q + int64_t{first} * fit.n_tokens(), fit.n_tokens(),
                     n_left < kTogether ? n_left : kTogether};
  const int n = fit.fit.is_key ? fit.n_pairs() : fit.n_lines();
  for (int i = WarpIdx(); i < n; i += kWarps) {
    if (fit.fit.is_key) {
      MultiplyKeyPair(fit, i, first, q);
    } else {
      MultiplyValueLine(fit, i, first, q);
    }
  }
}

// --- Factors ---

// A in the packed blocks, B in the run record; zeros where there is nothing to repair.
KVL_KERNEL(kThreads) StoreKernel(KVL_PARAMS(LowRankParams) p) {
  const Fit fit(p, BlockIdx());
  const SealedRepairs& repairs = fit.side.repairs;
  const float* const scales = fit.fit.scales;
  const int n_tokens = fit.n_tokens(), n_columns = fit.n_columns();
  for (int i = ThreadIdx(); i < n_columns * n_tokens; i += kThreads) {
    const int token = i % n_tokens, column = i / n_tokens;
    const float x = fit.is_zero() ? 0.0f : fit.fit.q[i];
    auto* const a =
        reinterpret_cast<uint16_t*>(fit.head.packed[token / kBlockSize] + repairs.a_offset);
    a[column * kBlockSize + token % kBlockSize] = static_cast<uint16_t>(BoundedF16(x));
  }
  auto* const b = reinterpret_cast<uint16_t*>(fit.head.record + repairs.b_offset);
  for (int i = ThreadIdx(); i < n_columns * fit.side.rank; i += kThreads) {
    const float x = fit.is_zero() ? 0.0f : scales[2] * fit.fit.p[i];
    b[i] = static_cast<uint16_t>(BoundedF16(scales[3] * x));
  }
}

}  // namespace

void FitLowRank(cudaStream_t stream, const LowRankParams& params) {
  const LaunchShape by_fit = {
      .n_blocks = params.n_fits, .n_threads = kThreads, .shared_bytes = kWarps * sizeof(double)};
  LaunchShape by_blocks = by_fit, by_columns = by_fit;
  by_blocks.n_blocks_y = params.most_blocks;
  by_columns.n_blocks_y = (params.most_columns + kTogether - 1) / kTogether;
  Launch(stream, StartKernel, by_fit, params);
  for (int loop = 0; loop < params.power_loops; ++loop) {
    Launch(stream, OrthonormalChannelsKernel, by_fit, params);
    Launch(stream, MultiplyKernel, by_blocks, params);
    Launch(stream, OrthonormalTokensKernel, by_fit, params);
    Launch(stream, MultiplyTransposedKernel, by_columns, params);
  }
  Launch(stream, StoreKernel, by_fit, params);
}

}  // namespace kvlathe::cuda
