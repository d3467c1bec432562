#include "cpu/kernels/seal/seal_codes.h"

#include <algorithm>
#include <limits>

#include "cpu/kernels/seal/seal_balance.h"
#include "cpu/kernels/seal/seal_clip.h"
#include "cpu/kernels/seal/seal_codebook.h"
#include "cpu/kernels/seal/seal_exact.h"

namespace kvlathe {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNoValue = std::numeric_limits<float>::quiet_NaN();  // counts in no range

void ResetRanges(int64_t n, SealWorkspace* ws) {
  std::fill_n(ws->low, n, kInfinity);
  std::fill_n(ws->high, n, -kInfinity);
}

// The scales of n ranges under a table, a byte each; in the workspace what numbers are multiplied
// with.
void RoundTableScales(const NamedTable& table, int n, std::byte* to, SealWorkspace* ws) {
  for (int i = 0; i < n; ++i) {
    const bool is_empty = ws->low[i] > ws->high[i];
    const float largest = is_empty ? 0 : std::max({0.0f, ws->high[i], -ws->low[i]});
    const uint8_t byte = TableScaleByte(largest, table.steps.max_exponent);
    to[i] = std::byte{byte};
    ws->scales[i] = TableScale(byte) * table.unit;
    ws->minima[i] = 0;
  }
}

// Rounds n_groups x n scales and minima of the ranges; `to` is [n_groups][parts][n] F16.
void RoundScales(const HeadRun& run, const PackedSide& side, int n_groups, int n, std::byte* to,
                 SealWorkspace* ws) {
  if (side.has_codebook) return RoundCodebookScales(run, n_groups * n, to, ws);
  if (side.table != nullptr) return RoundTableScales(*side.table, n_groups * n, to, ws);
  const int64_t part_bytes = int64_t{2} * n;
  for (int g = 0; g < n_groups; ++g, to += ScaleParts(side) * part_bytes) {
    const int64_t first = int64_t{g} * n;
    run.kernels->round_scales(ws->low + first, ws->high + first, n, side.bits, side.is_symmetric,
                              to, to + part_bytes, ws->scales + first, ws->minima + first);
  }
}

const TableSteps* StepsOf(const PackedSide& side) {
  return side.table == nullptr ? nullptr : &side.table->steps;
}

bool ExpandKeys(const HeadRun& run, int block_idx, SealWorkspace* ws) {
  const PackedShape& s = run.shape;
  if (!run.kernels->expand(run.row_type, run.keys(block_idx), int64_t{kBlockSize} * s.rank_k,
                           ws->x)) {
    return false;
  }
  if (s.k.balanced_tokens > 0) {
    const int token = block_idx * kBlockSize % s.k.balanced_tokens;
    run.kernels->divide_elements(ws->balance + 2 * token, KeyGrid(s.rank_k), ws->x);
  }
  return true;
}

bool ExpandValues(const HeadRun& run, int block_idx, SealWorkspace* ws) {
  const PackedShape& s = run.shape;
  if (!run.kernels->expand(run.row_type, run.values(block_idx), int64_t{kBlockSize} * s.rank_v,
                           ws->x)) {
    return false;
  }
  if (s.v.balanced_tokens > 0) {
    run.kernels->divide_elements(ws->balance, ValueGrid(s.rank_v), ws->x);
  }
  return true;
}

// The block behind the tile of block `first`.
int EndOfTile(const PackedShape& s, int tile, int first) {
  return std::min(first + tile / kBlockSize, s.n_blocks);
}

// How K of a run is grouped.
struct KeyGroups {
  bool by_channel;
  int group;        // channels, or tokens within a block
  int n_groups;     // of a block; groups of more tokens than a block count once
  int span_blocks;  // that share scales

