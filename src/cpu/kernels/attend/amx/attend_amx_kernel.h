// Attention on matrix tiles of 16 rows x 64 bytes, for any tile policy (AMX, or its emulation).
//
// Lines of K are B tiles as they lie (16 pairs of dimensions x 16 tokens), and so are lines of V
// (16 pairs of tokens x 16 dimensions); A tiles are rows of q and of probabilities. A few blocks
// are taken at a time, so that o passes through tiles once per kGroupBlocks. The softmax between
// the two products is AVX-512. Sealed blocks become plain ones in scratch, once for all rows of a
// panel.
//
// A policy provides Configure(rows), Release(), Zero<tile>(), Load<tile>(p, stride),
// Store<tile>(p, stride) and Multiply<c, a, b>() (c += a b). Tiles 0-3 are C and 4-5 A with `rows`
// rows, 6-7 B with 16 rows; all have 64 bytes a row; strides are in bytes. Codes that AVX-512 reads
// as integers stay so, and their bytes meet in tiles too (byte_tiles_amx.h).
#pragma once

#include "cpu/kernels/attend/amx/byte_tiles_amx.h"
#include "cpu/kernels/attend/attend_isa.h"
#include "cpu/kernels/attend/attend_packed.h"
#include "cpu/kernels/attend/avx512/attend_avx512.h"
#include "cpu/kernels/attend/avx512/plain_blocks_avx512.h"

