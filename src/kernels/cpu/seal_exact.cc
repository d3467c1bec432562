#include "kernels/cpu/seal_exact.h"

#include <algorithm>
#include <bit>

namespace kvlathe {
namespace {

constexpr int TokenOf(SparseEntry entry) { return entry.place & (kBlockSize - 1); }
constexpr int ChannelOf(SparseEntry entry) { return entry.place >> 6; }

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
SparseEntry* AllKeyEntries(const HeadRun& run) {
  return reinterpret_cast<SparseEntry*>(run.head().record + KeySparseOffset(run.shape));
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
SparseEntry* AllValueEntries(const HeadRun& run) {
  return reinterpret_cast<SparseEntry*>(run.job->layer_record + ValueSparseOffset(run.shape));
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

void WriteKeyEntries(const HeadRun& run, int block_idx, SealWorkspace* ws) {
  const int rank = run.shape.rank_k;
  run.kernels->find_candidates(ws->x, KeyGrid(rank), ws->tail_high, ws->tail_low, ws->masks);
  std::fill_n(ws->found, rank, 0);
  ScatterMasks(
      KeyGrid(rank), [&](int channel, int token) { ws->found[channel] |= uint64_t{1} << token; },
      ws);
  uint32_t* const ends = KeyEnds(run);
  uint32_t end = block_idx == 0 ? 0 : ends[block_idx - 1];
  SparseEntry* const entries = AllKeyEntries(run);
  for (int channel = 0; channel < rank; ++channel) {
    for (uint64_t tokens = ws->found[channel]; tokens != 0; tokens &= tokens - 1) {
      const int token = std::countr_zero(tokens);
      const float value = ws->x[KeyOffset(token, channel)];
      if (!TakeIfExact(value, channel, ws)) continue;
      entries[end++] = {SparsePlace(token, channel), ToBf16(value).bits};
    }
  }
  ends[block_idx] = end;
}

void WriteValueEntries(const HeadRun& run, int block_idx, SealWorkspace* ws) {
  const int rank = run.shape.rank_v;
  run.kernels->find_candidates(ws->x, ValueGrid(rank), ws->tail_high, ws->tail_low, ws->masks);
  std::fill_n(ws->found, rank, 0);
  ScatterMasks(
      ValueGrid(rank), [&](int token, int channel) { ws->found[channel] |= uint64_t{1} << token; },
      ws);
  uint32_t end = ValueEntriesBegin(run, block_idx);
  SparseEntry* const entries = AllValueEntries(run);
  for (int channel = 0; channel < rank; ++channel) {
    for (uint64_t tokens = ws->found[channel]; tokens != 0; tokens &= tokens - 1) {
      const int token = std::countr_zero(tokens);
      const float value = ws->x[ValueWord(rank, token, channel)];
      if (!TakeIfExact(value, token, ws)) continue;
      entries[end++] = {SparsePlace(token, channel), ToBf16(value).bits};
    }
  }
  ValueEnds(run, block_idx)[run.head_idx] = end;
}

std::span<const SparseEntry> KeyEntries(const HeadRun& run, int block_idx) {
  if (run.shape.n_key_entries() == 0) return {};
  const uint32_t* ends = KeyEnds(run);
  const uint32_t begin = block_idx == 0 ? 0 : ends[block_idx - 1];
  return {AllKeyEntries(run) + begin, ends[block_idx] - begin};
}

std::span<const SparseEntry> ValueEntries(const HeadRun& run, int block_idx) {
  if (run.shape.value_outliers() == 0) return {};
  const uint32_t begin = ValueEntriesBegin(run, block_idx);
  return {AllValueEntries(run) + begin, ValueEnds(run, block_idx)[run.head_idx] - begin};
}

void WriteKeyCodes(std::span<const SparseEntry> entries, const PackedSide& side, std::byte* codes) {
  for (const SparseEntry& e : entries) {
    WriteCode(codes, side.bits, KeyCodePlace(side.bits, TokenOf(e), ChannelOf(e)),
              CodeOfExact(side));
  }
}

void WriteValueCodes(std::span<const SparseEntry> entries, const PackedSide& side, int rank,
                     std::byte* codes) {
  for (const SparseEntry& e : entries) {
    WriteCode(codes, side.bits, ValueCodePlace(side.bits, rank, TokenOf(e), ChannelOf(e)),
              CodeOfExact(side));
  }
}

void SetKeyEntries(std::span<const SparseEntry> entries, float value, float* x) {
  for (const SparseEntry& e : entries) x[KeyOffset(TokenOf(e), ChannelOf(e))] = value;
}

void SetValueEntries(std::span<const SparseEntry> entries, int rank, float value, float* x) {
  for (const SparseEntry& e : entries) x[ValueWord(rank, TokenOf(e), ChannelOf(e))] = value;
}

}  // namespace kvlathe
