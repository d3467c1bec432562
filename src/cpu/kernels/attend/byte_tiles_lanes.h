// Attention over sealed blocks of split bits whose bytes are multiplied in tiles (byte_tiles.h).
// Everything beside those products is that of code_rows_lanes.h.
#pragma once

#include "cpu/kernels/attend/byte_tiles.h"
#include "cpu/kernels/attend/code_rows_lanes.h"

namespace kvlathe {
namespace {

struct ByteTileScratch {
  // Of keys [rows of the panel][kBlockSize], of values [rows of a tile][kMaxRank].
  alignas(64) int32_t sums[kMostByteTileRows * kMaxRank];
  SmallProbs<kMostByteTileRows> probs;
};
static_assert(kMaxCodeRows * kBlockSize <= kMostByteTileRows * kMaxRank);

// The rows of a panel as tiles take them: `tile_rows` at a time.
struct TiledRows {
  const ByteTiles* products = nullptr;  // null: bytes are multiplied in vectors
  int n_rows = 0;
  int tile_rows = 0;
  ByteTileScratch* scratch = nullptr;

  // `products` may be null.
  static KVL_INLINE TiledRows Of(const ByteTiles* products, int n_rows, ByteTileScratch* scratch) {
    if (products == nullptr || n_rows < kMinByteTileRows) return {};
    const int n_tiles = (n_rows + kMostByteTileRows - 1) / kMostByteTileRows;
    return {products, n_rows, (n_rows + n_tiles - 1) / n_tiles, scratch};
  }
  // Around every panel: other kernels on this thread configure and release tiles too.
  KVL_INLINE void Begin() const {
    if (products != nullptr) products->configure(tile_rows);
  }
  KVL_INLINE void End() const {
    if (products != nullptr) products->release();
  }
  KVL_INLINE const int32_t* KeySums(int row) const {
    return products == nullptr ? nullptr : scratch->sums + row * kBlockSize;
  }
  KVL_INLINE int TileOf(int row) const { return row / tile_rows * tile_rows; }
};
static_assert(kMaxCodeRows % kMostByteTileRows == 0);  // the last tile ends in what weights have

// Finds the sums of the bytes of K for the rows from first_row on, if there are tiles.
KVL_INLINE void DotKeysInTiles(const TiledRows& rows, const CodeBlock& block,
                               const SmallQueries& queries, int first_row) {
  const PackedSideView& side = block.run->k;
  if (rows.products == nullptr || side.n_segments == 0) return;
  const int n_small = side.n_coded - block.WideChannels(side);
  if (n_small == 0) return;
  for (int row = rows.TileOf(first_row); row < rows.n_rows; row += rows.tile_rows) {
    rows.products->dot_keys(queries.bytes[row], block.small, n_small,
                            rows.scratch->sums + row * kBlockSize);
  }
}

// Adds the values of bytes, of which tiles have found the sums, kMaxRank apart from row to row.
// of_probs[r] are the units of probabilities.
template <int kRows>
void StoreTiledValues(const ValueRows<kRows>& rows, const ValueRange& range, const float* of_probs,
                      const int32_t* sums) {
  constexpr int kVecs = 16 / kLanes;
  constexpr float kNoConstants[kRows] = {};
  float units[kRows];
  Unroll<kRows>([&](auto r) KVL_PART { units[r.value] = of_probs[r.value] * range.step; });
  for (int i = range.first; i < range.first + range.n_channels; i += 16) {
    StoreValues(rows, LoadSums<kRows, kVecs>(sums + i, kMaxRank), i, units, kNoConstants);
  }
}

// Calls f(rows, row) with up to four rows of `all` at a time, from `begin` to `end`.
template <typename F>
KVL_INLINE void ForEachRows(const ValueRows<1>& all, int begin, int end, const F& f) {
  constexpr int kMost = 4;
  for (int row = begin; row < end; row += kMost) {
    WithCount<kMost>(Min(kMost, end - row), [&](auto n) {
      f(ValueRows<n.value>{all.probs + row * kBlockSize, all.o + row * all.o_stride, all.o_stride,
                           all.states + row},
        row);
    });
  }
}

// Adds the values of a block to the rows of a panel from first_row on, if there are tiles for them;
// returns whether there are. `all` are the rows of the panel.
KVL_INLINE bool AddValuesInTiles(const TiledRows& tiled, const CodeBlock& block,
                                 const ValueRows<1>& all, int first_row) {
  const PackedSideView& side = block.run->v;
  if (tiled.products == nullptr || side.n_segments == 0) return false;
  const int n_wide = block.WideChannels(side);
  ByteTileScratch* const scratch = tiled.scratch;
  ValueRange ranges[kValueOrders] = {};
  FindValueRanges(side, n_wide, ranges);
  for (int tile = tiled.TileOf(first_row); tile < tiled.n_rows; tile += tiled.tile_rows) {
    const int begin = Max(tile, first_row), end = Min(tile + tiled.tile_rows, tiled.n_rows);
    ForEachRows(all, begin, end, [&](const auto& rows, int row) {
      AddWideValues(block, rows, ranges, row - tile, &scratch->probs);
    });
    for (int order = 0; order < kValueOrders; ++order) {
      const ValueRange& range = ranges[order];
      if (range.n_channels == 0) continue;
      tiled.products->dot_values(scratch->probs.of[order][0],
                                 block.value_small() + (range.first - n_wide) / 16 * kColumnBytes,
                                 range.n_channels, scratch->sums + range.first);
    }
    ForEachRows(all, begin, end, [&](const auto& rows, int row) {
      const float* const units = scratch->probs.units + (row - tile);
      const int32_t* const sums = scratch->sums + (row - tile) * kMaxRank;
      for (const ValueRange& range : ranges) StoreTiledValues(rows, range, units, sums);
      ShrinkUncoded(block, rows);
      AddLowRankValues(block, rows);
    });
  }
  return true;
}

}  // namespace
}  // namespace kvlathe
