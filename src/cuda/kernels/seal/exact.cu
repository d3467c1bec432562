#include <cmath>

#include "cuda/kernels/seal/bisection.cuh"
#include "cuda/kernels/seal/block_lines.cuh"
#include "cuda/kernels/seal/exact.h"
#include "cuda/kernels/seal/f16.cuh"
#include "cuda/simt/launch.h"

namespace kvlathe::cuda {
namespace {

using namespace simt;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

// --- The ends of columns ---

// Two columns side by side, of which a warp sees a line at a time: lane i has an element of column
// i % 2, and within a line elements are in the order of the lanes.

// A pair of channels of K over the run.
struct KeyColumns {
  const SealKernelParams& p;
  const SealedHeadRun& head;
  int pair;

  KVL_DEVICE int n_lines() const { return 4 * head.n_blocks; }
  KVL_DEVICE int n_outliers() const { return head.k.repairs.n_outliers; }
  KVL_DEVICE float Number(int i) const {
    return BlockLines(p, head, /*of_keys=*/true, i / 4).Number(pair, i % 4);
  }
  KVL_DEVICE uint32_t* Mask(int i) const {
    return head.k.repairs.exact + int64_t{i / 4} * 2 * head.k.rank + 4 * pair + i % 4;
  }
};

// A pair of tokens of V over the channels of all heads of the layer.
struct ValueColumns {
  const SealKernelParams& p;
  const SealedHeadRun* heads;
  int block, pair;