namespace kvlathe {
namespace {

constexpr int kTileRows = 16;
constexpr int kStepDims = 32;    // of q and K in one product
constexpr int kStepTokens = 32;  // of probabilities and V in one product
constexpr int kGroupBlocks = 4;
constexpr int kGroupTokens = kGroupBlocks * kBlockSize;
constexpr int kPanelRows = 256;  // their o and q stay in L2 while blocks stream by
constexpr int kMaxRank = kMaxRowRank;
constexpr int64_t kKeyStride = 4 * kBlockSize;  // bytes from a pair of dimensions to the next
// With fewer rows, or a rank below 32, the AVX-512 kernel is used: a dot per row and line costs
// less than a product, which takes 16 cycles for 16 lines whatever the rows, and than passing
// scores through memory.
constexpr int kMinTileRows = 4;
// With fewer rows, making sealed blocks plain takes longer than tiles save: it is about ten
// instructions for 16 numbers, and AVX-512 reads codes with one for 64 numbers of a row.
constexpr int kMinTileRowsOfCodes = 64;
constexpr int64_t kTileElements = int64_t{2} * kBlockSize * kMaxRank;  // of a block

struct Scratch {
  alignas(64) float scores[2 * kTileRows][kGroupTokens];
  alignas(64) uint16_t probs[2 * kTileRows][kGroupTokens];
  alignas(64) uint16_t q_tail[kPanelRows][kStepDims];
  alignas(64) uint16_t q_ragged[kTileRows][kMaxRank];
  alignas(64) float o_ragged[kTileRows][kMaxRank];
  alignas(64) uint16_t v_last[kBlockSize * kMaxRank];
  alignas(64) float sums[kPanelRows][kLanes];
  RowState rows[kPanelRows];
  alignas(64) float values[kTileElements];    // of a sealed block
  alignas(64) uint16_t plain[kTileElements];  // the sealed blocks of a group
};
static_assert(sizeof(Scratch) <= kAttendScratchBytes);

// The rows of one tile: where its q and o lie (strides in elements).
struct RowTile {
  const uint16_t* q;
  int64_t q_stride;
  const uint16_t* q_tail;  // [rows, kStepDims], used when rank_k is not a multiple of 32
  float* o;
  int64_t o_stride;
  int row;  // of the panel
  int n;    // rows that exist; the tile may have more
};

struct Panel {
  const AttendParams* p;
  float log2_scale;
  int first_row;
  int n_rows;
  int tile_rows;  // rows of every tile of this panel
  Scratch* scratch;
};

KVL_INLINE int BlockElements(const AttendParams& p) {
  return kBlockSize * (p.shape.rank_k + p.shape.rank_v);
}
// Sealed blocks of large ranks fill the scratch sooner.
KVL_INLINE int GroupBlocksOf(const AttendParams& p) {
  if (p.packed == nullptr) return kGroupBlocks;
  return Min(kGroupBlocks, static_cast<int>(kTileElements) / BlockElements(p));
}

// Blocks that are read together.
struct BlockGroup {
  const std::byte* k[kGroupBlocks];
  const std::byte* v[kGroupBlocks];
  const std::byte* next[kGroupBlocks];  // blocks of the next group to fetch, or null
  int n;
  int first_entry;
};

// Computes C += A B for kTiles row tiles and kCols B tiles that lie b_step bytes apart; row tile i
// and B tile j have C tile i * kCols + j. `next` is where the same lines of a block to come lie, or
// null. They are fetched meanwhile to L2, because L1 does not hold a group of blocks.
template <typename Tiles, int kTiles, int kCols>
KVL_INLINE void MultiplyStep(const void* const (&a)[kTiles], const int64_t (&a_stride)[kTiles],
                             const std::byte* b, const std::byte* next, int64_t b_stride) {
  static_assert(kTiles * kCols <= 4 && kTiles <= 2);
  Unroll<kTiles>([&](auto i) { Tiles::template Load<4 + i.value>(a[i.value], a_stride[i.value]); });
  Unroll<kCols>([&](auto j) {
    constexpr int kB = 6 + j.value % 2;
    Tiles::template Load<kB>(b + 64 * j.value, b_stride);
    Unroll<kTiles>(
        [&](auto i) { Tiles::template Multiply<i.value * kCols + j.value, 4 + i.value, kB>(); });
  });
  if (next == nullptr) return;
  for (int line = 0; line < 16; ++line) {
    Unroll<kCols>([&](auto j) { PrefetchLineToL2(next + line * b_stride + 64 * j.value); });
  }
}

// Computes the scores of kTiles row tiles against one block, in columns [column, column + 64).
template <typename Tiles, int kTiles>
void ScoreBlock(const Panel& panel, const RowTile* tiles, const std::byte* k,
                const std::byte* next_k, int column) {
  constexpr int kCols = 4 / kTiles;
  const int rank_k = panel.p->shape.rank_k;
  for (int line = 0; line < kBlockSize / kLanes; line += kCols) {
    Unroll<4>([&](auto c) { Tiles::template Zero<c.value>(); });
    for (int begin = 0; begin < rank_k; begin += kStepDims) {
      // The last 16 dimensions of a rank that is no multiple of 32 go with the 16 before them,
      // which meet zeros.
      const bool is_tail = begin + kStepDims > rank_k;
      const int dim = is_tail ? rank_k - kStepDims : begin;
      const void* a[kTiles];
      int64_t a_stride[kTiles];
      Unroll<kTiles>([&](auto i) {
        const RowTile& tile = tiles[i.value];
        a[i.value] = is_tail ? tile.q_tail : tile.q + dim;
        a_stride[i.value] = 2 * (is_tail ? kStepDims : tile.q_stride);
      });
      const int64_t offset = dim / 2 * kKeyStride + line * 64;
      MultiplyStep<Tiles, kTiles, kCols>(a, a_stride, k + offset,
                                         next_k == nullptr ? nullptr : next_k + offset, kKeyStride);
    }
    float* out = &panel.scratch->scores[0][column + line * kLanes];
    Unroll<4>([&](auto c) {
      constexpr int kRow = c.value / kCols * kTileRows, kCol = c.value % kCols * kLanes;
      Tiles::template Store<c.value>(out + kRow * kGroupTokens + kCol, 4 * kGroupTokens);
    });
  }
}

// Computes the probabilities of a tile's rows against a group, and moves o to the new maximum. Rows
// that do not exist get probability 0.
void SoftmaxTile(const Panel& panel, const RowTile& tile, int slot, const BlockGroup& group) {
  Scratch* s = panel.scratch;
  const int n_tokens = group.n * kBlockSize;
  const bool is_capped = panel.p->score_cap > 0;
  for (int i = 0; i < panel.tile_rows; ++i) {
    uint16_t* probs = s->probs[slot * kTileRows + i];
    if (i >= tile.n) {
      __builtin_memset(probs, 0, sizeof(*probs) * n_tokens);
      continue;
    }
    float* scores = s->scores[slot * kTileRows + i];
    RowState* state = &s->rows[tile.row + i];
    float* sums = s->sums[tile.row + i];
    const int row = panel.first_row + tile.row + i;
    const int n_visible = LimitOfRow(*panel.p, row) - group.first_entry;
    const int n_hidden = BeginOfRow(*panel.p, row) - group.first_entry;
    const RowCap cap = is_capped ? CapOfRow(*panel.p, row) : RowCap();
    __m512 top = _mm512_set1_ps(kMinusInfinity);
    for (int t = 0; t < n_tokens; t += kLanes) {
      __m512 line[1] = {_mm512_load_ps(scores + t)};
      if (is_capped) CapScores(cap, line);
      const bool is_masked = n_visible < t + kLanes || n_hidden > t;
      if (is_masked) {
        MaskScores(n_visible - t, line);
        MaskFirstScores(n_hidden - t, line);
      }
      if (is_masked || is_capped) _mm512_store_ps(scores + t, line[0]);
      top = _mm512_max_ps(top, line[0]);
    }
    if (panel.p->scores != nullptr) {
      __builtin_memcpy(
          panel.p->scores + row * panel.p->scores_stride + group.first_entry - panel.p->kv_begin,
          scores, sizeof(float) * n_tokens);
    }
    RaiseRowMax(top, panel.log2_scale, state, sums);
    for (int t = 0; t < n_tokens; t += 32) {
      const __m512 lines[2] = {_mm512_load_ps(scores + t), _mm512_load_ps(scores + t + kLanes)};
      AddProbabilities(lines, panel.log2_scale, *state, sums, probs + t);
    }
    if (state->shrink == 1) continue;
    float* o = tile.o + i * tile.o_stride;
    for (int r = 0; r < panel.p->shape.rank_v; r += kLanes) {
      _mm512_storeu_ps(o + r, _mm512_mul_ps(_mm512_loadu_ps(o + r), _mm512_set1_ps(state->shrink)));
    }
  }
}

// Adds probabilities x V of a group to o[, dim .. dim + 16 kCols), for kTiles row tiles.
template <typename Tiles, int kTiles, int kCols>
KVL_INLINE void AddValueColumns(const Panel& panel, const RowTile* tiles, const BlockGroup& group,
                                int dim) {
  const int64_t v_stride = int64_t{4} * panel.p->shape.rank_v;
  const int64_t key_bytes = kKeyStride / 2 * panel.p->shape.rank_k;
  Unroll<kTiles * kCols>([&](auto c) {
    const RowTile& tile = tiles[c.value / kCols];
    Tiles::template Load<c.value>(tile.o + dim + c.value % kCols * kLanes, 4 * tile.o_stride);
  });
  for (int b = 0; b < group.n; ++b) {
    for (int t = 0; t < kBlockSize; t += kStepTokens) {
      const void* a[kTiles];
      int64_t a_stride[kTiles];
      Unroll<kTiles>([&](auto i) {
        a[i.value] = &panel.scratch->probs[i.value * kTileRows][b * kBlockSize + t];
        a_stride[i.value] = 2 * kGroupTokens;
      });
      const int64_t offset = t / 2 * v_stride + 4 * dim;
      const std::byte* next = group.next[b];
      MultiplyStep<Tiles, kTiles, kCols>(a, a_stride, group.v[b] + offset,
                                         next == nullptr ? nullptr : next + key_bytes + offset,
                                         v_stride);
    }
  }
  Unroll<kTiles * kCols>([&](auto c) {
    const RowTile& tile = tiles[c.value / kCols];
    Tiles::template Store<c.value>(tile.o + dim + c.value % kCols * kLanes, 4 * tile.o_stride);
  });
}

template <typename Tiles, int kTiles>
void AttendGroup(const Panel& panel, const RowTile* tiles, const BlockGroup& group) {
  for (int b = 0; b < group.n; ++b) {
    ScoreBlock<Tiles, kTiles>(panel, tiles, group.k[b], group.next[b], b * kBlockSize);
  }
  for (int i = 0; i < kTiles; ++i) SoftmaxTile(panel, tiles[i], i, group);
  constexpr int kCols = 4 / kTiles;
  const int rank_v = panel.p->shape.rank_v;
  int dim = 0;
  for (; dim + kCols * kLanes <= rank_v; dim += kCols * kLanes) {
    AddValueColumns<Tiles, kTiles, kCols>(panel, tiles, group, dim);
  }
  for (; dim < rank_v; dim += kLanes) AddValueColumns<Tiles, kTiles, 1>(panel, tiles, group, dim);
}

// Copies V of a block whose entries end at n_valid, with zeros behind them: a probability of 0 does
// not clear NaN.
void CopyValidValues(const std::byte* v, int rank_v, int n_valid, uint16_t* out) {
  const uint16_t* from = reinterpret_cast<const uint16_t*>(v);
  const int64_t n_full = int64_t{n_valid / 2} * rank_v * 2;
  __builtin_memset(out, 0, sizeof(uint16_t) * kBlockSize * rank_v);
  __builtin_memcpy(out, from, sizeof(uint16_t) * n_full);
  for (int r = 0; n_valid % 2 != 0 && r < rank_v; ++r) out[n_full + 2 * r] = from[n_full + 2 * r];
}

// The blocks from `entry` on that go together; `kv_end` bounds what the panel sees.
BlockGroup GatherBlocks(const Panel& panel, int entry, int kv_end, PlainBlocks* sealed) {
  const AttendParams& p = *panel.p;
  Scratch* s = panel.scratch;
  const int64_t key_bytes = kKeyStride / 2 * p.shape.rank_k;
  const int n_blocks = (kv_end + kBlockSize - 1) / kBlockSize;
  BlockGroup group;
  group.first_entry = entry;
  group.n = Min(GroupBlocksOf(p), n_blocks - entry / kBlockSize);
  for (int b = 0; b < group.n; ++b) {
    const int block_idx = entry / kBlockSize + b;
    group.k[b] = sealed->Read(block_idx, s->plain + b * BlockElements(p));
    group.v[b] = group.k[b] + key_bytes;
    const bool has_next = block_idx + kGroupBlocks < n_blocks && p.packed == nullptr;
    group.next[b] = has_next ? p.blocks[block_idx + kGroupBlocks] : nullptr;
    const int n_valid = p.kv_end - block_idx * kBlockSize;
    if (n_valid < kBlockSize) {
      CopyValidValues(group.v[b], p.shape.rank_v, n_valid, s->v_last);
      group.v[b] = reinterpret_cast<const std::byte*>(s->v_last);
    }
  }
  return group;
}

// The tile of the panel's rows from `row` on. A last tile with too few rows gets room of its own,
// filled up with zeros.
RowTile PrepareTile(const Panel& panel, int row) {
  const AttendParams& p = *panel.p;
  const int rank_k = p.shape.rank_k;
  Scratch* s = panel.scratch;
  const uint16_t* q = static_cast<const uint16_t*>(p.q) + (panel.first_row + row) * p.q_stride;
  RowTile tile = {.q = q,
                  .q_stride = p.q_stride,
                  .q_tail = s->q_tail[row],
                  .o = p.o + (panel.first_row + row) * p.o_stride,
                  .o_stride = p.o_stride,
                  .row = row,
                  .n = Min(panel.tile_rows, panel.n_rows - row)};
  for (int i = 0; i < tile.n; ++i) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(s->q_tail[row + i]), _mm256_setzero_si256());
    __builtin_memcpy(s->q_tail[row + i] + 16, q + i * p.q_stride + rank_k - 16, 32);
  }
  if (tile.n == panel.tile_rows) return tile;
  __builtin_memset(s->q_ragged, 0, sizeof(s->q_ragged));
  for (int i = 0; i < tile.n; ++i) {
    __builtin_memcpy(s->q_ragged[i], q + i * p.q_stride, sizeof(uint16_t) * rank_k);
  }
  __builtin_memset(s->q_tail[row + tile.n], 0, sizeof(s->q_tail[0]) * (panel.tile_rows - tile.n));
  tile.q = s->q_ragged[0];
  tile.q_stride = kMaxRank;
  tile.o = s->o_ragged[0];
  tile.o_stride = kMaxRank;
  return tile;
}

