// Attention with AVX-512 BF16 dots. Tiles of up to 4 rows x 64 tokens (scores) and 4 rows x 64
// dimensions (values) keep their sums in registers: 16 sums hide the latency of a dot, and 4 lines
// plus 4 broadcasts feed 16 dots, which is less than the load ports can do.
#include "cpu/kernels/attend/avx512/attend_avx512.h"

#include "cpu/kernels/attend/attend_isa.h"
#include "cpu/kernels/attend/attend_packed.h"
#include "cpu/kernels/attend/avx512/attend_packed_avx512.h"
#include "cpu/kernels/attend/avx512/plain_blocks_avx512.h"
#include "cpu/kernels/attend/codebook_tiles.h"

namespace kvlathe {
namespace {

constexpr int kTileRows = 4;
constexpr int kBlockLines = kBlockSize / kLanes;

// Rows that go over the blocks together: their o (256 x 128 f32) and q stay in L2 while the blocks
// stream by, each read once per panel.
constexpr int kPanelRows = 256;
// Lines of the next V that a tile which fetches alone asks for while it turns the scores of one row
// into probabilities. The shortest V has 32.
constexpr int kLeadLines = 8;
// Rows that use K of a block before any uses its V: K alone (16 KiB) stays in L1 meanwhile.
constexpr int kGroupRows = 64;

struct Scratch {
  alignas(64) uint16_t probs[kGroupRows][kBlockSize];
  alignas(64) float sums[kPanelRows][kLanes];
  RowState rows[kPanelRows];
};
static_assert(sizeof(Scratch) % 64 == 0 &&
              sizeof(Scratch) + kPackedScratchBytes <= kAttendScratchBytes &&
              sizeof(Scratch) + kPlainBlockBytes <= kAttendScratchBytes &&
              sizeof(Scratch) + kCodebookTileBytes <= kAttendScratchBytes);

// From so many rows on, sealed blocks become plain once for all rows of a panel.
constexpr int kMinPlainRows = 64;

// How a panel reads sealed blocks.
enum class SealedAs {
  kCodes,          // in the dots
  kPlain,          // PlainBlocks
  kCodebookTiles,  // CodebookTiles
};

// The panel that a kernel call works on; `p` is shifted to its first row.
struct Panel {
  const AttendParams* p;
  const uint16_t* q;
  float log2_scale;
  int first_row;
  int n_rows;
  SealedAs sealed_as;
  Scratch* scratch;

