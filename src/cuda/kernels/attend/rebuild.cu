#include "cuda/kernels/attend/block_finder.cuh"
#include "cuda/kernels/attend/expand.cuh"
#include "cuda/kernels/attend/rebuild.h"
#include "cuda/kernels/attend/tile.cuh"
#include "cuda/simt/launch.h"
#include "format/entry_table.h"
#include "format/keys.h"

namespace kvlathe::cuda {
namespace {

using namespace simt;

constexpr int kThreads = 128;
constexpr int kWholeStride = kBlockSize + 4;  // floats, from channel to channel

struct RebuildPlaces {
  int64_t whole, k_scales, windows, n_bytes;

  KVL_DEVICE static constexpr RebuildPlaces Of(int most_rank_k, int most_head_dim) {
    RebuildPlaces places{};
    places.whole = int64_t{4} * (most_rank_k / 2) * kKeyStride;
    places.k_scales = places.whole + int64_t{4} * most_head_dim * kWholeStride;
    places.windows = places.k_scales + int64_t{4} * kBlockSize;
    places.n_bytes = places.windows + int64_t{sizeof(WindowTables::values[0])};
    return places;
  }
};

// Sixteen channels of the model of all tokens, from the words of a block: a row of the product is a
// channel, where FindScores has a query.
KVL_DEVICE void MapKeys(const RebuildHead& head, int rank_k, int channel, const uint32_t* k,
                        float (&s)[kScoreTiles][4]) {
  const int i = Lane() % 4, g = Lane() / 4;
  const std::byte* const rows = head.map + int64_t{channel + g} * head.map_row_bytes + 4 * i;
  const std::byte* const later = rows + 8 * head.map_row_bytes;
  const uint32_t* const words = k + i * kKeyStride + 4 * (g / 2 + g % 2 * 4);
#pragma unroll
  for (int t = 0; t < kScoreTiles; ++t) {
#pragma unroll
    for (int c = 0; c < 4; ++c) s[t][c] = 0;
  }
  for (int r = 0; r < rank_k; r += 16) {
    const uint32_t a[4] = {LoadWord(rows + 2 * r), LoadWord(later + 2 * r),
                           LoadWord(rows + 2 * r + 16), LoadWord(later + 2 * r + 16)};
    const uint32_t* const from = words + r / 2 * kKeyStride;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Words4 low = *reinterpret_cast<const Words4*>(from + 32 * half);
      const Words4 high = *reinterpret_cast<const Words4*>(from + 4 * kKeyStride + 32 * half);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t b[2] = {low.x[j], high.x[j]};
        MmaBf16(s[4 * half + j], a, b);
      }
    }
  }
}

// Sixteen channels go where whole keys are collected.
KVL_DEVICE void StoreWhole(const float (&s)[kScoreTiles][4], float* to) {
#pragma unroll
  for (int t = 0; t < kScoreTiles; ++t) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int token = TokenOfLane(t / 4, c % 2) + t % 4;
      to[(Lane() / 4 + c / 2 * 8) * kWholeStride + token] = s[t][c];
    }
  }
}

struct Turned {
  float x, y;
};
KVL_DEVICE Turned Turn(float x, float y, float cos, float sin) {
  return {cos * x - sin * y, cos * y + sin * x};
}

// The position of an entry whose positions are kept, as SortedPositions and EntryTable have them.
KVL_DEVICE int64_t KeptPosition(const RebuildHead& head, int entry) {
  const int block = entry / kBlockSize;
  if (block < head.n_sorted_blocks) {
    if (head.is_sorted_wide) return reinterpret_cast<const int32_t*>(head.sorted)[entry];
    return reinterpret_cast<const uint16_t*>(head.sorted)[entry];
  }
  const std::byte* const positions = head.table + block * EntryTable::BlockBytes(head.has_sums);
  return reinterpret_cast<const int32_t*>(positions)[entry % kBlockSize];
}

struct Angle {
  float cos, sin;
};
// By what a pair of an entry turns.
KVL_DEVICE Angle AngleOf(const RebuildHead& head, int entry, int pair) {
  const int block = entry / kBlockSize;
  int64_t at = 0;
  if (head.turn == KeyTurn::kFrames) {
    const int first = block * kBlockSize;
    const int start = first - (first + head.first_place) % kFramePositions;
    at = int64_t{head.first_position + start} * head.half + pair;
  } else if (head.turn == KeyTurn::kPositions &&
             (head.table != nullptr || block < head.n_sorted_blocks)) {
    // Entries that are not there yet turn like the last one; nobody sees them.
    const int own = entry < head.n_entries ? entry : head.n_entries - 1;
    at = KeptPosition(head, own) * head.half + pair;
  } else {
    at = int64_t{block} * kBlockSize * head.half + KeyOffset(entry % kBlockSize, pair);
    return {head.unit * head.block_cos[at], head.unit * head.block_sin[at]};
  }
  return {head.unit * head.cos[at], head.unit * head.sin[at]};
}