  explicit KeyGroups(const PackedShape& s) : by_channel(s.k.sharing == ScaleSharing::kChannel) {
    const int whole = by_channel ? s.n_tokens() : s.rank_k;
    const int asked = s.k.group == 0 ? whole : std::min(s.k.group, whole);
    group = by_channel ? std::min(asked, kBlockSize) : asked;
    n_groups = ((by_channel ? kBlockSize : s.rank_k) + group - 1) / group;
    span_blocks = by_channel ? std::max(1, asked / kBlockSize) : 1;
  }
};

// Reads a block for its scales: exact entries are found and kept out of the ranges.
bool MeasureKeys(const HeadRun& run, const KeyGroups& groups, int block_idx, SealWorkspace* ws) {
  if (!ExpandKeys(run, block_idx, ws)) return false;
  if (run.shape.key_outliers() > 0) {
    ListKeyEntries(run, block_idx, ws);
    SetKeyEntries(run, block_idx, kNoValue, ws->x);
  }
  const PairGrid grid = KeyGrid(run.shape.rank_k);
  if (groups.by_channel) {
    run.kernels->extend_ranges(ws->x, grid, groups.group / 16, ws->low, ws->high);
  } else {
    run.kernels->extend_token_ranges(ws->x, grid, groups.group / 2, ws->low, ws->high);
    ClipTokenRanges(run.shape.k, /*is_key=*/true, run.shape.rank_k, groups.n_groups, ws);
  }
  return true;
}

// Scales of the blocks from first_block on that share them.
void RoundKeyScales(const HeadRun& run, const KeyGroups& groups, int first_block,
                    SealWorkspace* ws) {
  const PackedShape& s = run.shape;
  if (groups.by_channel) {
    const int64_t first_group = int64_t{first_block} / groups.span_blocks * groups.n_groups;
    RoundScales(run, s.k, groups.n_groups, s.rank_k, run.head().record + first_group * 4 * s.rank_k,
                ws);
    return;
  }
  RoundScales(run, s.k, groups.n_groups, kBlockSize,
              run.head().packed[first_block] + KeyTokenScaleOffset(s), ws);
  for (int i = 0; i < groups.n_groups * kBlockSize; ++i) {
    ws->word_scales[2 * i] = ws->word_scales[2 * i + 1] = ws->scales[i];
    ws->word_minima[2 * i] = ws->word_minima[2 * i + 1] = ws->minima[i];
  }
}

void QuantiseKeys(const HeadRun& run, const KeyGroups& groups, int block_idx, SealWorkspace* ws) {
  const PackedShape& s = run.shape;
  // x still holds the block that was measured last.
  if (groups.span_blocks > 1 || s.key_outliers() > 0) ExpandKeys(run, block_idx, ws);
  float* const residual = ResidualOf(run, /*is_key=*/true, block_idx, ws);
  run.kernels->quantise({.x = ws->x,
                         .grid = KeyGrid(s.rank_k),
                         .is_key = true,
                         .bits = s.k.bits,
                         .is_symmetric = s.k.is_symmetric,
                         .steps = StepsOf(s.k),
                         .by_pairs = groups.by_channel,
                         .group = groups.by_channel ? groups.group / 16 : groups.group / 2,
                         .scales = groups.by_channel ? ws->scales : ws->word_scales,
                         .minima = groups.by_channel ? ws->minima : ws->word_minima,
                         .codes = run.head().packed[block_idx],
                         .residual = residual});
  TakeKeyLosses(run, block_idx, residual, ws);
}

std::byte* LayerScales(const HeadRun& run, int block_idx) {
  return run.job->layer_record + int64_t{block_idx} * 4 * kBlockSize;
}

// Reads a block and the scales of its tokens: from the layer record, or made here. False when a row
// holds NaN or infinity.
bool ScaleValues(const HeadRun& run, int group, int block_idx, SealWorkspace* ws) {
  const PackedShape& s = run.shape;
  if (!ExpandValues(run, block_idx, ws)) return false;
  if (s.v.sharing == ScaleSharing::kTokenLayer) {
    const std::byte* from = LayerScales(run, block_idx);
    run.kernels->from_f16(from, kBlockSize, ws->scales);
    run.kernels->from_f16(from + 2 * kBlockSize, kBlockSize, ws->minima);
    return true;
  }
  const int n_groups = ValueScaleGroups(s);
  ResetRanges(int64_t{n_groups} * kBlockSize, ws);
  SetValueEntries(run, block_idx, kNoValue, ws->x);
  run.kernels->extend_ranges(ws->x, ValueGrid(s.rank_v), group / 16, ws->low, ws->high);
  ClipTokenRanges(s.v, /*is_key=*/false, s.rank_v, n_groups, ws);
  RoundScales(run, s.v, n_groups, kBlockSize,
              run.head().packed[block_idx] + ValueTokenScaleOffset(s), ws);
  if (s.n_value_entries() > 0) ExpandValues(run, block_idx, ws);
  return true;
}

}  // namespace