  // Behind what every panel needs.
  std::byte* more_scratch() const { return reinterpret_cast<std::byte*>(scratch + 1); }
};

// A block as the tiles of one panel see it.
struct BlockView {
  const std::byte* k;
  const std::byte* v;
  const std::byte* next;  // the block to fetch meanwhile, or null
  int first_entry;
  int prefetch_line;  // the first that the tile at work fetches of each row
};

// While a tile reads a row of up to 4 lines, it fetches kLines of those that lie there in the next
// block; the tiles of a block share the work so that memory is never idle. A tile of one row always
// fetches to L2: it waits for memory so much that L1 fills with what it does not use yet.
template <int kLines, int kRows>
KVL_INLINE void PrefetchLines(const std::byte* from) {
  Unroll<kLines>([&](auto j) {
    if constexpr (kRows == 1) return PrefetchLineToL2(from + 64 * j.value);
    PrefetchLine(from + 64 * j.value);
  });
}

// Scores and probabilities of rows [row, row + kRows) of the panel against one block.
template <int kRows, int kPrefetch>
void ScoreTile(const Panel& panel, const BlockView& block, int row, uint16_t* probs) {
  const AttendParams& p = *panel.p;
  const uint16_t* q = panel.q + (panel.first_row + row) * p.q_stride;
  const std::byte* k = block.k;
  const std::byte* next = kPrefetch > 0 ? block.next + 64 * block.prefetch_line : nullptr;
  __m512 scores[kRows][kBlockLines];
  Unroll<kRows>([&](auto i) {
    Unroll<kBlockLines>([&](auto j) { scores[i.value][j.value] = _mm512_setzero_ps(); });
  });
  for (int pair = 0; pair < p.shape.rank_k / 2; ++pair) {
    __m512bh lines[kBlockLines];
    Unroll<kBlockLines>([&](auto j) { lines[j.value] = LoadLine(k + 64 * j.value); });
    PrefetchLines<kPrefetch, kRows>(next);
    Unroll<kRows>([&](auto i) {
      const __m512bh q_pair = BroadcastPair(q + i.value * p.q_stride + 2 * pair);
      Unroll<kBlockLines>([&](auto j) {
        scores[i.value][j.value] =
            _mm512_dpbf16_ps(scores[i.value][j.value], lines[j.value], q_pair);
      });
    });
    k += 64 * kBlockLines;
    if constexpr (kPrefetch > 0) next += 64 * kBlockLines;
  }
  // The first row of the tile sees the least.
  const int first = panel.first_row + row;
  const bool is_masked = LimitOfRow(p, first) < block.first_entry + kBlockSize;
  // The last one's window begins last.
  const bool is_windowed = BeginOfRow(p, first + kRows - 1) > block.first_entry;
  Unroll<kRows>([&](auto i) {
    if constexpr (kPrefetch == kBlockLines) {
      const std::byte* next_v = block.next + (block.v - block.k);
      PrefetchLines<kLeadLines, kRows>(next_v + 64 * kLeadLines * i.value);
    }
    if (p.score_cap > 0) CapScores(CapOfRow(p, first + i.value), scores[i.value]);
    if (is_masked) {
      MaskScores(LimitOfRow(p, first + i.value) - block.first_entry, scores[i.value]);
    }
    if (is_windowed) {
      MaskFirstScores(BeginOfRow(p, first + i.value) - block.first_entry, scores[i.value]);
    }
    if (p.scores != nullptr) {
      float* to = p.scores + (first + i.value) * p.scores_stride + block.first_entry - p.kv_begin;
      Unroll<kBlockLines>(
          [&](auto j) { _mm512_storeu_ps(to + kLanes * j.value, scores[i.value][j.value]); });
    }
    RowState* state = &panel.scratch->rows[row + i.value];
    float* sums = panel.scratch->sums[row + i.value];
    RaiseRowMax(MaxOfLines(scores[i.value]), panel.log2_scale, state, sums);
    AddProbabilities(scores[i.value], panel.log2_scale, *state, sums, probs + i.value * kBlockSize);
  });
}

// What a tile of values fetches meanwhile: some lines at `from`, the next step_bytes further on, as
// many times as it has pairs of tokens, but at most n_steps times.
struct Fetch {
  const std::byte* from;
  int64_t step_bytes;
  int n_steps;
};

// o[r, 16 * kLines dims] = shrink * o + probs V for the same rows. The block has n_valid entries
// that may be read; the second half of an odd last pair is cleared, whatever it holds.
template <int kRows, int kLines, int kPrefetch>
void ValueTile(const Panel& panel, const BlockView& block, Fetch fetch, int row, int dim,
               int n_valid, const uint16_t* probs) {
  const AttendParams& p = *panel.p;
  float* o = p.o + (panel.first_row + row) * p.o_stride + dim;
  const int64_t step = int64_t{4} * p.shape.rank_v;
  const std::byte* v = block.v + 4 * dim;
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
  const auto take_pair = [&](int pair, auto n_fetched) __attribute__((always_inline)) {
    __m512bh lines[kLines];
    Unroll<kLines>([&](auto j) { lines[j.value] = LoadLine(v + 64 * j.value); });
    PrefetchLines<n_fetched.value, kRows>(fetch.from);
    if constexpr (kLines == 5 && n_fetched.value > 0 && n_fetched.value < 5) {
      if (block.prefetch_line == 0) PrefetchLine(fetch.from + 64 * 4);
    }
    add_pair(pair, lines);
    v += step;
    if constexpr (n_fetched.value > 0) fetch.from += fetch.step_bytes;
  };
  int pair = 0;
  if constexpr (kPrefetch > 0) {
    const int n_fetching = Min(n_valid / 2, fetch.n_steps);
    for (; pair < n_fetching; ++pair) take_pair(pair, Index<kPrefetch>{});
  }
  for (; pair < n_valid / 2; ++pair) take_pair(pair, Index<0>{});
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

// The fetching of a tile that has a share of it.
KVL_INLINE Fetch ShareOfFetching(const BlockView& block, int dim, int n_lines) {
  if (block.next == nullptr) return {};
  return {block.next + (block.v - block.k) + 128 * dim + 64 * block.prefetch_line, 64 * n_lines,
          kBlockSize / 2};
}

// The last rank_v % 64 dimensions.
template <int kRows, int kPrefetch>
void AddLastValues(const Panel& panel, const BlockView& block, int row, int dim, int n_valid,
                   const uint16_t* probs) {
  const int n_lines = (panel.p->shape.rank_v - dim) / kLanes;
  const Fetch fetch = ShareOfFetching(block, dim, n_lines);
  WithCount<3>(n_lines, [&](auto lines) {
    ValueTile<kRows, lines.value, Min(kPrefetch, lines.value)>(panel, block, fetch, row, dim,
                                                               n_valid, probs);
  });
}

// What is left to fetch of the next block.
struct Stream {
  const std::byte* at;
  const std::byte* end;
};

// kLines a pair for one tile.
template <int kLines>
KVL_INLINE Fetch TakeLines(Stream* stream) {
  const std::byte* const from = stream->at;
  const int64_t n_left = (stream->end - from) / (64 * kLines);
  const int n_steps = Min(kBlockSize / 2, static_cast<int>(n_left));
  stream->at += n_steps * 64 * kLines;
  return {from, 64 * kLines, n_steps};
}

// Where the registers do not hold the sums of all rows, the second half of them finds V in L1.
template <int kRows, int kLines>
void AddWideValues(const Panel& panel, const BlockView& block, Stream* stream, int row, int dim,
                   int n_valid, const uint16_t* probs) {
  if constexpr ((kRows + 1) * kLines < 32) {
    const Fetch fetch = TakeLines<kLines>(stream);
    ValueTile<kRows, kLines, kLines>(panel, block, fetch, row, dim, n_valid, probs);
  } else {
    constexpr int kHalf = (kRows + 1) / 2;
    constexpr int kFetched = (kLines + 1) / 2;
    Fetch fetch = TakeLines<kFetched>(stream);
    ValueTile<kHalf, kLines, kFetched>(panel, block, fetch, row, dim, n_valid, probs);
    fetch = TakeLines<kLines - kFetched>(stream);
    ValueTile<kRows - kHalf, kLines, kLines - kFetched>(panel, block, fetch, row + kHalf, dim,
                                                        n_valid, probs + kHalf * kBlockSize);
  }
}

// For a tile that fetches alone: memory, not work, is what it waits for, and memory is fastest when
// V is read in the order in which it lies. ScoreTile fetched the first lines of the next V.
template <int kRows>
void AddValuesInOrder(const Panel& panel, const BlockView& block, int row, int n_valid,
                      const uint16_t* probs) {
  const int rank_v = panel.p->shape.rank_v;
  const int n_lines = rank_v / kLanes;
  const std::byte* next = block.next + (block.v - block.k);
  Stream stream{next + 64 * kLeadLines * kRows, next + 2 * kBlockSize * rank_v};
  for (int line = 0; line < n_lines;) {
    const int n_left = n_lines - line;
    // At most 8, and not so few at last that the latency of their sums stays open.
    const int n = n_left <= 8 ? n_left : Min(8, n_left - 4);
    WithCount<8>(n, [&](auto lines) {
      AddWideValues<kRows, lines.value>(panel, block, &stream, row, kLanes * line, n_valid, probs);
    });
    line += n;
  }
}

// For a tile that fetches a share or nothing.
template <int kRows, int kPrefetch>
void AddValues(const Panel& panel, const BlockView& block, int row, int n_valid,
               const uint16_t* probs) {
  const int rank_v = panel.p->shape.rank_v;
  int dim = 0;
  for (; dim + 64 <= rank_v && rank_v - dim != 80; dim += 64) {
    const Fetch fetch = ShareOfFetching(block, dim, 4);
    ValueTile<kRows, 4, kPrefetch>(panel, block, fetch, row, dim, n_valid, probs);
  }
  // A single line more would leave the latency of its few sums open.
  if (rank_v - dim == 80) {
    const Fetch fetch = ShareOfFetching(block, dim, 5);
    return ValueTile<kRows, 5, kPrefetch>(panel, block, fetch, row, dim, n_valid, probs);
  }
  const int n_lines = (rank_v - dim) / kLanes;
  if (n_lines == 0) return;
  // A tile whose lines lie past the end of these short rows fetches none.
  if (block.prefetch_line >= n_lines) {
    return AddLastValues<kRows, 0>(panel, block, row, dim, n_valid, probs);
  }
  AddLastValues<kRows, kPrefetch>(panel, block, row, dim, n_valid, probs);
}

// Calls f with its two counts as compile-time Index: rows of the tile (1-4), lines that it fetches
// of every row of 4 (0, 1, 2 or 4).
template <typename F>
KVL_INLINE void WithTileShape(int n_rows, int n_prefetch, const F& f) {
  const auto with_rows = [&](auto rows) __attribute__((always_inline)) {
    switch (n_prefetch) {
      case 0:
        return f(rows, Index<0>{});
      case 1:
        return f(rows, Index<1>{});
      case 2:
        return f(rows, Index<2>{});
      default:
        return f(rows, Index<4>{});
    }
  };
  switch (n_rows) {
    case 1:
      return with_rows(Index<1>{});
    case 2:
      return with_rows(Index<2>{});
    case 3:
      return with_rows(Index<3>{});
    default:
      return with_rows(Index<4>{});
  }
}

// Lines that each tile of a panel fetches from every row of 4.
KVL_INLINE int PrefetchShare(int n_tiles) { return n_tiles >= 4 ? 1 : n_tiles >= 2 ? 2 : 4; }

// All rows of the panel from first_row on against one block.
void AttendBlock(const Panel& panel, BlockView block, int first_row) {
  uint16_t* probs = panel.scratch->probs[0];
  const int share = PrefetchShare((panel.n_rows - first_row + kTileRows - 1) / kTileRows);
  const auto share_of = [&](int row) {
    block.prefetch_line = (row - first_row) / kTileRows * share;
    return block.next == nullptr || block.prefetch_line >= kBlockLines ? 0 : share;
  };
  for (int group = first_row; group < panel.n_rows; group += kGroupRows) {
    const int group_end = Min(panel.n_rows, group + kGroupRows);
    for (int row = group; row < group_end; row += kTileRows) {
      const int n = Min(kTileRows, group_end - row);
      WithTileShape(n, share_of(row), [&](auto rows, auto prefetch) {
        ScoreTile<rows.value, prefetch.value>(panel, block, row,
                                              probs + (row - group) * kBlockSize);
      });
    }
    for (int row = group; row < group_end; row += kTileRows) {
      const int n = Min(kTileRows, group_end - row);
      // What the tile's last row sees; the others have probability 0 there.
      const int limit = LimitOfRow(*panel.p, panel.first_row + row + n - 1);
      const int n_valid = Min(kBlockSize, limit - block.first_entry);
      WithTileShape(n, share_of(row), [&](auto rows, auto prefetch) {
        const uint16_t* of_rows = probs + (row - group) * kBlockSize;
        if constexpr (prefetch.value == kBlockLines) {
          AddValuesInOrder<rows.value>(panel, block, row, n_valid, of_rows);
        } else {
          AddValues<rows.value, prefetch.value>(panel, block, row, n_valid, of_rows);
        }
      });
    }
  }
}

SealedAs FormOfSealed(const AttendParams& p) {
  if (p.packed == nullptr) return SealedAs::kCodes;
  if (p.packed->codebooks != nullptr) return SealedAs::kCodebookTiles;
  if (KeySide(p.packed->format.codec).has_signs) return SealedAs::kPlain;
  const bool is_plain =
      p.n_rows >= kMinPlainRows && !p.is_deterministic && p.packed->rotation.half == 0;
  return is_plain ? SealedAs::kPlain : SealedAs::kCodes;
}

void AttendPanel(const Panel& panel) {
  const AttendParams& p = *panel.p;
  Scratch* scratch = panel.scratch;
  for (int row = 0; row < panel.n_rows; ++row) {
    scratch->rows[row] = BeginRowState(p, panel.first_row + row, scratch->sums[row]);
  }
  const int64_t key_bytes = int64_t{2} * kBlockSize * p.shape.rank_k;
  const int kv_end = LimitOfRow(p, panel.first_row + panel.n_rows - 1);
  int first_row = 0;  // the first that sees anything of the block, a multiple of kTileRows
  int entry = FirstEntryToRead(p, panel.first_row);
  const SealedAs form = panel.sealed_as;
  CodebookTiles tiles(p, panel.more_scratch());
  PlainBlocks plain = {&p, reinterpret_cast<float*>(panel.more_scratch())};
  if (p.packed != nullptr && form == SealedAs::kCodes) {
    entry = AttendPackedBlocks({.p = &p,
                                .first_row = panel.first_row,
                                .n_rows = panel.n_rows,
                                .log2_scale = panel.log2_scale,
                                .rows = scratch->rows,
                                .sums = scratch->sums,
                                .scratch = panel.more_scratch()},
                               entry, kv_end);
  }
  for (; entry < kv_end; entry += kBlockSize) {
    while (LimitOfRow(p, panel.first_row + Min(first_row + kTileRows, panel.n_rows) - 1) <= entry) {
      first_row += kTileRows;
    }
    const int block = entry / kBlockSize;
    const std::byte* k = p.blocks[block];
    if (form == SealedAs::kCodebookTiles) k = tiles.Read(block);
    if (form == SealedAs::kPlain) {
      k = plain.Read(block, reinterpret_cast<uint16_t*>(plain.values + kPlainBlockElements));
    }
    const bool has_next = entry + kBlockSize < kv_end && form == SealedAs::kCodes;
    const std::byte* next = has_next ? p.blocks[block + 1] : nullptr;
    AttendBlock(panel, {k, k + key_bytes, next, entry, 0}, first_row);
  }
  for (int row = 0; row < panel.n_rows; ++row) {
    p.row_max[panel.first_row + row] = scratch->rows[row].max * p.sm_scale;
    p.row_sum[panel.first_row + row] = _mm512_reduce_add_ps(_mm512_load_ps(scratch->sums[row]));
  }
}

// From so many rows on, codes of split bits become integers once for all of them; for fewer rows
// they become Bf16 numbers on their way into the dots, which gives a row other bits.
constexpr int kMinIntegerRows = 4;

void Attend(const AttendParams& p, std::byte* scratch) {
  if (ReadsIntegers(p)) return AttendCodesAvx512(p, nullptr, scratch);
  const SealedAs form = FormOfSealed(p);
  const bool reads_codes = p.packed != nullptr && form == SealedAs::kCodes;
  const int panel_rows = reads_codes ? PanelRowsOf(*p.packed) : kPanelRows;
  for (int row = ClearRowsThatSeeNothing(p); row < p.n_rows; row += panel_rows) {
    AttendPanel({.p = &p,
                 .q = static_cast<const uint16_t*>(p.q),
                 .log2_scale = p.sm_scale * kLog2E,
                 .first_row = row,
                 .n_rows = Min(panel_rows, p.n_rows - row),
                 .sealed_as = form,
                 .scratch = reinterpret_cast<Scratch*>(scratch)});
  }
}

}  // namespace

bool ReadsIntegers(const AttendParams& p) {
  if (p.mean.n_pairs > 0 || p.shape.has_one_side) return true;
  if (p.packed == nullptr || p.packed->rotation.half > 0 || p.is_exact) return false;
  return HasSplitBits(*p.packed) && (p.n_rows >= kMinIntegerRows || p.is_deterministic);
}

const AttendKernels kAttendAvx512Bf16 = {Attend, AttendRowsAvx512, AppendBf16};

}  // namespace kvlathe
