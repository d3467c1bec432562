#include "cpu/kernels/seal/seal_split.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <variant>

#include "cpu/kernels/attend/coded_rows.h"
#include "cpu/kernels/seal/seal_codes.h"

namespace kvlathe {
namespace {

// f(bits, first channel, channels, bytes from the start of the side's codes).
template <typename F>
void ForEachSegment(const BitSplit& split, const F& f) {
  int first = 0;
  int64_t offset = 0;
  for (size_t i = 0; i < kSplitBits.size(); ++i) {
    const int n = split.channels[i];
    if (n > 0) f(kSplitBits[i], first, n, offset);
    first += n;
    offset += CodeBytes(kSplitBits[i], n);
  }
}

uint8_t NearestScale(double x) {
  const auto bits = std::bit_cast<int32_t>(static_cast<float>(x));
  const int32_t steps = (bits - int32_t{kScaleBase} + (1 << (kScaleShift - 1))) >> kScaleShift;
  return static_cast<uint8_t>(std::clamp(steps, 0, 255));
}

// Of groups of 1 bit.
constexpr int kMaxLinesPerGroup = LinesPerGroup(1);
static_assert(kMaxLinesPerGroup * kLineWords <= kMaxBlockScales);  // of SealWorkspace::low

// A scale of a token is looked for so many steps above and below the root of its mean square.
constexpr int kScaleReach = 8;

StoredUnit UnitOf(const PackedShape& s) { return std::get<SplitBitsCodec>(s.format.codec).unit; }
const EntryBits& BitsOf(const PackedShape& s) { return std::get<EntryBits>(s.storage); }

// f(channel, number) for the first n_channels of a token in a block of K or of V by lines.
template <bool kIsKey, typename F>
void ForEachOfToken(float* x, int rank, int n_channels, int token, const F& f) {
  float* const first = x + (kIsKey ? KeyOffset(token, 0) : ValueOffset({.rank_v = rank}, token, 0));
  constexpr int64_t kPairStep = kIsKey ? 2 * kBlockSize : 4, kStep = kIsKey ? 1 : 2;
  for (int c = 0; c < n_channels; c += 2) {
    float* const pair = first + c / 2 * kPairStep;
    f(c, pair[0]);
    f(c + 1, pair[kStep]);
  }
}

// Sets losses to what codes of a row lose under the scales of kLossFactors bytes, in shares of what
// its channels are expected to lose.
void FindLosses(const SealKernels& kernels, const BitSplit& split, const float* row,
                const float* scales, float* losses) {
  float inverses[kLossFactors];
  for (int i = 0; i < kLossFactors; ++i) inverses[i] = 1 / scales[i], losses[i] = 0;
  for (size_t i = 0; i < kSplitBits.size(); ++i) {
    const int n = split.channels[i];
    if (n == 0) continue;
    float of_segment[kLossFactors];
    kernels.unit_losses(kSplitBits[i], n, row, inverses, of_segment);
    const auto share = static_cast<float>(1 / UnitLoss(kSplitBits[i], StoredUnit::kToken));
    for (int j = 0; j < kLossFactors; ++j) losses[j] += of_segment[j] * share;
    row += n;
  }
  for (int i = 0; i < kLossFactors; ++i) losses[i] *= scales[i] * scales[i];
}

// The first of the scales with which the codes of a row lose least.
uint8_t BestScale(const SealKernels& kernels, const BitSplit& split, const float* row) {
  const int rank = split.n_channels();
  const int middle = NearestScale(std::sqrt(kernels.dot(row, row, rank) / rank));
  const int last = std::min(255, middle + kScaleReach);
  int best = middle;
  float least = std::numeric_limits<float>::infinity();
  for (int byte = std::max(0, middle - kScaleReach); byte <= last; byte += kLossFactors) {
    float scales[kLossFactors], losses[kLossFactors];
    for (int i = 0; i < kLossFactors; ++i) {
      scales[i] = ScaleOfByte(static_cast<uint8_t>(std::min(last, byte + i)));
    }
    FindLosses(kernels, split, row, scales, losses);
    for (int i = 0; i < kLossFactors; ++i) {
      if (losses[i] < least) least = losses[i], best = std::min(last, byte + i);
    }
  }
  return static_cast<uint8_t>(best);
}

// Chooses the scales of tokens, and puts their numbers, a block of K or of V by lines, into those
// units, as far as they get codes.
template <bool kIsKey>
void ScaleTokens(const HeadRun& run, const BitSplit& split, std::byte* scales, SealWorkspace* ws) {
  const int rank = kIsKey ? run.shape.rank_k : run.shape.rank_v, n = split.n_channels();
  float* const row = ws->part;
  for (int t = 0; t < kBlockSize; ++t) {
    ForEachOfToken<kIsKey>(ws->x, rank, n, t, [&](int c, float& value) { row[c] = value; });
    const uint8_t byte = BestScale(*run.kernels, split, row);
    const float inverse = 1 / ScaleOfByte(byte);
    ForEachOfToken<kIsKey>(ws->x, rank, n, t, [&](int, float& value) { value *= inverse; });
    scales[t] = std::byte{byte};
  }
}

// What codes lost, back in the units of rows.
template <bool kIsKey>
void ScaleTokenResidual(int rank, const std::byte* scales, float* residual) {
  for (int t = 0; t < kBlockSize; ++t) {
    const float scale = ScaleOfByte(static_cast<uint8_t>(scales[t]));
    ForEachOfToken<kIsKey>(residual, rank, rank, t, [&](int, float& value) { value *= scale; });
  }
}

// Of the keys of an open block of coded rows; those of its values follow.
const std::byte* CodedScales(const HeadRun& run, int block_idx) {
  const BlockShape rows = {.rank_k = run.shape.rank_k,
                           .rank_v = run.shape.rank_v,
                           .has_one_side = run.shape.has_one_side};
  return run.keys(block_idx) + CodedKeyScaleOffset(rows, 0);
}

// What squares of errors of the tokens' numbers cost in the order of lines, [lines][kLineWords]: a
// number is in units of the scale of its token. token_of(line, word).
template <typename F>
void WeighLines(int n_lines, const std::byte* scales, const F& token_of, float* weights) {
  for (int line = 0; line < n_lines; ++line) {
    for (int word = 0; word < kLineWords; ++word) {
      const float scale = ScaleOfByte(static_cast<uint8_t>(scales[token_of(line, word)]));
      *weights++ = scale * scale;
    }
  }
}

// Replaces a segment of n channels of K by codes.
void EncodeKeys(const HeadRun& run, int bits, int n, const float* weights, float* x,
                float* residual) {
  const StoredUnit unit = UnitOf(run.shape);
  const int64_t n_words = int64_t{kBlockSize} * n;
  if (!HasTrellis(bits, unit)) {
    return run.kernels->encode_units(bits, unit, n_words, x, residual);
  }
  const int64_t step = int64_t{LinesPerGroup(bits)} * kLineWords;
  for (int64_t at = 0; at < n_words; at += step) {
    run.kernels->encode_trellis(bits, {.x = x + at,
                                       .line_step = kLineWords,
                                       .weights = weights,
                                       .residual = residual == nullptr ? nullptr : residual + at,
                                       .residual_step = kLineWords});
  }
}

// Replaces a segment of n channels of V, by lines of its own, by codes; what they lose goes into
// lines of the whole block.
void EncodeValues(const HeadRun& run, int bits, int n, const std::byte* scales, float* residual,
                  SealWorkspace* ws) {
  const StoredUnit unit = UnitOf(run.shape);
  const int64_t pair_words = int64_t{2} * run.shape.rank_v, part_words = int64_t{2} * n;
  const auto residual_at = [&](int pair, int word) {
    return residual == nullptr ? nullptr : residual + pair * pair_words + word;
  };
  if (!HasTrellis(bits, unit)) {
    for (int pair = 0; pair < kBlockSize / 2; ++pair) {
      run.kernels->encode_units(bits, unit, part_words, ws->part + pair * part_words,
                                residual_at(pair, 0));
    }
    return;
  }
  const int n_lines = LinesPerGroup(bits);
  float* const weights = ws->low;
  for (int pair = 0; pair < kBlockSize / 2; pair += n_lines) {
    WeighLines(
        n_lines, scales, [&](int line, int word) { return 2 * (pair + line) + word % 2; }, weights);
    for (int word = 0; word < part_words; word += kLineWords) {
      run.kernels->encode_trellis(bits, {.x = ws->part + pair * part_words + word,
                                         .line_step = part_words,
                                         .weights = weights,
                                         .residual = residual_at(pair, word),
                                         .residual_step = pair_words});
    }
  }
}

}  // namespace

bool SealSplitKeys(const HeadRun& run, SealWorkspace* ws) {
  const PackedShape& s = run.shape;
  const bool is_per_token = UnitOf(s) == StoredUnit::kToken;
  for (int b = 0; b < s.n_blocks; ++b) {
    if (run.has_coded_rows()) {
      ExpandCodedKeys(run.keys(b), s.rank_k, CodedScales(run, b), ws->x);
    } else if (!run.kernels->expand(run.row_type, run.keys(b), int64_t{kBlockSize} * s.rank_k,
                                    ws->x)) {
      return false;
    }
    std::byte* const token_scales = run.head().packed[b] + KeyTokenScaleOffset(s);
    float* const weights = ws->low;
    if (is_per_token) {
      ScaleTokens<true>(run, BitsOf(s).k, token_scales, ws);
      WeighLines(
          kMaxLinesPerGroup, token_scales,
          [](int line, int word) { return line % 4 * 16 + word / 2; }, weights);
    }
    float* const residual = ResidualOf(run, /*is_key=*/true, b, ws);
    ForEachSegment(BitsOf(s).k, [&](int bits, int first, int n, int64_t offset) {
      const int64_t at = int64_t{kBlockSize} * first;
      EncodeKeys(run, bits, n, weights, ws->x + at, residual == nullptr ? nullptr : residual + at);
      PackNumbers(run, KeyGrid(n), /*is_key=*/true, bits, ws->x + at, run.head().packed[b] + offset,
                  ws);
    });
    if (residual != nullptr && is_per_token)
      ScaleTokenResidual<true>(s.rank_k, token_scales, residual);
  }
  return true;
}

bool SealSplitValues(const HeadRun& run, SealWorkspace* ws) {
  const PackedShape& s = run.shape;
  const bool is_per_token = UnitOf(s) == StoredUnit::kToken;
  const int64_t pair_words = int64_t{2} * s.rank_v;
  for (int b = 0; b < s.n_blocks; ++b) {
    if (run.has_coded_rows()) {
      ExpandCodedValues(run.values(b), s.rank_v, CodedScales(run, b) + kBlockSize, ws->x);
    } else if (!run.kernels->expand(run.row_type, run.values(b), int64_t{kBlockSize} * s.rank_v,
                                    ws->x)) {
      return false;
    }
    float* const residual = ResidualOf(run, /*is_key=*/false, b, ws);
    std::byte* const codes = run.head().packed[b] + PackedValueOffset(s);
    std::byte* const scales = run.head().packed[b] + ValueTokenScaleOffset(s);
    if (is_per_token) ScaleTokens<false>(run, BitsOf(s).v, scales, ws);
    ForEachSegment(BitsOf(s).v, [&](int bits, int first, int n, int64_t offset) {
      for (int pair = 0; pair < kBlockSize / 2; ++pair) {
        std::copy_n(ws->x + pair * pair_words + 2 * first, 2 * n, ws->part + int64_t{2} * pair * n);
      }
      EncodeValues(run, bits, n, scales, residual == nullptr ? nullptr : residual + 2 * first, ws);
      PackNumbers(run, ValueGrid(n), /*is_key=*/false, bits, ws->part, codes + offset, ws);
    });
    if (residual != nullptr && is_per_token) ScaleTokenResidual<false>(s.rank_v, scales, residual);
  }
  return true;
}

}  // namespace kvlathe