float* ResidualOf(const HeadRun& run, bool is_key, int block_idx, SealWorkspace* ws) {
  const PackedShape& s = run.shape;
  const int64_t block_words = int64_t{kBlockSize} * (is_key ? s.rank_k : s.rank_v);
  if (s.lowrank() > 0) return ws->residual + block_idx * block_words;
  return (is_key ? s.n_key_entries() : s.n_value_entries()) > 0 ? ws->residual : nullptr;
}

int SealLayerValues(std::span<const HeadRun> runs, int block_idx, SealWorkspace* ws) {
  const PackedShape& s = runs[0].shape;
  const bool has_scales = s.v.sharing == ScaleSharing::kTokenLayer;
  if (s.value_outliers() > 0) FindValueTails(runs, block_idx, ws);
  ResetRanges(kBlockSize, ws);
  for (const HeadRun& run : runs) {
    if (!ExpandValues(run, block_idx, ws)) return run.head_idx;
    const int rank = run.shape.rank_v;
    if (s.value_outliers() > 0) {
      ListValueEntries(run, block_idx, ws);
      SetValueEntries(run, block_idx, kNoValue, ws->x);
    }
    if (has_scales) {
      run.kernels->extend_ranges(ws->x, ValueGrid(rank), rank / 16, ws->low, ws->high);
    }
  }
  if (has_scales) {
    RoundScales(runs[0], s.v, 1, kBlockSize, LayerScales(runs[0], block_idx), ws);
  }
  return -1;
}

bool SealKeys(const HeadRun& run, SealWorkspace* ws) {
  const PackedShape& s = run.shape;
  const KeyGroups groups(s);
  if (s.key_outliers() > 0) FindKeyTails(run, ws);
  for (int first = 0; first < s.n_blocks; first += groups.span_blocks) {
    const int end = std::min(first + groups.span_blocks, s.n_blocks);
    if (s.k.balanced_tokens > 0 && !BalanceKeys(run, first, end, ws)) return false;
    ResetRanges(int64_t{groups.n_groups} * (groups.by_channel ? s.rank_k : kBlockSize), ws);
    for (int b = first; b < end; ++b) {
      if (!MeasureKeys(run, groups, b, ws)) return false;
    }
    RoundKeyScales(run, groups, first, ws);
    for (int b = first; b < end; ++b) QuantiseKeys(run, groups, b, ws);
  }
  return true;
}

bool SealValues(const HeadRun& run, SealWorkspace* ws) {
  const PackedShape& s = run.shape;
  const bool is_whole = s.v.sharing == ScaleSharing::kTokenLayer || s.v.group == 0;
  const int group = is_whole ? s.rank_v : s.v.group;
  for (int b = 0; b < s.n_blocks; ++b) {
    const int tile = s.v.balanced_tokens;
    if (tile > 0 && b * kBlockSize % tile == 0 &&
        !BalanceValues(run, b, EndOfTile(s, tile, b), ws)) {
      return false;
    }
    if (!ScaleValues(run, group, b, ws)) return false;
    float* const residual = ResidualOf(run, /*is_key=*/false, b, ws);
    if (s.v.has_codebook) {
      WriteCodebookValues(run, b, residual, ws);
      continue;
    }
    run.kernels->quantise({.x = ws->x,
                           .grid = ValueGrid(s.rank_v),
                           .is_key = false,
                           .bits = s.v.bits,
                           .is_symmetric = s.v.is_symmetric,
                           .steps = StepsOf(s.v),
                           .by_pairs = true,
                           .group = group / 16,
                           .scales = ws->scales,
                           .minima = ws->minima,
                           .codes = run.head().packed[b] + PackedValueOffset(s),
                           .residual = residual});
    TakeValueLosses(run, b, residual, ws);
  }
  return true;
}

void PackNumbers(const HeadRun& run, PairGrid grid, bool is_key, int bits, const float* numbers,
                 std::byte* to, SealWorkspace* ws) {
  std::fill_n(ws->word_scales, 2 * grid.n_pairs, 1.0f);
  std::fill_n(ws->word_minima, 2 * grid.n_pairs, 0.0f);
  run.kernels->quantise({.x = numbers,
                         .grid = grid,
                         .is_key = is_key,
                         .bits = bits,
                         .is_symmetric = false,
                         .steps = nullptr,
                         .by_pairs = true,
                         .group = grid.n_lines,
                         .scales = ws->word_scales,
                         .minima = ws->word_minima,
                         .codes = to,
                         .residual = nullptr});
}

}  // namespace kvlathe
