#include "cpu/kernels/seal/seal_balance.h"

#include <algorithm>
#include <cmath>
#include <span>

namespace kvlathe {
namespace {

constexpr int kMostOfAxis = std::max(kMaxPackedRank, kMostTileTokens);
constexpr float kLeastDeviation = 1e-3f, kMostDeviation = 1e3f;
constexpr float kLeastScale = 0.74081822f;  // e^-0.3
constexpr float kMostScale = 22026.466f;    // e^10
constexpr float kLeastSpread = 1e-8f;

// NaN becomes the least.
float Clamped(float x, float least, float most) { return x > least ? std::min(x, most) : least; }

// The elements or the members of a tile.
struct BalancedAxis {
  int n;
  float scales[kMostOfAxis];
  float factors[2 * kMostOfAxis];  // 1 / scales, of elements each twice
  float deviations[kMostOfAxis];   // of the tile as the other axis divides it

  explicit BalancedAxis(int size) : n(size) {
    std::fill_n(scales, n, 1.0f);
    std::fill_n(factors, 2 * n, 1.0f);
  }
  void TakeRoots() {
    for (int i = 0; i < n; ++i) deviations[i] = std::sqrt(deviations[i]);
  }
  // Scales by the deviations, and their factors, each `times` times.
  void Rescale(int times) {
    for (int i = 0; i < n; ++i) {
      const float deviation = Clamped(deviations[i] / scales[i], kLeastDeviation, kMostDeviation);
      scales[i] = Clamped(scales[i] * deviation, kLeastScale, kMostScale);
      std::fill_n(factors + i * times, times, 1 / scales[i]);
    }
  }
  // The largest over the smallest deviation.
  float Spread() const {
    float low = deviations[0] / scales[0], high = low;
    for (int i = 1; i < n; ++i) {
      low = std::min(low, deviations[i] / scales[i]);
      high = std::max(high, deviations[i] / scales[i]);
    }
    return high / std::max(low, kLeastSpread);
  }
};

// The scales of the elements of a tile [n_pairs][n_words], words being elements of both members of
// a pair in turn.
void FindBalance(const SealKernels& kernels, const float* tile, int n_pairs, int n_words,
                 float* balance) {
  BalancedAxis elements(n_words / 2), members(2 * n_pairs);
  const auto measure_elements = [&] {
    kernels.element_variances(tile, n_pairs, n_words, members.factors, elements.deviations);
    elements.TakeRoots();
  };
  const auto measure_members = [&] {
    kernels.member_variances(tile, n_pairs, n_words, elements.factors, members.deviations);
    members.TakeRoots();
  };
  measure_elements();
  measure_members();
  float least = elements.Spread() + members.Spread();
  std::copy_n(elements.scales, elements.n, balance);
  for (int i = 0; i < kBalanceRounds; ++i) {
    elements.Rescale(2);
    measure_members();
    members.Rescale(1);
    measure_elements();
    const float imbalance = elements.Spread() + members.Spread();
    if (imbalance > least || std::isnan(imbalance)) continue;
    least = imbalance;
    std::copy_n(elements.scales, elements.n, balance);
  }
}

// Rounds n scales to F16 and leaves what they are then in ws->balance, from number `first` on.
void StoreBalance(const HeadRun& run, const float* scales, int n, std::byte* to, int first,
                  SealWorkspace* ws) {
  float rounded[kMostOfAxis];
  run.kernels->to_f16(scales, n, to);
  run.kernels->from_f16(to, n, rounded);
  for (int i = 0; i < n; ++i) {
    ws->balance[2 * (first + i)] = ws->balance[2 * (first + i) + 1] = rounded[i];
  }
}

}  // namespace

bool BalanceKeys(const HeadRun& run, int first, int end, SealWorkspace* ws) {
  const PackedShape& s = run.shape;
  constexpr int kPairWords = 2 * kBlockSize;
  const int n_words = (end - first) * kPairWords;
  for (int b = first; b < end; ++b) {
    const std::byte* from = run.keys(b);
    for (int pair = 0; pair < s.rank_k / 2; ++pair, from += kPairWords * SizeOf(run.row_type)) {
      float* const to = ws->tile + int64_t{pair} * n_words + (b - first) * kPairWords;
      if (!run.kernels->expand(run.row_type, from, kPairWords, to)) return false;
    }
  }
  float balance[kMostOfAxis];
  FindBalance(*run.kernels, ws->tile, s.rank_k / 2, n_words, balance);
  for (int b = first; b < end; ++b) {
    StoreBalance(run, balance + (b - first) * kBlockSize, kBlockSize,
                 run.head().packed[b] + KeyBalanceOffset(s), (b - first) * kBlockSize, ws);
  }
  return true;
}

bool BalanceValues(const HeadRun& run, int first, int end, SealWorkspace* ws) {
  const PackedShape& s = run.shape;
  const int64_t block_words = int64_t{kBlockSize} * s.rank_v;
  for (int b = first; b < end; ++b) {
    float* const to = ws->tile + (b - first) * block_words;
    if (!run.kernels->expand(run.row_type, run.values(b), block_words, to)) return false;
  }
  float balance[kMostOfAxis];
  FindBalance(*run.kernels, ws->tile, (end - first) * kBlockSize / 2, 2 * s.rank_v, balance);
  const int tile_idx = first * kBlockSize / s.v.balanced_tokens;
  StoreBalance(run, balance, s.rank_v,
               run.head().record + ValueBalanceOffset(s) + int64_t{2} * tile_idx * s.rank_v, 0, ws);
  return true;
}

}  // namespace kvlathe
