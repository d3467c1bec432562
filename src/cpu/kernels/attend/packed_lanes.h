// Expands sealed blocks to F32 blocks over vectors of lanes.h, as ExpandPackedBlock does with
// portable loops.
#pragma once

#include "cpu/kernels/attend/attend_packed.h"
#include "cpu/kernels/attend/attend_range.h"
#include "cpu/kernels/attend/exact_entries.h"
#include "cpu/kernels/attend/line_reader_lanes.h"
#include "cpu/kernels/lanes.h"
#include "format/sphere_codes/residual_signs.h"

namespace kvlathe {
namespace {

constexpr int kLineValues = 32;
constexpr int kLineVecs = kLineValues / kLanes;
constexpr int kMaxRank = kMaxRowRank;

// Which numbers of a line share a scale: those of one channel of the pair (K by channel), of one
// token (K by token), or of one token of the pair (V).
enum class SideKind { kKeyByChannel, kKeyByToken, kValue };

// The scales and minima of a block as floats, laid out so that those of a vector are one load or
// one broadcast pair.
struct ScaleTable {
  static constexpr int kMaxGroups = 16;  // of channels; of tokens there are at most 4
  static constexpr int kTokenStep = 2 * kBlockSize;
  static_assert(4 * kMaxRank <= kMaxGroups * kTokenStep);
  // Where the group of 16 channels begins or, by channel, of 16 tokens.
  int begin[kMaxRank / 16];
  alignas(64) float scales[kMaxGroups * kTokenStep];
  alignas(64) float minima[kMaxGroups * kTokenStep];
};

KVL_LANES void WidenF16(const F16* from, int n, float* to) {
  for (int i = 0; i < n; i += kLanes) Store(to + i, LoadF16(from + i));
}

// Writes every number twice.
KVL_LANES void WidenF16Twice(const F16* from, int n, float* to) {
  for (int i = 0; i < n; i += kLanes) {
    float values[kLanes];
    Store(values, LoadF16(from + i));
    for (int j = 0; j < kLanes; ++j) to[2 * (i + j)] = to[2 * (i + j) + 1] = values[j];
  }
}

void ReadChannelScales(const PackedSideView& side, int block_idx, ScaleTable* table) {
  const int n_tokens = side.group < kBlockSize ? side.group : kBlockSize;
  for (int t = 0; t < kBlockSize; t += n_tokens) {
    const int to = t / n_tokens * side.rank;
    const int group = (block_idx * kBlockSize + t) / side.group;
    const F16* from = side.shared_scales + int64_t{2} * group * side.rank;
    WidenF16(from, side.rank, table->scales + to);
    WidenF16(from + side.rank, side.rank, table->minima + to);
    for (int i = 0; i < n_tokens; i += 16) table->begin[(t + i) / 16] = to;
  }
}

// Reads the scales of a group of a table, a byte each or of norms.
KVL_LANES void ReadGroupScales(const PackedSideView& side, const std::byte* block, int group,
                               float* to) {
  if (side.has_norms) {
    const auto* const from = reinterpret_cast<const F16*>(block + side.scales);
    return WidenF16(from + group * kBlockSize, kBlockSize, to);
  }
  const auto* const bytes = reinterpret_cast<const uint8_t*>(block + side.scales);
  for (int t = 0; t < kBlockSize; ++t) to[t] = TableScale(bytes[group * kBlockSize + t]);
}

// Reads the scales of a table in units of its numbers.
template <SideKind kKind>
void ReadTableScales(const PackedSideView& side, const std::byte* block, ScaleTable* table) {
  for (int group = 0; group < side.n_groups; ++group) {
    float* const scales = table->scales + group * ScaleTable::kTokenStep;
    float* const minima = table->minima + group * ScaleTable::kTokenStep;
    float of_group[kBlockSize];
    ReadGroupScales(side, block, group, of_group);
    for (int t = 0; t < kBlockSize; ++t) {
      const float scale = of_group[t] * side.table_unit;
      if constexpr (kKind == SideKind::kValue) {
        scales[t] = scale;
      } else {
        scales[2 * t] = scales[2 * t + 1] = scale;
      }
    }
    for (int i = 0; i < ScaleTable::kTokenStep; ++i) minima[i] = 0;
  }
}

template <SideKind kKind>
void ReadTokenScales(const PackedSideView& side, const std::byte* block, int block_idx,
                     ScaleTable* table) {
  for (int r = 0; r < side.rank; r += 16) {
    table->begin[r / 16] = r / side.group * ScaleTable::kTokenStep;
  }
  if (side.numbers != nullptr) return ReadTableScales<kKind>(side, block, table);
  const auto widen = [](const F16* numbers, float* to) __attribute__((always_inline)) {
    kKind == SideKind::kValue ? WidenF16(numbers, kBlockSize, to)
                              : WidenF16Twice(numbers, kBlockSize, to);
  };
  const int parts = side.is_symmetric ? 1 : 2;
  const F16* from = side.shared_scales != nullptr
                        ? side.shared_scales + int64_t{parts} * kBlockSize * block_idx
                        : reinterpret_cast<const F16*>(block + side.scales);
  for (int group = 0; group < side.n_groups; ++group, from += parts * kBlockSize) {
    const int to = group * ScaleTable::kTokenStep;
    widen(from, table->scales + to);
    if (parts == 2) {
      widen(from + kBlockSize, table->minima + to);
    } else {
      const float of_code_0 = side.bits == 4 ? -8 : 0;
      for (int i = 0; i < ScaleTable::kTokenStep; ++i) {
        table->minima[to + i] = of_code_0 * table->scales[to + i];
      }
    }
  }
}

// A line of a plain block: `pair` of channels and 16 tokens from `first` on (K), or `pair` of
// tokens and 16 channels from `first` on (V).
struct LinePlace {
  int pair;
  int first;
};

// Line `line` of the group whose first line is at `begin`.
template <SideKind kKind>
KVL_LANES LinePlace PlaceOf(const LinePlace& begin, int line) {
  if constexpr (kKind == SideKind::kValue) return {begin.pair + line, begin.first};
  return {begin.pair + line / 4, begin.first + line % 4 * 16};
}

template <SideKind kKind, int kLines>
KVL_LANES LinePlace NextGroup(const LinePlace& begin, int rank) {
  if constexpr (kKind == SideKind::kValue) {
    return begin.first + 16 < rank ? LinePlace{begin.pair, begin.first + 16}
                                   : LinePlace{begin.pair + kLines, 0};
  } else if constexpr (kLines >= 4) {
    return {begin.pair + kLines / 4, 0};
  } else {
    return begin.first == 0 ? LinePlace{begin.pair, 16 * kLines} : LinePlace{begin.pair + 1, 0};
  }
}

template <SideKind kKind>
KVL_LANES int OffsetOf(const LinePlace& place, int rank) {
  return 2 * (place.pair * (kKind == SideKind::kValue ? rank : kBlockSize) + place.first);
}

// Returns vector `v` of a line's scales (or minima).
template <SideKind kKind>
KVL_LANES Vec ScalesOf(const ScaleTable& table, const float* numbers, const LinePlace& place,
                       int v) {
  if constexpr (kKind == SideKind::kKeyByToken) {
    return Load(numbers + table.begin[place.pair / 8] + 2 * place.first + v * kLanes);
  } else {
    return BroadcastPair(numbers + table.begin[place.first / 16] + 2 * place.pair);
  }
}

// Reads the codes of one vector of all lines of a group.
template <int kBits>
KVL_LANES void DecodeLines(const std::byte* group, int v, bool is_signed,
                           IntVec (&codes)[LinesPerGroup(kBits)]) {
  if constexpr (kBits == 8) {
    Unroll<2>([&](auto line) {
      // Eight codes of either line in turn.
      uint8_t bytes[kLanes];
      for (int j = 0; j < kLanes; j += 8) {
        __builtin_memcpy(bytes + j, group + (v * kLanes + j) * 2 + 8 * line.value, 8);
      }
      codes[line.value] = is_signed ? LoadSignedBytes(bytes) : LoadBytes(bytes);
    });
  } else {
    constexpr int kLowBits = LowBits(kBits);
    const IntVec words = LoadShorts(group + 2 * v * kLanes);
    Unroll<LinesPerGroup(kBits)>([&](auto line) {
      constexpr int kLine = line.value;
      codes[kLine] = And(ShiftRight(words, kLowBits * kLine), (1 << kLowBits) - 1);
      if constexpr (HasHighBit(kBits)) {
        uint32_t high;
        __builtin_memcpy(&high, group + 64 + 4 * kLine, sizeof(high));
        codes[kLine] |= SpreadBits(high, v * kLanes, 1 << kLowBits);
      }
    });
  }
}

template <int kBits, SideKind kKind>
void ExpandCodes(const PackedSideView& side, const std::byte* codes, const ScaleTable& table,
                 float* out) {
  constexpr int kLines = LinesPerGroup(kBits);
  const int n_groups = 2 * side.rank / kLines;
  LinePlace begin = {0, 0};
  for (int group = 0; group < n_groups; ++group) {
    for (int v = 0; v < kLineVecs; ++v) {
      IntVec lines[kLines];
      DecodeLines<kBits>(codes, v, side.is_symmetric, lines);
      Unroll<kLines>([&](auto line) {
        const LinePlace place = PlaceOf<kKind>(begin, line.value);
        Store(out + OffsetOf<kKind>(place, side.rank) + v * kLanes,
              Fma(ToFloats(lines[line.value]), ScalesOf<kKind>(table, table.scales, place, v),
                  ScalesOf<kKind>(table, table.minima, place, v)));
      });
    }
    codes += GroupBytes(kBits);
    begin = NextGroup<kKind, kLines>(begin, side.rank);
  }
}

// Does the same with codes of a table.
template <int kBits, SideKind kKind>
void ExpandTableCodes(const PackedSideView& side, const std::byte* codes, const ScaleTable& table,
                      float* out) {
  const TableReader<kBits> reader(side.numbers);
  constexpr int kLines = TableReader<kBits>::kLines;
  LinePlace begin = {0, 0};
  for (int group = 0; group < 2 * side.rank / kLines; ++group) {
    Unroll<kLines>([&](auto line) KVL_PART {
      const LinePlace place = PlaceOf<kKind>(begin, line.value);
      float* const to = out + OffsetOf<kKind>(place, side.rank);
      for (int part = 0; part < kLineParts; ++part) {
        const IntVec numbers = reader.Line(codes, line.value, part);
        const int v = 2 * part;
        Store(to + v * kLanes,
              FirstWordsToFloats(numbers) * ScalesOf<kKind>(table, table.scales, place, v));
        Store(to + (v + 1) * kLanes,
              LastWordsToFloats(numbers) * ScalesOf<kKind>(table, table.scales, place, v + 1));
      }
    });
    codes += TableReader<kBits>::kBytes;
    begin = NextGroup<kKind, kLines>(begin, side.rank);
  }
}

template <SideKind kKind>
void ExpandCodesOfAnyWidth(const PackedSideView& side, const std::byte* codes,
                           const ScaleTable& table, float* out) {
  if (side.numbers != nullptr) {
    if (side.bits == 2) return ExpandTableCodes<2, kKind>(side, codes, table, out);
    if (side.bits == 3) return ExpandTableCodes<3, kKind>(side, codes, table, out);
    return ExpandTableCodes<4, kKind>(side, codes, table, out);
  }
  switch (side.bits) {
    case 2:
      return ExpandCodes<2, kKind>(side, codes, table, out);
    case 3:
      return ExpandCodes<3, kKind>(side, codes, table, out);
    case 4:
      return ExpandCodes<4, kKind>(side, codes, table, out);
    case 5:
      return ExpandCodes<5, kKind>(side, codes, table, out);
    default:
      return ExpandCodes<8, kKind>(side, codes, table, out);
  }
}

// Adds a[token] * b[channel] to values[token, channel]. In the order of a block one of the two
// factors is a broadcast pair, and the other has every number twice.
template <SideKind kKind>
void AddOuterProduct(const F16* a, const F16* b, int rank, float* values) {
  constexpr bool kIsKey = kKind != SideKind::kValue;
  float pairs[kMaxRank], twice[2 * kMaxRank];
  WidenF16(kIsKey ? b : a, kIsKey ? rank : kBlockSize, pairs);
  WidenF16Twice(kIsKey ? a : b, kIsKey ? kBlockSize : rank, twice);
  const int n_pairs = (kIsKey ? rank : kBlockSize) / 2, n = 2 * (kIsKey ? kBlockSize : rank);
  for (int pair = 0; pair < n_pairs; ++pair, values += n) {
    const Vec factor = BroadcastPair(pairs + 2 * pair);
    for (int i = 0; i < n; i += kLanes) {
      Store(values + i, Fma(factor, Load(twice + i), Load(values + i)));
    }
  }
}

template <SideKind kKind>
void AddFactors(const PackedSideView& side, int lowrank, const std::byte* block, float* values) {
  const F16* factor = reinterpret_cast<const F16*>(block + side.factor);
  for (int i = 0; i < lowrank; ++i) {
    AddOuterProduct<kKind>(factor + i * kBlockSize, side.basis + i * side.rank, side.rank, values);
  }
}

// Multiplies the values of a block: with a number of each token (K) or channel (V), which `twice`
// has twice.
template <bool kIsKey>
KVL_LANES void MultiplyElements(const float* twice, int rank, float* values) {
  const int n_pairs = (kIsKey ? rank : kBlockSize) / 2, n = 2 * (kIsKey ? kBlockSize : rank);
  for (int pair = 0; pair < n_pairs; ++pair, values += n) {
    for (int i = 0; i < n; i += kLanes) Store(values + i, Load(values + i) * Load(twice + i));
  }
}

// Multiplies what codes stand for with the balance of their tile.
template <bool kIsKey>
KVL_LANES void MultiplyByBalance(const PackedSideView& side, const std::byte* block, int block_idx,
                                 float* values) {
  if (side.balanced_tokens == 0) return;
  alignas(64) float twice[2 * kMaxRank];
  if constexpr (kIsKey) {
    WidenF16Twice(reinterpret_cast<const F16*>(block + side.balance), kBlockSize, twice);
  } else {
    WidenF16Twice(side.ChannelBalance(block_idx), side.rank, twice);
  }
  MultiplyElements<kIsKey>(twice, side.rank, values);
}

template <SideKind kKind>
void ExpandSide(const PackedSideView& side, int lowrank, const std::byte* block, int block_idx,
                float* values) {
  ScaleTable table;
  if constexpr (kKind == SideKind::kKeyByChannel) {
    ReadChannelScales(side, block_idx, &table);
  } else {
    ReadTokenScales<kKind>(side, block, block_idx, &table);
  }
  ExpandCodesOfAnyWidth<kKind>(side, block + side.codes, table, values);
  constexpr bool kIsKey = kKind != SideKind::kValue;
  MultiplyByBalance<kIsKey>(side, block, block_idx, values);
  ForEachExactEntry<kIsKey>(side, block, block_idx, [&](int t, int r, float difference) {
    values[kIsKey ? KeyOffset(t, r) : ValueOffset({.rank_v = side.rank}, t, r)] += difference;
  });
  AddFactors<kKind>(side, lowrank, block, values);
}

// Expands the codes of a side with split bits.
template <bool kIsKey>
void ExpandSegments(const PackedSideView& side, const std::byte* block, float* values) {
  const Vec step = Set1(kUnitNumberStep);
  ForEachVector<kIsKey>(side, block, [&](int64_t offset, IntVec numbers) KVL_PART {
    Store(values + offset, FirstWordsToFloats(numbers) * step);
    Store(values + offset + kLanes, LastWordsToFloats(numbers) * step);
  });
  ForEachUncoded<kIsKey>(side, [&](int64_t offset, int64_t n) KVL_PART {
    __builtin_memset(values + offset, 0, n * sizeof(float));
  });
}

// Reads the scales of the tokens of a block whose bits are split.
void ReadUnitScales(const PackedSideView& side, const std::byte* block, float* scales) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(block + side.scales);
  for (int t = 0; t < kBlockSize; ++t) scales[t] = ScaleOfByte(bytes[t]);
}

// Turns numbers that are in units of their token's scale into rows.
template <bool kIsKey>
void ScaleTokens(const PackedSideView& side, const std::byte* block, float* values) {
  if (!side.has_token_scales) return;
  alignas(64) float scales[kBlockSize], twice[2 * kBlockSize];
  ReadUnitScales(side, block, scales);
  for (int t = 0; t < kBlockSize; ++t) twice[2 * t] = twice[2 * t + 1] = scales[t];
  const int n_pairs = (kIsKey ? side.rank : kBlockSize) / 2;
  const int n = 2 * (kIsKey ? kBlockSize : side.rank);
  for (int pair = 0; pair < n_pairs; ++pair, values += n) {
    const Vec of_pair = BroadcastPair(scales + (kIsKey ? 0 : 2 * pair));
    for (int i = 0; i < n; i += kLanes) {
      Store(values + i, Load(values + i) * (kIsKey ? Load(twice + i) : of_pair));
    }
  }
}

// V of rows that hold keys and values together, from their numbers in the order of K: pairs of
// channels of neighbouring tokens change places.
KVL_LANES void CopyToValues(int rank, const float* k, float* v) {
  for (int pair = 0; pair < rank / 2; ++pair) {
    for (int t = 0; t < kBlockSize; t += 2) {
      const __m128 x = _mm_loadu_ps(k + 2 * (pair * kBlockSize + t));
      _mm_storeu_ps(v + t * rank + 4 * pair, _mm_shuffle_ps(x, x, _MM_SHUFFLE(3, 1, 2, 0)));
    }
  }
}

// Adds what the signs of codes of K say of its residuals.
KVL_LANES void AddSigns(const PackedSideView& side, const std::byte* block, int block_idx,
                        float* keys) {
  alignas(64) float signs[kBlockSize * kMaxPackedRank];
  ExpandSide<SideKind::kKeyByToken>(SignsOf(side), 0, block, block_idx, signs);
  AddResiduals(side.rank, signs, keys);
}

// Does what ExpandPackedBlock does.
KVL_LANES void ExpandSealedBlock(const PackedRunView& run, const std::byte* block, int block_idx,
                                 float* values) {
  float* of_v = values + kBlockSize * run.k.rank;
  if (run.k.centroids != nullptr) {  // nothing demands speed here
    return ExpandPackedBlock(run, block, block_idx, values);
  }
  if (run.k.n_segments > 0) {
    ExpandSegments<true>(run.k, block, values);
    ScaleTokens<true>(run.k, block, values);
    if (run.has_one_side) return CopyToValues(run.k.rank, values, of_v);
    AddFactors<SideKind::kKeyByToken>(run.k, run.lowrank, block, values);
    ExpandSegments<false>(run.v, block, of_v);
    ScaleTokens<false>(run.v, block, of_v);
    AddFactors<SideKind::kValue>(run.v, run.lowrank, block, of_v);
    return;
  }
  if (run.k.is_per_channel) {
    ExpandSide<SideKind::kKeyByChannel>(run.k, run.lowrank, block, block_idx, values);
  } else {
    ExpandSide<SideKind::kKeyByToken>(run.k, run.lowrank, block, block_idx, values);
    if (run.k.signs != nullptr) AddSigns(run.k, block, block_idx, values);
  }
  ExpandSide<SideKind::kValue>(run.v, run.lowrank, block, block_idx, of_v);
}

}  // namespace
}  // namespace kvlathe