  struct Line {
    int head, line;
  };
  KVL_DEVICE Line LineOf(int i) const {
    int head = 0;
    for (; i >= heads[head].v.rank / 16; ++head) i -= heads[head].v.rank / 16;
    return {head, i};
  }
  KVL_DEVICE int n_lines() const {
    int n = 0;
    for (int h = 0; h < heads[0].n_of_layer; ++h) n += heads[h].v.rank / 16;
    return n;
  }
  KVL_DEVICE int n_outliers() const { return heads[0].v.repairs.n_outliers; }
  KVL_DEVICE float Number(int i) const {
    const Line at = LineOf(i);
    return BlockLines(p, heads[at.head], /*of_keys=*/false, block).Number(pair, at.line);
  }
  KVL_DEVICE uint32_t* Mask(int i) const {
    const Line at = LineOf(i);
    const SealedSide& side = heads[at.head].v;
    return side.repairs.exact + int64_t{block} * 2 * side.rank + pair * (side.rank / 16) + at.line;
  }
};

// The sum over the lanes of the same column.
KVL_DEVICE int SumOfColumn(int x) {
  for (int step = 16; step > 1; step /= 2) x += ShuffleXor(x, step);
  return x;
}

// The ends of the lane's column: what lies above `high` or below `low`, and the first so many of
// what equals them.
struct Tails {
  float high, low;
  int high_ties, low_ties;
};

template <typename Columns>
KVL_DEVICE Tails FindTails(const Columns& columns, int n_lower_bits) {
  const int n_lines = columns.n_lines(), n = 16 * n_lines, n_outliers = columns.n_outliers();
  const int64_t beyond = int64_t{1} << (31 - n_lower_bits);
  Bisection top = {n_outliers, -beyond, beyond, n, 0};
  Bisection bottom = {n - n_outliers + 1, -beyond, beyond, n, 0};
  for (int round = 0; round < 32 - n_lower_bits; ++round) {
    const int64_t a = top.middle(), b = bottom.middle();
    int n_above_a = 0, n_above_b = 0;
    for (int i = 0; i < n_lines; ++i) {
      const int32_t key = OrderedKey(columns.Number(i), n_lower_bits);
      n_above_a += key >= a ? 1 : 0;
      n_above_b += key >= b ? 1 : 0;
    }
    top.Narrow(SumOfColumn(n_above_a));
    bottom.Narrow(SumOfColumn(n_above_b));
  }
  return {ValueOf(top.low, n_lower_bits), ValueOf(bottom.low, n_lower_bits),
          n_outliers - top.n_high, n_outliers - (n - bottom.n_low)};
}

// Whether the lane is one of the first *n_left lanes of its column that ask; takes those off.
KVL_DEVICE bool TakesTie(bool asks, int* n_left) {
  const uint32_t of_column = 0x55555555u << (Lane() % 2);
  const uint32_t asking = Ballot(asks) & of_column;
  const bool takes = asks && PopCount(asking & ((1u << Lane()) - 1)) < *n_left;
  const int n_asking = PopCount(asking);
  *n_left -= n_asking < *n_left ? n_asking : *n_left;
  return takes;
}

template <typename Columns>
KVL_DEVICE void MarkColumns(const Columns& columns, RowKind kind) {
  Tails tails = FindTails(columns, kind == RowKind::kBf16 ? 16 : 0);
  for (int i = 0; i < columns.n_lines(); ++i) {
    const float x = columns.Number(i);
    const bool is_beyond = x > tails.high || x < tails.low;
    const bool is_high = TakesTie(!is_beyond && x == tails.high, &tails.high_ties);
    const bool is_low = TakesTie(!is_beyond && !is_high && x == tails.low, &tails.low_ties);
    const uint32_t mask = Ballot(is_beyond || is_high || is_low);
    if (Lane() == 0) *columns.Mask(i) = mask;
  }
}

// A warp takes a pair of channels.
KVL_KERNEL(kThreads) MarkKeysKernel(KVL_PARAMS(ExactParams) p) {
  const SealedHeadRun& head = p.all.heads[BlockIdx()];
  const int pair = BlockIdxY() * kWarps + WarpIdx();
  if (pair < head.k.rank / 2 && head.k.repairs.n_outliers > 0) {
    MarkColumns(KeyColumns{p.all, head, pair}, p.all.row_kind);
  }
}

// A warp takes a pair of tokens.
KVL_KERNEL(kThreads) MarkValuesKernel(KVL_PARAMS(ExactParams) p) {
  const SealedPlace place = p.layer_places[BlockIdx()];
  const SealedHeadRun* const heads = p.all.heads + place.head;
  if (heads[0].v.repairs.n_outliers == 0) return;
  const int pair = BlockIdxY() * kWarps + WarpIdx();
  MarkColumns(ValueColumns{p.all, heads, place.block, pair}, p.all.row_kind);
}

// --- What lies farthest out by the ranges of the model ---

// The magnitude of the lane's number of K, in units of its channel.
KVL_DEVICE float Magnitude(const ExactParams& p, const SealedHeadRun& head, int block, int pair,
                           int line) {
  const BlockLines lines(p.all, head, /*of_keys=*/true, block);
  const float* const scales = head.model.key_scales + 2 * pair + Lane() % 2;
  return fabsf((SealedNumber(head, lines, block, pair, line) - scales[head.k.rank]) / scales[0]);
}

// The sum over a block of threads; `shared` has a number for each warp.
KVL_DEVICE int SumOfBlock(int x, int* shared) {
  for (int step = 16; step > 0; step /= 2) x += ShuffleXor(x, step);
  SyncBlock();
  if (Lane() == 0) shared[WarpIdx()] = x;
  SyncBlock();
  int sum = 0;
  for (int i = 0; i < kWarps; ++i) sum += shared[i];
  return sum;
}

// How many magnitudes of a run are at least that of a key.
KVL_DEVICE int CountReaching(const ExactParams& p, const SealedHeadRun& head, int64_t key,
                             int* shared) {
  const int n_lines = 2 * head.k.rank;  // of a block
  int n = 0;
  for (int i = WarpIdx(); i < head.n_blocks * n_lines; i += kWarps) {
    const int at = i % n_lines;
    n += std::bit_cast<int32_t>(Magnitude(p, head, i / n_lines, at / 4, at % 4)) >= key ? 1 : 0;
  }
  return SumOfBlock(n, shared);
}

// Marks a pair of channels of a block, the first channel first; takes off n_ties what equals
// `most`.
KVL_DEVICE void MarkPair(const ExactParams& p, const SealedHeadRun& head, int block, int pair,
                         float most, int* n_ties) {
  uint32_t beyond[4], ties[4];
  for (int line = 0; line < 4; ++line) {
    const float x = Magnitude(p, head, block, pair, line);
    beyond[line] = Ballot(x > most);
    ties[line] = Ballot(x == most);
  }
  for (int channel = 0; channel < 2; ++channel) {
    for (int line = 0; line < 4; ++line) {
      for (uint32_t left = ties[line] & 0x55555555u << channel; left != 0 && *n_ties > 0;
           left &= left - 1, --*n_ties) {
        beyond[line] |= left & (0u - left);
      }
    }
  }
  for (int line = 0; line < 4; ++line) {
    if (Lane() == 0) {
      head.k.repairs.exact[int64_t{block} * 2 * head.k.rank + 4 * pair + line] = beyond[line];
    }
  }
}

// A block of threads takes a head; `shared` has a number for each warp.
KVL_KERNEL(kThreads) MarkFarthestKernel(KVL_PARAMS(ExactParams) p) {
  const SealedHeadRun& head = p.all.heads[BlockIdx()];
  if (head.k.repairs.exact == nullptr) return;
  auto* const shared = reinterpret_cast<int*>(Shared());
  // Floats of one sign are in the order of their bits.
  Bisection top = {head.model.n_key_entries, 0, int64_t{1} << 31,
                   head.n_blocks * kBlockSize * head.k.rank, 0};
  for (int round = 0; round < 31; ++round) {
    top.Narrow(CountReaching(p, head, top.middle(), shared));
  }
  if (WarpIdx() != 0) return;
  const float most = std::bit_cast<float>(static_cast<int32_t>(top.low));
  int n_ties = head.model.n_key_entries - top.n_high;
  for (int block = 0; block < head.n_blocks; ++block) {
    for (int pair = 0; pair < head.k.rank / 2; ++pair) {
      MarkPair(p, head, block, pair, most, &n_ties);
    }
  }
}

// --- Where the entries of blocks end ---

// How many entries a block of a side has, by a warp.
KVL_DEVICE uint32_t CountOf(const SealedSide& side, int block) {
  int n = 0;
  for (int i = Lane(); i < 2 * side.rank; i += kWarp) {
    n += PopCount(side.repairs.exact[int64_t{block} * 2 * side.rank + i]);
  }
  for (int step = 16; step > 0; step /= 2) n += ShuffleXor(n, step);
  return static_cast<uint32_t>(n);
}

// A warp takes a head.
KVL_KERNEL(kWarp) KeyEndsKernel(KVL_PARAMS(ExactParams) p) {
  const SealedHeadRun& head = p.all.heads[BlockIdx()];
  if (head.k.repairs.exact == nullptr) return;
  auto* const ends = reinterpret_cast<uint32_t*>(head.record + head.k.repairs.ends_offset);
  uint32_t end = 0;
  for (int block = 0; block < head.n_blocks; ++block) {
    end += CountOf(head.k, block);
    if (Lane() == 0) ends[block] = end;
  }
}

KVL_DEVICE uint32_t* ValueEnds(const SealedHeadRun& first, int block) {
  return reinterpret_cast<uint32_t*>(first.layer_record + first.v.repairs.ends_offset) +
         int64_t{block} * first.n_of_layer;
}
// Blocks have the same number of entries each.
KVL_DEVICE uint32_t ValueBegin(const SealedHeadRun& head, int block) {
  return static_cast<uint32_t>(block) * 2u * static_cast<uint32_t>(head.v.repairs.n_outliers) *
         kBlockSize;
}

// A warp takes a block of a layer.
KVL_KERNEL(kWarp) ValueEndsKernel(KVL_PARAMS(ExactParams) p) {
  const SealedPlace place = p.layer_places[BlockIdx()];
  const SealedHeadRun* const heads = p.all.heads + place.head;
  if (heads[0].v.repairs.n_outliers == 0) return;
  uint32_t end = ValueBegin(heads[0], place.block);
  for (int h = 0; h < heads[0].n_of_layer; ++h) {
    end += CountOf(heads[h].v, place.block);
    if (Lane() == 0) ValueEnds(heads[0], place.block)[h] = end;
  }
}

// --- Lists ---

// Exact entries lie in lanes (packed_layout.h): tokens of K, channels of V.
struct Lanes {
  const SealKernelParams& p;
  const SealedHeadRun& head;
  int head_idx, block;
  bool is_key;

