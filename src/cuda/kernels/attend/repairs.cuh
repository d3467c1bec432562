// What is added to codes that were expanded to shared memory: low-rank residuals, exact entries,
// rotations of keys that were sealed before RoPE. All threads of a block call these functions
// together, behind a barrier.
#pragma once

#include <cstdint>

#include "cuda/kernels/attend/expand.h"
#include "cuda/kernels/attend/tile.cuh"
#include "format/packed_layout.h"
#include "format/split_bits/split_bits_layout.h"

namespace kvlathe::cuda {

// Where the words of a side are.
struct WordPlaces {
  uint32_t* words;
  int stride;
};

KVL_DEVICE float ScaleOfTokenByte(std::byte byte) {
  return std::bit_cast<float>((static_cast<uint32_t>(byte) << kScaleShift) + kScaleBase);
}

// Adds A B^T. Where tokens have scales, words count in units of them.
template <bool kIsKey>
KVL_DEVICE void AddFactors(const ExpandSide& side, int lowrank, const std::byte* block,
                           const WordPlaces& to) {
  using namespace simt;
  const auto* const a = reinterpret_cast<const uint16_t*>(block + side.factor);
  const int n_words = kBlockSize / 2 * side.rank;
  for (int at = ThreadIdx(); at < n_words; at += BlockDim()) {
    const int inner = kIsKey ? kBlockSize : side.rank, slot = at % inner, pair = at / inner;
    const int token = kIsKey ? slot : 2 * pair, channel = kIsKey ? 2 * pair : slot;
    float first = 0, second = 0;
    for (int i = 0; i < lowrank; ++i) {
      const uint16_t* const of_token = a + i * kBlockSize + token;
      const uint16_t* const of_channel = side.basis + i * side.rank + channel;
      const float x = FloatOfF16(of_token[0]), y = FloatOfF16(of_channel[0]);
      first += x * y;
      second += kIsKey ? x * FloatOfF16(of_channel[1]) : FloatOfF16(of_token[1]) * y;
    }
    if (side.has_token_scales) {
      first /= ScaleOfTokenByte(block[side.scales + token]);
      second /= ScaleOfTokenByte(block[side.scales + token + (kIsKey ? 0 : 1)]);
    }
    uint32_t& word = to.words[pair * to.stride + slot];
    word = PackBf16(FloatOfBf16(word) + first, UpperBf16(word) + second);
  }
}

// How many exact entries the lanes of a block have.
struct LaneCountsOf {
  const std::byte* counts;
  bool is_wide;

  KVL_DEVICE int Of(int lane) const {
    if (is_wide) return reinterpret_cast<const uint16_t*>(counts)[lane];
    return static_cast<int>(counts[lane]);
  }
  // Of the first `lane` lanes.
  KVL_DEVICE int Before(int lane) const {
    int n = 0;
    for (int i = 0; i < lane; ++i) n += Of(i);
    return n;
  }
  // Where entries `first` and first + 1 of a lane are among those of its sixteen lanes, which take
  // turns of two (format/packed_layout.h).
  KVL_DEVICE int PlaceOf(int lane, int first) const {
    const int begin = lane / kExactLanes * kExactLanes;
    int n = 0;
    for (int i = begin; i < begin + kExactLanes; ++i) {
      const int most = i < lane ? first + 2 : first, count = Of(i);
      n += count < most ? count : most;
    }
    return n;
  }
};

template <bool kIsKey>
KVL_DEVICE void AddExactEntries(const ExpandSide& side, const std::byte* block, int block_idx,
                                const WordPlaces& to) {
  using namespace simt;
  const ExpandExact& exact = side.exact;
  const int64_t list = int64_t{block_idx} * exact.ends_step + exact.ends_first;
  const uint32_t begin = list == 0 ? 0 : exact.ends[list - 1];
  const LaneCountsOf counts = {block + exact.counts, exact.has_wide_counts};
  auto* const halves = reinterpret_cast<uint16_t*>(to.words);
  const int n_lanes = kIsKey ? kBlockSize : side.rank;
  for (int lane = ThreadIdx(); lane < n_lanes; lane += BlockDim()) {
    const int n = counts.Of(lane);
    if (n == 0) continue;
    const int64_t before = int64_t{begin} + counts.Before(lane / kExactLanes * kExactLanes);
    for (int i = 0; i < n; ++i) {
      const int64_t at = before + counts.PlaceOf(lane, i / 2 * 2) + i % 2;
      const int place = exact.places[at], slot = kIsKey ? lane : place;
      const int channel = kIsKey ? place : lane;
      const int idx = kIsKey ? (channel / 2 * to.stride + slot) * 2 + channel % 2
                             : (slot / 2 * to.stride + channel) * 2 + slot % 2;
      const float x = FloatOfBf16(halves[idx]) + FloatOfBf16(exact.differences[at]);
      halves[idx] = static_cast<uint16_t>(Bf16OfFloat(x));
    }
  }
}

// Turns keys to their positions (TurnKeys, format/codebook/codebook.h). The angles are those of the
// block.
KVL_DEVICE void TurnKeyWords(const float* cos, const float* sin, int half, const WordPlaces& to) {
  using namespace simt;
  for (int at = ThreadIdx(); at < half / 2 * kBlockSize; at += BlockDim()) {
    uint32_t& first = to.words[at / kBlockSize * to.stride + at % kBlockSize];
    uint32_t& second = to.words[(at / kBlockSize + half / 2) * to.stride + at % kBlockSize];
    const float c0 = cos[2 * at], c1 = cos[2 * at + 1], s0 = sin[2 * at], s1 = sin[2 * at + 1];
    const float x0 = FloatOfBf16(first), x1 = UpperBf16(first);
    const float y0 = FloatOfBf16(second), y1 = UpperBf16(second);
    first = PackBf16(x0 * c0 - y0 * s0, x1 * c1 - y1 * s1);
    second = PackBf16(y0 * c0 + x0 * s0, y1 * c1 + x1 * s1);
  }
}

// All of them, for a side of a run; the words were written before a barrier that this meets.
template <bool kIsKey>
KVL_DEVICE void RepairSide(const ExpandRun& run, const std::byte* block, int block_idx,
                           const WordPlaces& to) {
  const ExpandSide& side = kIsKey ? run.k : run.v;
  if (run.lowrank > 0) {
    simt::SyncBlock();
    AddFactors<kIsKey>(side, run.lowrank, block, to);
  }
  if (side.exact.ends != nullptr) {
    simt::SyncBlock();
    AddExactEntries<kIsKey>(side, block, block_idx, to);
  }
  if (kIsKey && run.half > 0) {
    simt::SyncBlock();
    const int64_t step = int64_t{block_idx} * kBlockSize * run.half;
    TurnKeyWords(run.cos + step, run.sin + step, run.half, to);
  }
}

}  // namespace kvlathe::cuda