template <typename Tiles>
void AttendPanel(const Panel& panel) {
  const AttendParams& p = *panel.p;
  Scratch* s = panel.scratch;
  RowTile tiles[kPanelRows / kMinTileRows];
  int n_tiles = 0;
  for (int row = 0; row < panel.n_rows; row += panel.tile_rows) {
    RowTile& tile = tiles[n_tiles++];
    tile = PrepareTile(panel, row);
  }
  for (int row = 0; row < panel.n_rows; ++row) {
    s->rows[row] = BeginRowState(p, panel.first_row + row, s->sums[row]);
  }
  for (int i = 0; i < panel.tile_rows; ++i) ClearRow(s->o_ragged[i], p.shape.rank_v);
  const RowTile& last = tiles[n_tiles - 1];
  const bool is_ragged = last.o == s->o_ragged[0];
  for (int i = 0; i < last.n && is_ragged; ++i) {
    __builtin_memcpy(s->o_ragged[i], p.o + (panel.first_row + last.row + i) * p.o_stride,
                     sizeof(float) * p.shape.rank_v);
  }
  const int kv_end = LimitOfRow(p, panel.first_row + panel.n_rows - 1);
  PlainBlocks sealed = {&p, s->values};
  int first_tile = 0;  // the first with a row that sees anything of the group
  const int group_blocks = GroupBlocksOf(p);
  for (int entry = FirstEntryToRead(p, panel.first_row); entry < kv_end;
       entry += group_blocks * kBlockSize) {
    while (LimitOfRow(p, panel.first_row + tiles[first_tile].row + tiles[first_tile].n - 1) <=
           entry) {
      ++first_tile;
    }
    BlockGroup group = GatherBlocks(panel, entry, kv_end, &sealed);
    for (int tile = first_tile; tile < n_tiles; tile += 2) {
      const RowTile& last = tiles[Min(tile + 1, n_tiles - 1)];
      const int limit = LimitOfRow(p, panel.first_row + last.row + last.n - 1);
      group.n = Min(group_blocks, (limit - entry + kBlockSize - 1) / kBlockSize);
      if (tile + 1 < n_tiles) {
        AttendGroup<Tiles, 2>(panel, tiles + tile, group);
      } else {
        AttendGroup<Tiles, 1>(panel, tiles + tile, group);
      }
      // The first pass brings the next group.
      for (const std::byte*& next : group.next) next = nullptr;
    }
  }
  for (int i = 0; i < last.n && is_ragged; ++i) {
    __builtin_memcpy(p.o + (panel.first_row + last.row + i) * p.o_stride, s->o_ragged[i],
                     sizeof(float) * p.shape.rank_v);
  }
  for (int row = 0; row < panel.n_rows; ++row) {
    p.row_max[panel.first_row + row] = s->rows[row].max * p.sm_scale;
    p.row_sum[panel.first_row + row] = _mm512_reduce_add_ps(_mm512_load_ps(s->sums[row]));
  }
}

