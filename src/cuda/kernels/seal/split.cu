#include <cmath>

#include "cuda/kernels/seal/block_lines.cuh"
#include "cuda/kernels/seal/half_sums.cuh"
#include "cuda/kernels/seal/split.h"
#include "cuda/kernels/seal/trellis.cuh"
#include "cuda/simt/launch.h"

namespace kvlathe::cuda {
namespace {

using namespace simt;

constexpr int kThreads = 256;
constexpr int kSegments = static_cast<int>(kSplitBits.size());

// --- Scales of tokens ---

// A token is taken by half a warp.
constexpr int kLossFactors = 6;  // scales whose losses are found together
constexpr int kScaleReach = 8;   // steps above and below the root of the mean square

KVL_DEVICE int NearestScale(double x) {
  const auto bits = std::bit_cast<int32_t>(static_cast<float>(x));
  const int32_t steps =
      (bits - static_cast<int32_t>(kScaleBase) + (1 << (kScaleShift - 1))) >> kScaleShift;
  return steps < 0 ? 0 : steps > 255 ? 255 : steps;
}

// The value of the nearest 8-bit code, and the code.
struct UnitCode {
  float code, value;
};
KVL_DEVICE UnitCode NearestStep(float x) {
  constexpr float kBias = 0x1.8p23f;
  float code = x / kUnitStep + 128.0f;
  code = code > 0.0f ? code : 0.0f;
  code = code < 255.0f ? code : 255.0f;
  code = code + kBias - kBias;
  return {code, (code - 128.0f) * kUnitStep};
}

// Adds the squares of what codes of n numbers lose, times each of the factors, to `sums`.
KVL_DEVICE void AddLosses(const UnitTables& tables, int bits, const float* row, int n,
                          const float (&factors)[kLossFactors], float (&sums)[kLossFactors]) {
  if (bits == 8) {
    for (int c = Lane() % kHalf; c < n; c += kHalf) {
      for (int i = 0; i < kLossFactors; ++i) {
        const float scaled = row[c] * factors[i];
        const float lost = scaled - NearestStep(scaled).value;
        sums[i] += lost * lost;
      }
    }
    return;
  }
  // The upper half of the centroids mirrors the lower one, and the sign makes no difference.
  const int half = 1 << (bits - 1);
  const float* const centroids = tables.centroids[bits - 1] + half;
  const float* const boundaries = tables.boundaries[bits - 1] + half;
  for (int c = Lane() % kHalf; c < n; c += kHalf) {
    const float size = fabsf(row[c]);
    float scaled[kLossFactors], values[kLossFactors];
    for (int i = 0; i < kLossFactors; ++i) {
      scaled[i] = size * factors[i];
      values[i] = centroids[0];
    }
    for (int code = 1; code < half; ++code) {
      const float boundary = boundaries[code - 1], centroid = centroids[code];
      for (int i = 0; i < kLossFactors; ++i) {
        values[i] = boundary < scaled[i] ? centroid : values[i];
      }
    }
    for (int i = 0; i < kLossFactors; ++i) {
      const float lost = scaled[i] - values[i];
      sums[i] += lost * lost;
    }
  }
}

// What codes of a row lose under the scales of bytes, in shares of what its channels are expected
// to lose.
KVL_DEVICE void FindLosses(const SplitParams& p, const BitSplit& split, const float* row,
                           const int (&bytes)[kLossFactors], float (&losses)[kLossFactors]) {
  float inverses[kLossFactors];
  for (int i = 0; i < kLossFactors; ++i) inverses[i] = p.inverses[bytes[i]], losses[i] = 0;
  for (int segment = 0; segment < kSegments; ++segment) {
    const int n = split.channels[segment];
    if (n == 0) continue;
    float sums[kLossFactors] = {};
    AddLosses(p.tables, p.bits[segment], row, n, inverses, sums);
    for (int i = 0; i < kLossFactors; ++i) losses[i] += SumOfHalf(sums[i]) * p.shares[segment];
    row += n;
  }
  for (int i = 0; i < kLossFactors; ++i) {
    const float scale = ScaleOfByte(static_cast<uint8_t>(bytes[i]));
    losses[i] *= scale * scale;
  }
}

// The first of the scales about a middle one with which the codes of a row lose least.
KVL_DEVICE uint8_t BestScale(const SplitParams& p, const BitSplit& split, const float* row,
                             int middle) {
  const int last = middle + kScaleReach < 255 ? middle + kScaleReach : 255;
  int byte = middle - kScaleReach > 0 ? middle - kScaleReach : 0;
  int best = middle;
  float least = __builtin_inff();
  // As often for all, because the lanes of a warp sum together.
  constexpr int kRounds = (2 * kScaleReach + kLossFactors) / kLossFactors;
  for (int round = 0; round < kRounds; ++round, byte += kLossFactors) {
    int bytes[kLossFactors];
    float losses[kLossFactors];
    for (int i = 0; i < kLossFactors; ++i) bytes[i] = byte + i < last ? byte + i : last;
    FindLosses(p, split, row, bytes, losses);
    for (int i = 0; i < kLossFactors; ++i) {
      if (byte > last || !(losses[i] < least)) continue;
      least = losses[i];
      best = bytes[i];
    }
  }
  return static_cast<uint8_t>(best);
}

// The number of (token, channel) of the block.
KVL_DEVICE float NumberAt(const BlockLines& lines, int token, int channel) {
  if (lines.is_key) return lines.Number(channel / 2, token / 16, token % 16 * 2 + channel % 2);
  return lines.Number(token / 2, channel / 16, channel % 16 * 2 + token % 2);
}

// Half a warp takes a token; `shared` has the rows of all halves, and a byte for each token.
KVL_KERNEL(kThreads) TokenScaleKernel(KVL_PARAMS(SplitParams) p) {
  const SealedPlace place = p.all.places[BlockIdx()];
  const SealedHeadRun& head = p.all.heads[place.head];
  const bool is_key = BlockIdxY() == 0;
  const SealedSide& side = is_key ? head.k : head.v;
  const BlockLines lines(p.all, head, is_key, place.block);
  const int n = side.split.n_channels(), half = ThreadIdx() / kHalf;
  auto* const middles = reinterpret_cast<uint8_t*>(Shared());
  float* const row = reinterpret_cast<float*>(Shared() + kBlockSize) + half * n;
  std::byte* const scales = head.packed[place.block] + side.scale_offset;
  // Lanes read no other numbers of a row than those that they write here.
  const auto read_row = [&](int token) {
    for (int c = Lane() % kHalf; c < n; c += kHalf) row[c] = NumberAt(lines, token, c);
  };
  // Roots first: they would take registers from what comes then.
  KVL_NO_UNROLL
  for (int token = half; token < kBlockSize; token += kThreads / kHalf) {
    read_row(token);
    const int middle = NearestScale(sqrt(DotOfHalf(row, row, n) / n));
    if (Lane() % kHalf == 0) middles[token] = static_cast<uint8_t>(middle);
  }
  SyncWarp();  // all lanes of a half read them
  KVL_NO_UNROLL
  for (int token = half; token < kBlockSize; token += kThreads / kHalf) {
    read_row(token);
    const uint8_t byte = BestScale(p, side.split, row, middles[token]);
    if (Lane() % kHalf == 0) scales[token] = static_cast<std::byte>(byte);
  }
}

// --- Codes ---

// A group of lines of a segment of channels with the same bits.
struct Segment {
  int bits = 0;
  int n = 0;  // channels
  int first_channel = 0;
  int64_t offset = 0;  // bytes from the start of the side's codes
  int group = 0;       // of the segment
};

// The segment that has group g of a side, if any has.
KVL_DEVICE Segment SegmentOf(const SplitParams& p, const BitSplit& split, int g) {
  Segment segment = {.group = g};
  for (int i = 0; i < kSegments; ++i) {
    segment.bits = p.bits[i];
    segment.n = split.channels[i];
    const int n_groups = 2 * segment.n / LinesPerGroup(segment.bits);
    if (segment.group < n_groups) return segment;
    segment.group -= n_groups;
    segment.first_channel += segment.n;
    segment.offset += CodeBytes(segment.bits, segment.n);
  }
  segment.n = 0;
  return segment;
}

// A group as the lane's word of its lines.
struct GroupOfNumbers {
  const SplitParams& p;
  const BlockLines& lines;
  const SealedSide& side;
  const std::byte* scales;  // of the block's tokens; null: there are none
  int block;
  Segment segment;

