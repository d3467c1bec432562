#include "cpu/kernels/seal/seal_exact.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "cpu/kernels/attend/exact_entries.h"

namespace kvlathe {
namespace {

int64_t ValueWord(int rank, int token, int channel) {
  return ValueOffset({.rank_v = rank}, token, channel);
}

// The ends of the two columns that ws->columns hold.
void FindTailsOfPair(const HeadRun& run, int64_t n, int64_t n_outliers, int pair,
                     SealWorkspace* ws) {
  for (int j = 0; j < 2; ++j) {
    const Tails tails = run.kernels->find_tails(run.row_type, ws->columns[j], n, n_outliers);
    const int column = 2 * pair + j;
    ws->tail_high[column] = tails.high;
    ws->tail_low[column] = tails.low;
    ws->high_ties[column] = tails.high_ties;
    ws->low_ties[column] = tails.low_ties;
  }
}

// Appends the keys of n_pairs pairs of elements to ws->columns.
void Gather(const HeadRun& run, const std::byte* from, int64_t n_pairs, int64_t first,
            SealWorkspace* ws) {
  const int64_t offset = first * SizeOf(run.row_type);
  run.kernels->gather_columns(run.row_type, from, n_pairs, ws->columns[0] + offset,
                              ws->columns[1] + offset);
}

// Whether the next element of a column belongs to one of its ends.
bool TakeIfExact(float value, int column, SealWorkspace* ws) {
  if (value > ws->tail_high[column] || value < ws->tail_low[column]) return true;
  if (value == ws->tail_high[column] && ws->high_ties[column] > 0) {
    --ws->high_ties[column];
    return true;
  }
  if (value == ws->tail_low[column] && ws->low_ties[column] > 0) {
    --ws->low_ties[column];
    return true;
  }
  return false;
}

// Turns masks by lines into tokens per channel.
template <typename Place>
void ScatterMasks(PairGrid grid, const Place& place, SealWorkspace* ws) {
  const uint32_t* mask = ws->masks;
  for (int pair = 0; pair < grid.n_pairs; ++pair) {
    for (int line = 0; line < grid.n_lines; ++line, ++mask) {
      for (uint32_t bits = *mask; bits != 0; bits &= bits - 1) {
        const int word = std::countr_zero(bits);
        place(2 * pair + word % 2, 16 * line + word / 2);
      }
    }
  }
}

uint32_t* KeyEnds(const HeadRun& run) {
  return reinterpret_cast<uint32_t*>(run.head().record + KeySparseEndsOffset(run.shape));
}
uint32_t KeyEntriesBegin(const HeadRun& run, int block_idx) {
  return block_idx == 0 ? 0 : KeyEnds(run)[block_idx - 1];
}
// [heads]
uint32_t* ValueEnds(const HeadRun& run, int block_idx) {
  return reinterpret_cast<uint32_t*>(run.job->layer_record + ValueSparseEndsOffset(run.shape)) +
         int64_t{block_idx} * run.shape.n_kv_heads;
}
// Blocks have the same number of entries each, so that they can be written in any order.
uint32_t ValueEntriesBegin(const HeadRun& run, int block_idx) {
  return run.head_idx == 0 ? block_idx * 2u * run.shape.value_outliers() * kBlockSize
                           : ValueEnds(run, block_idx)[run.head_idx - 1];
}

// The entries of a block of K, or of V of a head, in the objects.
struct Lists {
  std::byte* counts;
  bool has_wide_counts;
  int n_lanes;
  uint16_t* differences;
  uint8_t* places;