template <typename Tiles>
void AttendWithTiles(const AttendParams& p, std::byte* scratch) {
  const int min_rows = p.packed != nullptr ? kMinTileRowsOfCodes : kMinTileRows;
  const bool has_other_keys =
      p.mean.n_pairs > 0 || p.shape.has_one_side ||
      (p.packed != nullptr && (p.packed->codebooks != nullptr || p.packed->rotation.half > 0));
  if (has_other_keys || p.n_rows < min_rows || p.shape.rank_k < kStepDims) {
    if (!ReadsIntegers(p)) return kAttendAvx512Bf16.attend(p, scratch);
    return AttendCodesAvx512(p, Tiles::HasBytes() ? &kByteTilesOf<Tiles> : nullptr, scratch);
  }
  const int first_row = ClearRowsThatSeeNothing(p);
  const int n_rows = p.n_rows - first_row;
  if (n_rows == 0) return;
  // Panels of nearly equal size, so that none has too few rows to fill a tile.
  const int n_panels = (n_rows + kPanelRows - 1) / kPanelRows;
  for (int i = 0; i < n_panels; ++i) {
    const int begin = int64_t{n_rows} * i / n_panels, end = int64_t{n_rows} * (i + 1) / n_panels;
    const int n_tiles = (end - begin + kTileRows - 1) / kTileRows;
    const Panel panel = {.p = &p,
                         .log2_scale = p.sm_scale * kLog2E,
                         .first_row = first_row + begin,
                         .n_rows = end - begin,
                         .tile_rows = (end - begin + n_tiles - 1) / n_tiles,
                         .scratch = reinterpret_cast<Scratch*>(scratch)};
    // Every call: oneDNN's kernels on the same thread configure and release tiles too.
    Tiles::Configure(panel.tile_rows);
    AttendPanel<Tiles>(panel);
  }
  Tiles::Release();
}

}  // namespace
}  // namespace kvlathe
