// Attention with AVX-512 BF16 dots. Tiles of up to 4 rows x 64 tokens (scores) and 4 rows x 64
// dimensions (values) keep their sums in registers: 16 sums hide the latency of a dot, and 4 lines
// plus 4 broadcasts feed 16 dots, which is less than the load ports can do.
#include "kernels/cpu/attend_avx512.h"

#include "kernels/cpu/attend_isa.h"

namespace kvlathe {
namespace {

constexpr int kTileRows = 4;
constexpr int kBlockLines = kBlockSize / kLanes;

// Rows that go over the blocks together: their o (256 x 128 f32) and q stay in L2 while the blocks
// stream by, each read once per panel.
constexpr int kPanelRows = 256;
// Rows that use K of a block before any uses its V: K alone (16 KiB) stays in L1 meanwhile.
constexpr int kGroupRows = 64;

struct Scratch {
  alignas(64) uint16_t probs[kGroupRows][kBlockSize];
  alignas(64) float sums[kPanelRows][kLanes];
  RowState rows[kPanelRows];
};
static_assert(sizeof(Scratch) <= kAttendScratchBytes);

// The panel that a kernel call works on; `p` is shifted to its first row.
struct Panel {
  const AttendParams* p;
  const uint16_t* q;
  float log2_scale;
  int first_row;
  int n_rows;
  Scratch* scratch;
};

// A block as the tiles of one panel see it.
struct BlockView {
  const std::byte* k;
  const std::byte* v;
  const std::byte* next;  // the block to fetch meanwhile, or null
  int first_entry;
};

// Touches the lines of the next block that lie where this one is being read. L2 holds a whole block
// ahead; L1 would not.
KVL_INLINE void PrefetchLine(const std::byte* line) {
  _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T1);
}

// Scores and probabilities of rows [row, row + kRows) of the panel against one block.
template <int kRows, bool kPrefetch>
void ScoreTile(const Panel& panel, const BlockView& block, int row, uint16_t* probs) {
  const AttendParams& p = *panel.p;
  const uint16_t* q = panel.q + (panel.first_row + row) * p.q_stride;
  const std::byte* k = block.k;
  const std::byte* next = block.next;
  __m512 scores[kRows][kBlockLines];
  Unroll<kRows>([&](auto i) {
    Unroll<kBlockLines>([&](auto j) { scores[i.value][j.value] = _mm512_setzero_ps(); });
  });
  for (int pair = 0; pair < p.shape.rank_k / 2; ++pair) {
    __m512bh lines[kBlockLines];
    Unroll<kBlockLines>([&](auto j) {
      lines[j.value] = LoadLine(k + 64 * j.value);
      if constexpr (kPrefetch) PrefetchLine(next + 64 * j.value);
    });
    Unroll<kRows>([&](auto i) {
      const __m512bh q_pair = BroadcastPair(q + i.value * p.q_stride + 2 * pair);
      Unroll<kBlockLines>([&](auto j) {
        scores[i.value][j.value] =
            _mm512_dpbf16_ps(scores[i.value][j.value], lines[j.value], q_pair);
      });
    });
    k += 64 * kBlockLines;
    if constexpr (kPrefetch) next += 64 * kBlockLines;
  }
  // The first row of the tile sees the least.
  const int first = panel.first_row + row;
  const bool is_masked = LimitOfRow(p, first) < block.first_entry + kBlockSize;
  Unroll<kRows>([&](auto i) {
    if (is_masked) {
      MaskScores(LimitOfRow(p, first + i.value) - block.first_entry, scores[i.value]);
    }
    RowState* state = &panel.scratch->rows[row + i.value];
    float* sums = panel.scratch->sums[row + i.value];
    RaiseRowMax(MaxOfLines(scores[i.value]), panel.log2_scale, state, sums);
    AddProbabilities(scores[i.value], panel.log2_scale, *state, sums, probs + i.value * kBlockSize);
  });
}

// o[r, 16 * kLines dims] = shrink * o + probs V for the same rows. The block has n_valid entries
// that may be read; the second half of an odd last pair is cleared, whatever it holds.
template <int kRows, int kLines, bool kPrefetch>
void ValueTile(const Panel& panel, const BlockView& block, int row, int dim, int n_valid,
               const uint16_t* probs) {
  const AttendParams& p = *panel.p;
  float* o = p.o + (panel.first_row + row) * p.o_stride + dim;
  const int64_t step = int64_t{4} * p.shape.rank_v;
  const std::byte* v = block.v + 4 * dim;
  const std::byte* next = block.next;
  if constexpr (kPrefetch) next += (block.v - block.k) + 4 * dim;
  __m512 sums[kRows][kLines];
  Unroll<kRows>([&](auto i) {
    const __m512 shrink = _mm512_set1_ps(panel.scratch->rows[row + i.value].shrink);
    Unroll<kLines>([&](auto j) {
      sums[i.value][j.value] =
          _mm512_mul_ps(_mm512_loadu_ps(o + i.value * p.o_stride + kLanes * j.value), shrink);
    });
  });
  const auto add_pair = [&](int pair, const __m512bh(&lines)[kLines])
      __attribute__((always_inline)) {
    Unroll<kRows>([&](auto i) {
      const __m512bh weights = BroadcastPair(probs + i.value * kBlockSize + 2 * pair);
      Unroll<kLines>([&](auto j) {
        sums[i.value][j.value] = _mm512_dpbf16_ps(sums[i.value][j.value], lines[j.value], weights);
      });
    });
  };
  for (int pair = 0; pair < n_valid / 2; ++pair) {
    __m512bh lines[kLines];
    Unroll<kLines>([&](auto j) {
      lines[j.value] = LoadLine(v + 64 * j.value);
      if constexpr (kPrefetch) PrefetchLine(next + 64 * j.value);
    });
    add_pair(pair, lines);
    v += step;
    if constexpr (kPrefetch) next += step;
  }
  if (n_valid % 2 != 0) {
    __m512bh lines[kLines];
    Unroll<kLines>([&](auto j) {
      const __m512i line = _mm512_loadu_si512(v + 64 * j.value);
      lines[j.value] =
          reinterpret_cast<__m512bh>(_mm512_and_si512(line, _mm512_set1_epi32(0xffff)));
    });
    add_pair(n_valid / 2, lines);
  }
  Unroll<kRows>([&](auto i) {
    Unroll<kLines>([&](auto j) {
      _mm512_storeu_ps(o + i.value * p.o_stride + kLanes * j.value, sums[i.value][j.value]);
    });
  });
}

template <int kRows, bool kPrefetch>
void AddValues(const Panel& panel, const BlockView& block, int row, int n_valid,
               const uint16_t* probs) {
  const int rank_v = panel.p->shape.rank_v;
  int dim = 0;
  for (; dim + 64 <= rank_v; dim += 64) {
    ValueTile<kRows, 4, kPrefetch>(panel, block, row, dim, n_valid, probs);
  }
  switch ((rank_v - dim) / kLanes) {
    case 1:
      return ValueTile<kRows, 1, kPrefetch>(panel, block, row, dim, n_valid, probs);
    case 2:
      return ValueTile<kRows, 2, kPrefetch>(panel, block, row, dim, n_valid, probs);
    case 3:
      return ValueTile<kRows, 3, kPrefetch>(panel, block, row, dim, n_valid, probs);
  }
}

template <bool kPrefetch>
void ScoreRows(const Panel& panel, const BlockView& block, int row, int n, uint16_t* probs) {
  switch (n) {
    case 1:
      return ScoreTile<1, kPrefetch>(panel, block, row, probs);
    case 2:
      return ScoreTile<2, kPrefetch>(panel, block, row, probs);
    case 3:
      return ScoreTile<3, kPrefetch>(panel, block, row, probs);
    default:
      return ScoreTile<4, kPrefetch>(panel, block, row, probs);
  }
}

template <bool kPrefetch>
void AddValuesToRows(const Panel& panel, const BlockView& block, int row, int n, int n_valid,
                     const uint16_t* probs) {
  switch (n) {
    case 1:
      return AddValues<1, kPrefetch>(panel, block, row, n_valid, probs);
    case 2:
      return AddValues<2, kPrefetch>(panel, block, row, n_valid, probs);
    case 3:
      return AddValues<3, kPrefetch>(panel, block, row, n_valid, probs);
    default:
      return AddValues<4, kPrefetch>(panel, block, row, n_valid, probs);
  }
}

// All rows of the panel from first_row on against one block. The first tile of a pass brings the
// next block, the others find this one in L1 or L2.
void AttendBlock(const Panel& panel, BlockView block, int first_row) {
  uint16_t* probs = panel.scratch->probs[0];
  for (int group = first_row; group < panel.n_rows; group += kGroupRows) {
    const int group_end = Min(panel.n_rows, group + kGroupRows);
    for (int row = group; row < group_end; row += kTileRows) {
      const int n = Min(kTileRows, group_end - row);
      uint16_t* tile_probs = probs + (row - group) * kBlockSize;
      if (row == first_row && block.next != nullptr) {
        ScoreRows<true>(panel, block, row, n, tile_probs);
      } else {
        ScoreRows<false>(panel, block, row, n, tile_probs);
      }
    }
    for (int row = group; row < group_end; row += kTileRows) {
      const int n = Min(kTileRows, group_end - row);
      const uint16_t* tile_probs = probs + (row - group) * kBlockSize;
      // What the tile's last row sees; the others have probability 0 there.
      const int limit = LimitOfRow(*panel.p, panel.first_row + row + n - 1);
      const int n_valid = Min(kBlockSize, limit - block.first_entry);
      if (row == first_row && block.next != nullptr) {
        AddValuesToRows<true>(panel, block, row, n, n_valid, tile_probs);
      } else {
        AddValuesToRows<false>(panel, block, row, n, n_valid, tile_probs);
      }
    }
  }
}

void AttendPanel(const Panel& panel) {
  const AttendParams& p = *panel.p;
  Scratch* scratch = panel.scratch;
  for (int row = 0; row < panel.n_rows; ++row) {
    scratch->rows[row] = {kMinusInfinity, 1};
    _mm512_store_ps(scratch->sums[row], _mm512_setzero_ps());
    ClearRow(p.o + (panel.first_row + row) * p.o_stride, p.shape.rank_v);
  }
  const int64_t key_bytes = int64_t{2} * kBlockSize * p.shape.rank_k;
  const int kv_end = LimitOfRow(p, panel.first_row + panel.n_rows - 1);
  int first_row = 0;  // the first that sees anything of the block, a multiple of kTileRows
  for (int entry = p.kv_begin; entry < kv_end; entry += kBlockSize) {
    while (LimitOfRow(p, panel.first_row + Min(first_row + kTileRows, panel.n_rows) - 1) <= entry) {
      first_row += kTileRows;
    }
    const std::byte* k = p.blocks[entry / kBlockSize];
    const int next_entry = entry + kBlockSize;
    const std::byte* next = next_entry < kv_end ? p.blocks[next_entry / kBlockSize] : nullptr;
    AttendBlock(panel, {k, k + key_bytes, next, entry}, first_row);
  }
  for (int row = 0; row < panel.n_rows; ++row) {
    p.row_max[panel.first_row + row] = scratch->rows[row].max * p.sm_scale;
    p.row_sum[panel.first_row + row] = _mm512_reduce_add_ps(_mm512_load_ps(scratch->sums[row]));
  }
}

void Attend(const AttendParams& p, std::byte* scratch) {
  for (int row = ClearRowsThatSeeNothing(p); row < p.n_rows; row += kPanelRows) {
    AttendPanel({.p = &p,
                 .q = static_cast<const uint16_t*>(p.q),
                 .log2_scale = p.sm_scale * kLog2E,
                 .first_row = row,
                 .n_rows = Min(kPanelRows, p.n_rows - row),
                 .scratch = reinterpret_cast<Scratch*>(scratch)});
  }
}

}  // namespace

const AttendKernels kAttendAvx512Bf16 = {Attend, AttendRowsAvx512, AppendBf16};

}  // namespace kvlathe