  KVL_DEVICE const SealedSide& side() const { return is_key ? head.k : head.v; }
  KVL_DEVICE int n_lanes() const { return is_key ? kBlockSize : head.v.rank; }
  KVL_DEVICE int n_pairs() const { return is_key ? head.k.rank / 2 : kBlockSize / 2; }
  // The line and the word in it of member `of_pair` of a pair, in a lane.
  KVL_DEVICE int LineAt(int lane, int pair) const {
    return pair * (is_key ? kBlockSize / 16 : head.v.rank / 16) + lane / 16;
  }
  KVL_DEVICE int WordAt(int lane, int of_pair) const { return lane % 16 * 2 + of_pair; }
  // The bits of both members of a pair.
  KVL_DEVICE uint32_t BitsOf(int lane, int pair) const {
    const int64_t at = int64_t{block} * 2 * side().rank + LineAt(lane, pair);
    return side().repairs.exact[at] >> (lane % 16 * 2) & 3u;
  }
  KVL_DEVICE std::byte* record() const { return is_key ? head.record : head.layer_record; }
  // Of the block's entries in the record.
  KVL_DEVICE uint32_t Begin() const {
    if (is_key) {
      const auto* const ends =
          reinterpret_cast<const uint32_t*>(record() + side().repairs.ends_offset);
      return block == 0 ? 0 : ends[block - 1];
    }
    const int in_layer = head_idx - head.first_of_layer;
    const SealedHeadRun& first = p.heads[head.first_of_layer];
    return in_layer == 0 ? ValueBegin(first, block) : ValueEnds(first, block)[in_layer - 1];
  }
};

KVL_DEVICE int Lower(int a, int b) { return a < b ? a : b; }

// Where entry i of a lane stands among those of the block: of sixteen lanes the first two entries
// of each come first, then the next two of each that has more.
KVL_DEVICE int EntryPlace(const int* counts, int lane, int i) {
  const int first = lane / 16 * 16, round = i / 2 * 2;
  int at = i % 2;
  for (int l = 0; l < first; ++l) at += counts[l];
  for (int l = first; l < first + 16; ++l) at += Lower(counts[l], round);
  for (int l = first; l < lane; ++l) {
    const int left = counts[l] - round;
    at += left < 0 ? 0 : Lower(left, 2);
  }
  return at;
}

// What is missing at an entry when the factors, as they are stored, have been added.
KVL_DEVICE float Missing(const Lanes& lanes, float loss, int lane, int place) {
  const SealedSide& side = lanes.side();
  const int token = lanes.is_key ? lane : place, channel = lanes.is_key ? place : lane;
  const auto* const a =
      reinterpret_cast<const uint16_t*>(lanes.head.packed[lanes.block] + side.repairs.a_offset);
  const auto* const b =
      reinterpret_cast<const uint16_t*>(lanes.head.record + side.repairs.b_offset);
  double rest = loss;
  for (int f = 0; f < side.repairs.lowrank; ++f) {
    rest -= static_cast<double>(NumberOfF16(a[f * kBlockSize + token])) *
            static_cast<double>(NumberOfF16(b[f * side.rank + channel]));
  }
  return static_cast<float>(rest);
}

KVL_DEVICE void StoreLane(const Lanes& lanes, const int* counts, int lane) {
  const SealedRepairs& repairs = lanes.side().repairs;
  const uint32_t begin = lanes.Begin();
  auto* const differences =
      reinterpret_cast<uint16_t*>(lanes.record() + repairs.difference_offset) + begin;
  std::byte* const places = lanes.record() + repairs.place_offset + begin;
  int i = 0;
  for (int pair = 0; pair < lanes.n_pairs(); ++pair) {
    const uint32_t bits = lanes.BitsOf(lane, pair);
    for (int of_pair = 0; of_pair < 2; ++of_pair) {
      if ((bits >> of_pair & 1u) == 0) continue;
      const int at = EntryPlace(counts, lane, i++), place = 2 * pair + of_pair;
      const int64_t line = int64_t{lanes.block} * 2 * lanes.side().rank + lanes.LineAt(lane, pair);
      const float loss = repairs.residual[line * 32 + lanes.WordAt(lane, of_pair)];
      places[at] = static_cast<std::byte>(place);
      differences[at] = static_cast<uint16_t>(Bf16OfFloat(Missing(lanes, loss, lane, place)));
    }
  }
}

// A thread takes a lane; `shared` has the counts of all lanes.
KVL_KERNEL(kThreads) ListKernel(KVL_PARAMS(ExactParams) p) {
  const SealedPlace place = p.all.places[BlockIdx()];
  const SealedHeadRun& head = p.all.heads[place.head];
  const Lanes lanes = {p.all, head, place.head, place.block, BlockIdxY() == 0};
  const SealedRepairs& repairs = lanes.side().repairs;
  if (repairs.exact == nullptr) return;
  auto* const counts = reinterpret_cast<int*>(Shared());
  const int lane = ThreadIdx();
  if (lane < lanes.n_lanes()) {
    int count = 0;
    for (int pair = 0; pair < lanes.n_pairs(); ++pair) {
      count += PopCount(lanes.BitsOf(lane, pair));
    }
    counts[lane] = count;
    std::byte* const to = head.packed[place.block] + repairs.count_offset;
    if (repairs.has_wide_counts) {
      reinterpret_cast<uint16_t*>(to)[lane] = static_cast<uint16_t>(count);
    } else {
      to[lane] = static_cast<std::byte>(count);
    }
  }
  SyncBlock();
  if (lane < lanes.n_lanes()) StoreLane(lanes, counts, lane);
}

}  // namespace

void MarkExact(cudaStream_t stream, const ExactParams& params) {
  constexpr int kMostKeyPairs = kMaxPackedRank / 2;
  if (params.has_codebook) {
    Launch(
        stream, MarkFarthestKernel,
        {.n_blocks = params.n_heads, .n_threads = kThreads, .shared_bytes = kWarps * sizeof(int)},
        params);
  } else {
    Launch(
        stream, MarkKeysKernel,
        {.n_blocks = params.n_heads, .n_threads = kThreads, .n_blocks_y = kMostKeyPairs / kWarps},
        params);
  }
  Launch(stream, KeyEndsKernel, {.n_blocks = params.n_heads, .n_threads = kWarp}, params);
  Launch(stream, MarkValuesKernel,
         {.n_blocks = params.n_layer_places,
          .n_threads = kThreads,
          .n_blocks_y = kBlockSize / 2 / kWarps},
         params);
  Launch(stream, ValueEndsKernel, {.n_blocks = params.n_layer_places, .n_threads = kWarp}, params);
}

void StoreExact(cudaStream_t stream, const ExactParams& params) {
  Launch(stream, ListKernel,
         {.n_blocks = params.all.n_places,
          .n_threads = kThreads,
          .shared_bytes = kThreads * sizeof(int),
          .n_blocks_y = 2},
         params);
}

}  // namespace kvlathe::cuda
