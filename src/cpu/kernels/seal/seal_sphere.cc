#include "cpu/kernels/seal/seal_sphere.h"

#include <array>
#include <cmath>

#include "format/sphere_codes/residual_signs.h"
#include "format/sphere_codes/sphere_codes.h"

namespace kvlathe {
namespace {

using TokenSums = std::array<double, kBlockSize>;
using TokenScales = std::array<float, kBlockSize>;

constexpr float kRoundingShift = 0x1.8p23f;

// A side of a block, by lines: K [pair of channels][token][2], V [pair of tokens][channel][2].
struct SphereBlock {
  const PackedSide& side;
  bool is_key;
  int rank;
  std::byte* codes;
  std::byte* scales;
};

// The sums over the channels of every token of f(place in the block).
template <typename F>
TokenSums SumsOfTokens(const SphereBlock& block, const F& f) {
  TokenSums sums = {};
  if (block.is_key) {
    for (int pair = 0; pair < block.rank / 2; ++pair) {
      const int first = 2 * kBlockSize * pair;
      for (int t = 0; t < kBlockSize; ++t) sums[t] += f(first + 2 * t) + f(first + 2 * t + 1);
    }
    return sums;
  }
  for (int pair = 0; pair < kBlockSize / 2; ++pair) {
    for (int c = 0; c < block.rank; ++c) {
      const int first = 2 * (block.rank * pair + c);
      sums[2 * pair] += f(first);
      sums[2 * pair + 1] += f(first + 1);
    }
  }
  return sums;
}

TokenSums SquaresOfTokens(const SphereBlock& block, const float* x) {
  return SumsOfTokens(block, [&](int i) { return static_cast<double>(x[i]) * x[i]; });
}

// Stores the scales as F16, and sets them to what is stored.
void RoundToF16(const HeadRun& run, TokenScales* scales, std::byte* to) {
  run.kernels->to_f16(scales->data(), kBlockSize, to);
  run.kernels->from_f16(to, kBlockSize, scales->data());
}

// Writes the codes of the rows in ws->x as scales of `table` have them, and what they lose to
// ws->residual. `units` is what a number of a code is worth in each token.
void WriteLevels(const HeadRun& run, const SphereBlock& block, const TokenScales& units,
                 SealWorkspace* ws) {
  for (int t = 0; t < kBlockSize; ++t) {
    ws->scales[t] = ws->word_scales[2 * t] = ws->word_scales[2 * t + 1] = units[t];
    ws->minima[t] = ws->word_minima[2 * t] = ws->word_minima[2 * t + 1] = 0;
  }
  run.kernels->quantise({.x = ws->x,
                         .grid = block.is_key ? KeyGrid(block.rank) : ValueGrid(block.rank),
                         .is_key = block.is_key,
                         .bits = block.side.bits,
                         .is_symmetric = true,
                         .steps = &block.side.table->steps,
                         .by_pairs = !block.is_key,
                         .group = block.is_key ? block.rank / 2 : block.rank / 16,
                         .scales = block.is_key ? ws->word_scales : ws->scales,
                         .minima = block.is_key ? ws->word_minima : ws->minima,
                         .codes = block.codes,
                         .residual = ws->residual});
}

// The sums of the squares of the numbers of all codes of a token, which are whole.
TokenSums SquaresOfNumbers(const SphereBlock& block, const TokenScales& units,
                           const SealWorkspace& ws) {
  const int rank = block.rank;
  return SumsOfTokens(block, [&](int i) {
    const int t = block.is_key ? i / 2 % kBlockSize : i / (2 * rank) * 2 + i % 2;
    // Adding and taking off 1.5 * 2^23 rounds to a whole number.
    const float number = (ws.x[i] - ws.residual[i]) / units[t] + kRoundingShift - kRoundingShift;
    return static_cast<double>(number) * number;
  });
}

void WriteResidualSigns(const HeadRun& run, const SphereBlock& block, SealWorkspace* ws) {
  const TokenSums squares = SquaresOfTokens(block, ws->residual);
  TokenScales lengths;
  for (int t = 0; t < kBlockSize; ++t) {
    lengths[t] = static_cast<float>(std::sqrt(squares[t]) * ResidualUnit(block.rank));
  }
  RoundToF16(run, &lengths, block.scales + int64_t{2} * kBlockSize);
  TurnResiduals(block.rank, ws->residual);
  WriteSigns(block.side.bits, block.rank, ws->residual, block.codes);
}

// Codes and scales of the rows in ws->x.
void SealRows(const HeadRun& run, const SphereBlock& block, bool corrects, SealWorkspace* ws) {
  const float unit = block.side.table->unit;
  const int level_bits = block.side.bits - (block.side.has_signs ? 1 : 0);
  const double step = static_cast<double>(kNormalTables[level_bits - 1].step) / unit;
  const TokenSums squares = SquaresOfTokens(block, ws->x);
  TokenScales scales, units;
  for (int t = 0; t < kBlockSize; ++t) {
    scales[t] = static_cast<float>(std::sqrt(squares[t] / block.rank) * step);
  }
  RoundToF16(run, &scales, block.scales);
  // A row of zeros has any codes, and a scale of zero.
  for (int t = 0; t < kBlockSize; ++t) units[t] = scales[t] == 0 ? 1 : scales[t] * unit;
  WriteLevels(run, block, units, ws);
  if (block.side.has_signs) return WriteResidualSigns(run, block, ws);
  if (!corrects) return;
  const TokenSums numbers = SquaresOfNumbers(block, units, *ws);
  for (int t = 0; t < kBlockSize; ++t) {
    scales[t] = static_cast<float>(std::sqrt(squares[t] / numbers[t]) / unit);
  }
  RoundToF16(run, &scales, block.scales);
}

}  // namespace

bool SealSphereSide(const HeadRun& run, bool is_key, SealWorkspace* ws) {
  const PackedShape& s = run.shape;
  const PackedSide& side = is_key ? s.k : s.v;
  const int rank = is_key ? s.rank_k : s.rank_v;
  const bool corrects = std::get<SphereCodec>(s.format.codec).corrects_norms;
  for (int b = 0; b < s.n_blocks; ++b) {
    const std::byte* const rows = is_key ? run.keys(b) : run.values(b);
    if (!run.kernels->expand(run.row_type, rows, int64_t{kBlockSize} * rank, ws->x)) return false;
    std::byte* const packed = run.head().packed[b];
    const int64_t scales_at = is_key ? KeyTokenScaleOffset(s) : ValueTokenScaleOffset(s);
    const SphereBlock block = {.side = side,
                               .is_key = is_key,
                               .rank = rank,
                               .codes = packed + (is_key ? 0 : PackedValueOffset(s)),
                               .scales = packed + scales_at};
    SealRows(run, block, corrects, ws);
  }
  return true;
}

}  // namespace kvlathe