// Gives the keys of the block that begins with `entry` their offsets back, turns them, and gives
// back the means that turn.
KVL_DEVICE void TurnWhole(const RebuildHead& head, int entry, float* whole) {
  const int first_turning = head.turn == KeyTurn::kFrames ? head.n_absolute : 0;
  for (int at = ThreadIdx(); at < head.half * kBlockSize; at += BlockDim()) {
    const int i = at / kBlockSize, token = at % kBlockSize, j = i + head.half;
    float& first = whole[i * kWholeStride + token];
    float& second = whole[j * kWholeStride + token];
    Turned key = {first, second};
    if (head.offset != nullptr) key = {key.x + head.offset[i], key.y + head.offset[j]};
    if (head.turn != KeyTurn::kNone && i >= first_turning) {
      const Angle angle = AngleOf(head, entry + token, i);
      key = Turn(key.x, key.y, angle.cos, angle.sin);
    }
    if (i < head.n_pairs) {
      const int last = head.n_entries - 1, own = entry + token < last ? entry + token : last;
      const int64_t angle = int64_t{head.first_position + own} * head.half + i;
      const Turned mean = Turn(head.turning_mean[i], head.turning_mean[j],
                               head.unit * head.cos[angle], head.unit * head.sin[angle]);
      key = {key.x + mean.x, key.y + mean.y};
    }
    first = key.x;
    second = key.y;
  }
  if (head.offset == nullptr) return;
  const int n_rest = head.head_dim - 2 * head.half;  // channels that do not turn
  for (int at = ThreadIdx(); at < n_rest * kBlockSize; at += BlockDim()) {
    const int channel = 2 * head.half + at / kBlockSize;
    whole[channel * kWholeStride + at % kBlockSize] += head.offset[channel];
  }
}

KVL_DEVICE void WriteKeys(const float* whole, int head_dim, std::byte* to) {
  auto* const words = reinterpret_cast<uint32_t*>(to);
  for (int at = ThreadIdx(); at < head_dim / 2 * kBlockSize; at += BlockDim()) {
    const float* const pair = whole + at / kBlockSize * 2 * kWholeStride + at % kBlockSize;
    words[at] = PackBf16(pair[0], pair[kWholeStride]);
  }
}

KVL_KERNEL(kThreads, 1) RebuildKernel(KVL_PARAMS(RebuildParams) p) {
  const RebuildItem& item = p.items[BlockIdx()];
  const RebuildHead& head = p.heads[item.head];
  const RebuildPlaces places = RebuildPlaces::Of(p.most_rank_k, p.most_head_dim);
  std::byte* const shared = Shared();
  auto* const whole = reinterpret_cast<float*>(shared + places.whole);
  auto* const windows = reinterpret_cast<uint16_t*>(shared + places.windows);
  const TileMemory tile = {reinterpret_cast<uint32_t*>(shared), nullptr,
                           reinterpret_cast<float*>(shared + places.k_scales), nullptr, windows};
  const RebuildSlice& own = head.slices[0];
  StageWindows(own.runs, own.n_runs, p.tables, windows);
  const int rank_k = head.n_slices * head.slice_rank;
  for (int block = item.first_block; block < item.first_block + item.n_blocks; ++block) {
    bool has_token_scales = false;
    for (int i = 0; i < head.n_slices; ++i) {
      const RebuildSlice& slice = head.slices[i];
      TileMemory to = tile;
      to.k += i * (head.slice_rank / 2) * kKeyStride;
      BlockFinder finder = {slice.blocks, slice.runs, slice.n_runs, p.base, item.first_run};
      const BlockPlace at = finder.Find(block);
      if (at.run == nullptr) {
        CopyPlainKeys(at.block, head.slice_rank, to.k);
      } else {
        ExpandBlock<true>(*at.run, at.block, at.block_idx, to);
        has_token_scales = at.run->k.has_token_scales;
      }
    }
    CommitCopies();
    WaitCopies<0>();
    SyncBlock();
    for (int channel = WarpIdx() * kRowsOfWarp; channel < head.head_dim;
         channel += WarpCount() * kRowsOfWarp) {
      float s[kScoreTiles][4];
      MapKeys(head, rank_k, channel, tile.k, s);
      if (has_token_scales) ScaleByTokens(tile.k_scales, s);
      StoreWhole(s, whole + channel * kWholeStride);
    }
    SyncBlock();
    TurnWhole(head, block * kBlockSize, whole);
    SyncBlock();
    WriteKeys(whole, head.head_dim, head.keys + int64_t{2} * block * kBlockSize * head.head_dim);
  }
}

}  // namespace

int64_t RebuildSharedBytes(int most_rank_k, int most_head_dim) {
  return RebuildPlaces::Of(most_rank_k, most_head_dim).n_bytes;
}

void RebuildKeys(cudaStream_t stream, const RebuildParams& params) {
  Launch(stream, RebuildKernel,
         {.n_blocks = params.n_items,
          .n_threads = kThreads,
          .shared_bytes = RebuildSharedBytes(params.most_rank_k, params.most_head_dim)},
         params);
}

}  // namespace kvlathe::cuda