  struct Place {
    int pair, line;
  };
  KVL_DEVICE Place PlaceOf(int line) const {
    const int n_lines = LinesPerGroup(segment.bits);
    if (lines.is_key) {
      const int at = segment.group * n_lines + line;
      return {segment.first_channel / 2 + at / 4, at % 4};
    }
    const int n_across = segment.n / 16;
    return {segment.group / n_across * n_lines + line,
            segment.first_channel / 16 + segment.group % n_across};
  }
  KVL_DEVICE uint8_t ScaleByte(const Place& place) const {
    return static_cast<uint8_t>(scales[lines.TokenOf(place.pair, place.line)]);
  }
  // 1 where tokens have none.
  KVL_DEVICE float ScaleOf(const Place& place) const {
    return scales == nullptr ? 1.0f : ScaleOfByte(ScaleByte(place));
  }
  // In units of its token.
  KVL_DEVICE float Number(const Place& place) const {
    const float x = lines.Number(place.pair, place.line);
    return scales == nullptr ? x : x * p.inverses[ScaleByte(place)];
  }
  // What the code of a number loses, back in units of rows.
  KVL_DEVICE void StoreLoss(const Place& place, float loss) const {
    float* const to = ResidualAt(side, block, lines.LineAt(place.pair, place.line));
    if (to != nullptr) *to = scales == nullptr ? loss : loss * ScaleOf(place);
  }
};

// Codes that stand for themselves.
KVL_DEVICE UnitCode NearestUnit(const UnitTables& tables, int bits, float x) {
  if (bits == 8) return NearestStep(x);
  const float* const boundaries = tables.boundaries[bits - 1];
  int code = 0;
  for (int c = 1; c < 1 << bits; ++c) code += boundaries[c - 1] < x ? 1 : 0;
  const int low = code & ((1 << LowBits(bits)) - 1);
  const int window = HasHighBit(bits) ? low + (code >> LowBits(bits)) * 16 : low;
  return {static_cast<float>(code), tables.values[bits - 1][window]};
}

KVL_DEVICE void EncodeUnits(const GroupOfNumbers& group, std::byte* to) {
  const int bits = group.segment.bits;
  GroupOfCodes codes(bits, to);
  for (int i = 0; i < LinesPerGroup(bits); ++i) {
    const auto place = group.PlaceOf(i);
    const float x = group.Number(place);
    const UnitCode unit = NearestUnit(group.p.tables, bits, x);
    group.StoreLoss(place, x - unit.value);
    codes.Add(i, static_cast<uint32_t>(unit.code));
  }
  codes.Finish();
}

template <int kBits>
KVL_DEVICE void StorePathLosses(const GroupOfNumbers& group, const TrellisLines& lines,
                                const WordOfCodes& codes) {
  constexpr int kLow = LowBits(kBits), kWindowMask = (1 << LowWindowBits(kBits)) - 1;
  const uint32_t twice = codes.word | codes.word << 16;  // round the end of the word
  KVL_NO_UNROLL
  for (int i = 0; i < LinesPerGroup(kBits); ++i) {
    const int window = static_cast<int>(twice >> (kLow * i)) & kWindowMask;
    const int high = static_cast<int>(codes.highs >> i & 1u);
    const float value = group.p.tables.values[kBits - 1][window | high << LowWindowBits(kBits)];
    group.StoreLoss(group.PlaceOf(i), lines.x[i][Lane()] - value);
  }
}

template <int kBits>
KVL_DEVICE void EncodePaths(const GroupOfNumbers& group, TrellisLines* lines, std::byte* to) {
  constexpr int kLines = PathFinder<kBits>::kLines;
  KVL_NO_UNROLL
  for (int i = 0; i < kLines; ++i) {
    const auto place = group.PlaceOf(i);
    const float scale = group.ScaleOf(place);
    lines->x[i][Lane()] = group.Number(place);
    lines->weights[i][Lane()] = scale * scale;
  }
  const WordOfCodes codes = PathFinder<kBits>(group.p.tables.sought[kBits - 1], lines).Find();
  const GroupOfCodes packed(kBits, to);
  if (HasHighBit(kBits)) {
    KVL_NO_UNROLL
    for (int i = 0; i < kLines; ++i) packed.AddHigh(i, (codes.highs >> i & 1u) != 0);
  }
  packed.Store(codes.word);
  if (group.side.repairs.residual != nullptr) StorePathLosses<kBits>(group, *lines, codes);
}

KVL_DEVICE void EncodeGroup(const GroupOfNumbers& group, TrellisLines* lines, std::byte* to) {
  const int bits = HasTrellis(group.segment.bits, group.p.unit) ? group.segment.bits : 0;
  switch (bits) {
    case 1:
      return EncodePaths<1>(group, lines, to);
    case 2:
      return EncodePaths<2>(group, lines, to);
    case 3:
      return EncodePaths<3>(group, lines, to);
    case 4:
      return EncodePaths<4>(group, lines, to);
    default:
      return EncodeUnits(group, to);
  }
}

// A warp takes groups of lines.
KVL_KERNEL(kThreads) EncodeKernel(KVL_PARAMS(SplitParams) p) {
  const SealedPlace place = p.all.places[BlockIdx()];
  const SealedHeadRun& head = p.all.heads[place.head];
  const bool is_key = BlockIdxY() == 0;
  const SealedSide& side = is_key ? head.k : head.v;
  const BlockLines lines(p.all, head, is_key, place.block);
  std::byte* const packed = head.packed[place.block];
  const bool has_scales = p.unit == StoredUnit::kToken;
  auto* const shared = reinterpret_cast<TrellisLines*>(Shared()) + (has_scales ? WarpIdx() : 0);
  for (int g = WarpIdx();; g += WarpCount()) {
    const Segment segment = SegmentOf(p, side.split, g);
    if (segment.n == 0) return;
    const GroupOfNumbers group = {.p = p,
                                  .lines = lines,
                                  .side = side,
                                  .scales = has_scales ? packed + side.scale_offset : nullptr,
                                  .block = place.block,
                                  .segment = segment};
    std::byte* const codes = packed + side.code_offset + segment.offset;
    EncodeGroup(group, shared, codes + int64_t{segment.group} * GroupBytes(segment.bits));
  }
}

}  // namespace

void SealSplit(cudaStream_t stream, const SplitParams& params) {
  LaunchShape shape = {.n_blocks = params.all.n_places,
                       .n_threads = kThreads,
                       .n_blocks_y = params.all.has_one_side ? 1 : 2};
  if (params.unit == StoredUnit::kToken) {
    shape.shared_bytes = kBlockSize + int64_t{kThreads / kHalf} * kMaxRowRank * sizeof(float);
    Launch(stream, TokenScaleKernel, shape, params);
    shape.shared_bytes = kThreads / kWarp * sizeof(TrellisLines);
  }
  Launch(stream, EncodeKernel, shape, params);
}

}  // namespace kvlathe::cuda