  LaneCounts lane_counts() const { return {counts, has_wide_counts, n_lanes}; }
};

Lists KeyLists(const HeadRun& run, int block_idx) {
  const PackedShape& s = run.shape;
  std::byte* const record = run.head().record;
  const uint32_t begin = KeyEntriesBegin(run, block_idx);
  return {run.head().packed[block_idx] + KeyCountOffset(s), HasWideKeyCounts(s), kBlockSize,
          reinterpret_cast<uint16_t*>(record + KeySparseOffset(s)) + begin,
          reinterpret_cast<uint8_t*>(record + KeyPlacesOffset(s)) + begin};
}

Lists ValueLists(const HeadRun& run, int block_idx) {
  const PackedShape& s = run.shape;
  std::byte* const record = run.job->layer_record;
  const uint32_t begin = ValueEntriesBegin(run, block_idx);
  return {run.head().packed[block_idx] + ValueCountOffset(s), false, s.rank_v,
          reinterpret_cast<uint16_t*>(record + ValueSparseOffset(s)) + begin,
          reinterpret_cast<uint8_t*>(record + ValuePlacesOffset(s)) + begin};
}

// Places a lane of K or V may have.
constexpr int kLanePlaces = std::max(kBlockSize, kMaxPackedRank);

void AddEntry(int lane, int place, SealWorkspace* ws) {
  ws->lane_places[lane * kLanePlaces + ws->lane_counts[lane]++] = static_cast<uint8_t>(place);
}

// Counts and places of what the lanes of ws have; returns how many entries that are.
uint32_t StoreLanes(const Lists& to, const SealWorkspace& ws) {
  for (int lane = 0; lane < to.n_lanes; ++lane) {
    const auto count = static_cast<uint16_t>(ws.lane_counts[lane]);
    if (to.has_wide_counts) {
      std::memcpy(to.counts + 2 * lane, &count, sizeof(count));
    } else {
      to.counts[lane] = static_cast<std::byte>(count);
    }
  }
  ExactLanes lanes;
  ListLanes(to.lane_counts(), &lanes);
  int next[kLanePlaces] = {};
  for (int i = 0; i < lanes.n; ++i) {
    const int lane = lanes.lanes[i];
    to.places[i] = ws.lane_places[lane * kLanePlaces + next[lane]++];
  }
  return static_cast<uint32_t>(lanes.n);
}

// f(lane, place, index) for the entries that are listed.
template <typename F>
void ForEachListed(const Lists& lists, const F& f) {
  ExactLanes lanes;
  ListLanes(lists.lane_counts(), &lanes);
  for (int i = 0; i < lanes.n; ++i) f(lanes.lanes[i], lists.places[i], i);
}

// Where the losses of a block wait. Entries of K are numbered over the run; a block of V of one
// head has at most this many.
int64_t MostValueEntries(const PackedShape& s) {
  return int64_t{kBlockSize} * std::min(s.rank_v, 2 * s.value_outliers());
}
float* LossesOf(const HeadRun& run, bool is_key, int block_idx, SealWorkspace* ws) {
  return ws->losses +
         (is_key ? KeyEntriesBegin(run, block_idx) : block_idx * MostValueEntries(run.shape));
}

void TakeLoss(const HeadRun& run, float* residual, uint16_t* difference, float* waiting) {
  if (run.shape.lowrank() > 0) {
    *waiting = *residual;
  } else {
    *difference = ToBf16(*residual).bits;
  }
  *residual = 0;
}

}  // namespace

void FindKeyTails(const HeadRun& run, SealWorkspace* ws) {
  const PackedShape& s = run.shape;
  const int64_t pair_bytes = int64_t{2} * kBlockSize * SizeOf(run.row_type);
  for (int pair = 0; pair < s.rank_k / 2; ++pair) {
    for (int b = 0; b < s.n_blocks; ++b) {
      Gather(run, run.keys(b) + pair * pair_bytes, kBlockSize, int64_t{b} * kBlockSize, ws);
    }
    FindTailsOfPair(run, s.n_tokens(), s.key_outliers(), pair, ws);
  }
}

void FindValueTails(std::span<const HeadRun> runs, int block_idx, SealWorkspace* ws) {
  for (int pair = 0; pair < kBlockSize / 2; ++pair) {
    int64_t first = 0;
    for (const HeadRun& run : runs) {
      const int rank = run.shape.rank_v;
      const int64_t pair_bytes = int64_t{2} * rank * SizeOf(run.row_type);
      Gather(run, run.values(block_idx) + pair * pair_bytes, rank, first, ws);
      first += rank;
    }
    FindTailsOfPair(runs[0], first, runs[0].shape.value_outliers(), pair, ws);
  }
}

void ListKeyEntries(const HeadRun& run, int block_idx, SealWorkspace* ws) {
  const int rank = run.shape.rank_k;
  run.kernels->find_candidates(ws->x, KeyGrid(rank), ws->tail_high, ws->tail_low, ws->masks);
  std::fill_n(ws->found, rank, 0);
  ScatterMasks(
      KeyGrid(rank), [&](int channel, int token) { ws->found[channel] |= uint64_t{1} << token; },
      ws);
  ClearLanes(kBlockSize, ws);
  for (int channel = 0; channel < rank; ++channel) {
    for (uint64_t tokens = ws->found[channel]; tokens != 0; tokens &= tokens - 1) {
      const int token = std::countr_zero(tokens);
      const float value = ws->x[KeyOffset(token, channel)];
      if (TakeIfExact(value, channel, ws)) AddKeyEntry(token, channel, ws);
    }
  }
  StoreKeyLists(run, block_idx, ws);
}

void ListValueEntries(const HeadRun& run, int block_idx, SealWorkspace* ws) {
  const int rank = run.shape.rank_v;
  run.kernels->find_candidates(ws->x, ValueGrid(rank), ws->tail_high, ws->tail_low, ws->masks);
  std::fill_n(ws->found, rank, 0);
  ScatterMasks(
      ValueGrid(rank), [&](int token, int channel) { ws->found[channel] |= uint64_t{1} << token; },
      ws);
  ClearLanes(rank, ws);
  for (int channel = 0; channel < rank; ++channel) {
    for (uint64_t tokens = ws->found[channel]; tokens != 0; tokens &= tokens - 1) {
      const int token = std::countr_zero(tokens);
      const float value = ws->x[ValueWord(rank, token, channel)];
      if (TakeIfExact(value, token, ws)) AddEntry(channel, token, ws);
    }
  }
  ValueEnds(run, block_idx)[run.head_idx] =
      ValueEntriesBegin(run, block_idx) + StoreLanes(ValueLists(run, block_idx), *ws);
}

void ClearLanes(int n_lanes, SealWorkspace* ws) { std::fill_n(ws->lane_counts, n_lanes, 0); }

void AddKeyEntry(int token, int channel, SealWorkspace* ws) { AddEntry(token, channel, ws); }

void StoreKeyLists(const HeadRun& run, int block_idx, SealWorkspace* ws) {
  KeyEnds(run)[block_idx] =
      KeyEntriesBegin(run, block_idx) + StoreLanes(KeyLists(run, block_idx), *ws);
}

void SetKeyEntries(const HeadRun& run, int block_idx, float value, float* x) {
  if (run.shape.n_key_entries() == 0) return;
  ForEachListed(KeyLists(run, block_idx),
                [&](int token, int channel, int) { x[KeyOffset(token, channel)] = value; });
}

void SetValueEntries(const HeadRun& run, int block_idx, float value, float* x) {
  if (run.shape.n_value_entries() == 0) return;
  const int rank = run.shape.rank_v;
  ForEachListed(ValueLists(run, block_idx),
                [&](int channel, int token, int) { x[ValueWord(rank, token, channel)] = value; });
}

void TakeKeyLosses(const HeadRun& run, int block_idx, float* residual, SealWorkspace* ws) {
  if (run.shape.n_key_entries() == 0) return;
  const Lists lists = KeyLists(run, block_idx);
  float* const losses = LossesOf(run, /*is_key=*/true, block_idx, ws);
  ForEachListed(lists, [&](int token, int channel, int i) {
    TakeLoss(run, residual + KeyOffset(token, channel), lists.differences + i, losses + i);
  });
}

void TakeValueLosses(const HeadRun& run, int block_idx, float* residual, SealWorkspace* ws) {
  if (run.shape.n_value_entries() == 0) return;
  const Lists lists = ValueLists(run, block_idx);
  const int rank = run.shape.rank_v;
  float* const losses = LossesOf(run, /*is_key=*/false, block_idx, ws);
  ForEachListed(lists, [&](int channel, int token, int i) {
    TakeLoss(run, residual + ValueWord(rank, token, channel), lists.differences + i, losses + i);
  });
}

int64_t WaitingLosses(const PackedShape& s) {
  if (s.lowrank() == 0) return 0;
  return std::max(s.n_key_entries(), s.n_blocks * MostValueEntries(s));
}

void WriteRepairedDifferences(const HeadRun& run, bool is_key, SealWorkspace* ws) {
  const PackedShape& s = run.shape;
  const int64_t n_tokens = s.n_tokens(), rank = is_key ? s.rank_k : s.rank_v;
  for (int b = 0; b < s.n_blocks; ++b) {
    const Lists lists = is_key ? KeyLists(run, b) : ValueLists(run, b);
    const float* const losses = LossesOf(run, is_key, b, ws);
    ForEachListed(lists, [&](int lane, int place, int i) {
      const int64_t token = int64_t{b} * kBlockSize + (is_key ? lane : place);
      const int channel = is_key ? place : lane;
      double rest = losses[i];
      for (int f = 0; f < s.lowrank(); ++f) {
        rest -= double{ws->q[f * n_tokens + token]} * ws->p[f * rank + channel];
      }
      lists.differences[i] = ToBf16(static_cast<float>(rest)).bits;
    });
  }
}

}  // namespace kvlathe
