// The kernels of sealing for the instruction set that the including file is compiled for.
#pragma once

#include "cpu/kernels/seal/seal_balance_kernels.h"
#include "cpu/kernels/seal/seal_kernels.h"
#include "cpu/kernels/seal/seal_lowrank_kernels.h"
#include "cpu/kernels/seal/seal_trellis_kernels.h"
#include "cpu/kernels/seal/seal_unit_kernels.h"
#include "cpu/kernels/seal/seal_vectors.h"
#include "format/packed_layout.h"

namespace kvlathe {
namespace {

constexpr float kInfinity = __builtin_inff();

// --- Rows ---

KVL_INLINE Ints LoadRowBits(const std::byte* from, Bf16) { return LoadShorts(from) << 16; }
KVL_INLINE Ints LoadRowBits(const std::byte* from, float) {
  return BitsOf(Load(reinterpret_cast<const float*>(from)));
}

template <typename T>
bool ExpandRows(const std::byte* from, int64_t n, float* to) {
  const Ints exponent = Splat(0x7f800000);
  Ints found = Splat(0);
  for (int64_t i = 0; i < n; i += kLanes) {
    const Ints bits = LoadRowBits(from + i * sizeof(T), T());
    found = found | ((bits & exponent) == exponent);
    Store(FromBits(bits), to + i);
  }
  return LaneBits(found) == 0;
}

bool Expand(DType row_type, const std::byte* from, int64_t n, float* to) {
  return row_type == DType::kBf16 ? ExpandRows<Bf16>(from, n, to) : ExpandRows<float>(from, n, to);
}

// --- F16 ---

// Returns F16 in bits 0-15 of each lane. Normal numbers are rounded by adding just under half of
// the last bit that stays, and small ones by adding 1/2, which leaves a multiple of 2^-24 in the
// mantissa.
KVL_INLINE Ints ToF16Bits(Floats x) {
  const Ints bits = BitsOf(x);
  Ints magnitude = bits & Splat(0x7fffffff);
  const Ints largest = Splat(0x477fe000);  // 65504
  magnitude = Select(largest < magnitude, largest, magnitude);
  const Ints small = BitsOf(FromBits(magnitude) + Splat(0.5f)) - Splat(0x3f000000);
  const Ints last = (magnitude >> 13) & Splat(1);
  const Ints normal = (magnitude + last + Splat(0xfff - 0x38000000)) >> 13;
  const Ints rounded = Select(magnitude < Splat(0x38800000), small, normal);
  return rounded | ((bits >> 16) & Splat(0x8000));
}

KVL_INLINE Floats FromF16Bits(Ints bits) {
  const Floats magnitude = FromBits((bits & Splat(0x7fff)) << 13) * Splat(0x1p112f);
  return FromBits(BitsOf(magnitude) | ((bits & Splat(0x8000)) << 16));
}

void ToF16Rows(const float* from, int64_t n, std::byte* to) {
  for (int64_t i = 0; i < n; i += kLanes) StoreShorts(ToF16Bits(Load(from + i)), to + 2 * i);
}

void FromF16Rows(const std::byte* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; i += kLanes) Store(FromF16Bits(LoadShorts(from + 2 * i)), to + i);
}

// --- The ends of columns ---

template <typename Key>
constexpr DType kRowTypeOf = sizeof(Key) == 2 ? DType::kBf16 : DType::kF32;

// The bits of a value as an integer in the order of the values; both zeros are 0.
KVL_INLINE Ints OrderedKeys(Ints bits, int32_t magnitude_mask) {
  const Ints keys = bits ^ ((bits >> 31) & Splat(magnitude_mask));
  return keys - (keys == Splat(-1));
}

void GatherColumns(DType row_type, const std::byte* from, int64_t n_pairs, void* even, void* odd) {
  for (int64_t i = 0; i < n_pairs; i += kLanes) {
    if (row_type == DType::kBf16) {
      const Ints pairs = LoadInts(from + 4 * i);
      StoreShorts(OrderedKeys((pairs << 16) >> 16, 0x7fff), static_cast<int16_t*>(even) + i);
      StoreShorts(OrderedKeys(pairs >> 16, 0x7fff), static_cast<int16_t*>(odd) + i);
    } else {
      const float* pairs = reinterpret_cast<const float*>(from) + 2 * i;
      const Floats a = Load(pairs), b = Load(pairs + kLanes);
      Store(OrderedKeys(BitsOf(EverySecond<0>(a, b)), 0x7fffffff), static_cast<int32_t*>(even) + i);
      Store(OrderedKeys(BitsOf(EverySecond<1>(a, b)), 0x7fffffff), static_cast<int32_t*>(odd) + i);
    }
  }
}

KVL_INLINE float ValueOf(int64_t key, DType row_type) {
  const bool is_half = row_type == DType::kBf16;
  const auto bits = static_cast<uint32_t>(key < 0 ? key ^ (is_half ? 0x7fff : 0x7fffffff) : key);
  const uint32_t value_bits = is_half ? bits << 16 : bits;
  return LoadAs<float>(&value_bits);
}

template <typename Key>
struct KeyVector {
  using Type __attribute__((vector_size(kVectorBytes))) = Key;
};
template <typename Key>
constexpr int kKeysPerVector = kVectorBytes / static_cast<int>(sizeof(Key));

struct Counts {
  int64_t a, b;
};

// Counts the keys that are at least a, and those that are at least b.
template <typename Key>
Counts CountAtLeast(const Key* keys, int64_t n, Key a, Key b) {
  constexpr int kStep = kKeysPerVector<Key>;
  using Vector = typename KeyVector<Key>::Type;
  Counts counts = {0, 0};
  int64_t i = 0;
#if defined(__AVX512BW__)
  const __m512i all_a = sizeof(Key) == 2 ? _mm512_set1_epi16(static_cast<int16_t>(a))
                                         : _mm512_set1_epi32(static_cast<int32_t>(a));
  const __m512i all_b = sizeof(Key) == 2 ? _mm512_set1_epi16(static_cast<int16_t>(b))
                                         : _mm512_set1_epi32(static_cast<int32_t>(b));
  for (; i + kStep <= n; i += kStep) {
    const __m512i v = (__m512i)LoadAs<Vector>(keys + i);
    if constexpr (sizeof(Key) == 2) {
      counts.a += __builtin_popcount(_mm512_cmpge_epi16_mask(v, all_a));
      counts.b += __builtin_popcount(_mm512_cmpge_epi16_mask(v, all_b));
    } else {
      counts.a += __builtin_popcount(_mm512_cmpge_epi32_mask(v, all_a));
      counts.b += __builtin_popcount(_mm512_cmpge_epi32_mask(v, all_b));
    }
  }
#else
  constexpr int64_t kMostSteps = 0x7fff;  // that a lane can count
  while (i + kStep <= n) {
    Vector sum_a = {}, sum_b = {};
    const int64_t n_steps = (n - i) / kStep < kMostSteps ? (n - i) / kStep : kMostSteps;
    for (const int64_t end = i + n_steps * kStep; i < end; i += kStep) {
      const Vector v = LoadAs<Vector>(keys + i);
      sum_a -= (Vector)(v >= (Vector{} + a));
      sum_b -= (Vector)(v >= (Vector{} + b));
    }
    for (int lane = 0; lane < kStep; ++lane) counts.a += sum_a[lane], counts.b += sum_b[lane];
  }
#endif
  for (; i < n; ++i) counts.a += keys[i] >= a, counts.b += keys[i] >= b;
  return counts;
}

template <typename Key>
KVL_INLINE void RangeOfKeys(const Key* keys, int64_t n, int64_t* lowest, int64_t* highest) {
  constexpr int kStep = kKeysPerVector<Key>;
  using Vector = typename KeyVector<Key>::Type;
  Key low = keys[0], high = keys[0];
  int64_t i = 0;
  if (n >= kStep) {
    Vector lows = LoadAs<Vector>(keys), highs = lows;
    for (i = kStep; i + kStep <= n; i += kStep) {
      const Vector v = LoadAs<Vector>(keys + i);
      lows = v < lows ? v : lows;
      highs = v > highs ? v : highs;
    }
    for (int lane = 0; lane < kStep; ++lane) {
      low = lows[lane] < low ? lows[lane] : low;
      high = highs[lane] > high ? highs[lane] : high;
    }
  }
  for (; i < n; ++i) {
    low = keys[i] < low ? keys[i] : low;
    high = keys[i] > high ? keys[i] : high;
  }
  *lowest = low;
  *highest = high;
}

// The largest key that at least `rank` keys reach, by halving the interval [low, high) of those
// that are possible; n_low and n_high keys reach its ends.
struct Bisection {
  int64_t rank;
  int64_t low, high;
  int64_t n_low, n_high;

  int64_t middle() const { return low + (high - low) / 2; }
  bool is_done() const { return high - low <= 1; }
  void Narrow(int64_t at, int64_t count) {
    if (count >= rank) {
      low = at, n_low = count;
    } else {
      high = at, n_high = count;
    }
  }
};

// It takes at most as many rounds as a key has bits, whatever the number of outliers, and each
// round costs two comparisons per key. Both ends are searched together to hide the latency of
// counting.
template <typename Key>
Tails FindTailsOf(const Key* keys, int64_t n, int64_t n_outliers) {
  int64_t lowest, highest;
  RangeOfKeys(keys, n, &lowest, &highest);
  Bisection top = {n_outliers, lowest, highest + 1, n, 0};
  Bisection bottom = {n - n_outliers + 1, lowest, highest + 1, n, 0};
  while (!top.is_done() || !bottom.is_done()) {
    const int64_t a = top.middle(), b = bottom.middle();
    const Counts counts = CountAtLeast(keys, n, static_cast<Key>(a), static_cast<Key>(b));
    top.Narrow(a, counts.a);
    bottom.Narrow(b, counts.b);
  }
  constexpr DType kRowType = kRowTypeOf<Key>;
  return {ValueOf(top.low, kRowType), ValueOf(bottom.low, kRowType), n_outliers - top.n_high,
          n_outliers - (n - bottom.n_low)};
}

Tails FindTails(DType row_type, const void* column, int64_t n, int64_t n_outliers) {
  return row_type == DType::kBf16 ? FindTailsOf(static_cast<const int16_t*>(column), n, n_outliers)
                                  : FindTailsOf(static_cast<const int32_t*>(column), n, n_outliers);
}

void FindCandidates(const float* x, PairGrid grid, const float* high, const float* low,
                    uint32_t* masks) {
  for (int pair = 0; pair < grid.n_pairs; ++pair) {
    const Floats highs = SplatPair(high + 2 * pair), lows = SplatPair(low + 2 * pair);
    for (int line = 0; line < grid.n_lines; ++line, x += kLineWords, ++masks) {
      const Floats a = Load(x), b = Load(x + kLanes);
      *masks = LaneBits((highs <= a) | (a <= lows)) | LaneBits((highs <= b) | (b <= lows))
                                                          << kLanes;
    }
  }
}

// --- Scales ---

void ExtendRanges(const float* x, PairGrid grid, int group_lines, float* low, float* high) {
  const int n_columns = 2 * grid.n_pairs;
  for (int first = 0; first < grid.n_lines;
       first += group_lines, low += n_columns, high += n_columns) {
    const int end = first + group_lines < grid.n_lines ? first + group_lines : grid.n_lines;
    for (int pair = 0; pair < grid.n_pairs; ++pair) {
      Floats lows = Splat(kInfinity), highs = Splat(-kInfinity);
      for (int line = first; line < end; ++line) {
        const float* words = x + (pair * grid.n_lines + line) * kLineWords;
        const Floats a = Load(words), b = Load(words + kLanes);
        lows = Lower()(b, Lower()(a, lows));
        highs = Higher()(b, Higher()(a, highs));
      }
      const Pair lowest = FoldPairs(lows, Lower()), highest = FoldPairs(highs, Higher());
      float* const l = low + 2 * pair;
      float* const h = high + 2 * pair;
      if (lowest.even < l[0]) l[0] = lowest.even;
      if (lowest.odd < l[1]) l[1] = lowest.odd;
      if (highest.even > h[0]) h[0] = highest.even;
      if (highest.odd > h[1]) h[1] = highest.odd;
    }
  }
}

void ExtendTokenRanges(const float* x, PairGrid grid, int group_pairs, float* low, float* high) {
  for (int first = 0; first < grid.n_pairs; first += group_pairs) {
    const int end = first + group_pairs < grid.n_pairs ? first + group_pairs : grid.n_pairs;
    for (int line = 0; line < grid.n_lines; ++line, low += kLanes, high += kLanes) {
      Floats low_a = Splat(kInfinity), low_b = low_a;
      Floats high_a = Splat(-kInfinity), high_b = high_a;
      for (int pair = first; pair < end; ++pair) {
        const float* words = x + (pair * grid.n_lines + line) * kLineWords;
        const Floats a = Load(words), b = Load(words + kLanes);
        low_a = Lower()(a, low_a), low_b = Lower()(b, low_b);
        high_a = Higher()(a, high_a), high_b = Higher()(b, high_b);
      }
      const Floats lows = Lower()(EverySecond<0>(low_a, low_b), EverySecond<1>(low_a, low_b));
      const Floats highs = Higher()(EverySecond<0>(high_a, high_b), EverySecond<1>(high_a, high_b));
      Store(Lower()(lows, Load(low)), low);
      Store(Higher()(highs, Load(high)), high);
    }
  }
}

void RoundScales(const float* low, const float* high, int n, int bits, bool is_symmetric,
                 std::byte* scale_bits, std::byte* min_bits, float* scales, float* minima) {
  const Floats levels = Splat(is_symmetric ? 127.0f : static_cast<float>((1 << bits) - 1));
  const Floats zero = Splat(0.0f), one = Splat(1.0f);
  for (int i = 0; i < n; i += kLanes) {
    const Floats lows = Load(low + i), highs = Load(high + i);
    const Ints is_empty = highs < lows;
    Floats scale = (is_symmetric ? Higher()(highs, zero - lows) : highs - lows) / levels;
    if (is_symmetric && bits == 4) {
      // Code 0 is the element that lies farthest out, on its side.
      scale = Select(highs < zero - lows, lows, highs) / Splat(-8.0f);
    }
    scale = Select(is_symmetric ? is_empty : is_empty | (lows == highs), one, scale);
    Ints f16 = ToF16Bits(scale);
    f16 = Select((f16 & Splat(0x7fff)) == Splat(0), Splat(1), f16);
    StoreShorts(f16, scale_bits + 2 * i);
    const Floats rounded = FromF16Bits(f16);
    Store(rounded, scales + i);
    if (is_symmetric) {
      Store(bits == 4 ? rounded * Splat(-8.0f) : zero, minima + i);
      continue;
    }
    // The sum leaves no -0, which would depend on the order of equal values.
    f16 = ToF16Bits(Select(is_empty, zero, lows) + zero);
    StoreShorts(f16, min_bits + 2 * i);
    Store(FromF16Bits(f16), minima + i);
  }
}

// --- Codes ---

struct Line {
  Floats a, b;  // words 0-15 and 16-31
};

struct Codes {
  Ints a, b;
};

KVL_INLINE Floats RoundedCodes(Floats x, Floats scale, Floats min, Floats lowest, Floats highest) {
  const Floats code = (x - min) / scale;
  return Lower()(Higher()(code, lowest), highest) + Splat(kRoundingBias);
}

KVL_INLINE Ints CodeBits(Floats rounded) { return BitsOf(rounded) & Splat(0xff); }

KVL_INLINE Floats Residual(Floats x, Floats rounded, Floats scale, Floats min) {
  return x - ((rounded - Splat(kRoundingBias)) * scale + min);
}

// Collects the codes of the lines of a group and stores them as packed_layout.h says.
template <int kBits>
class GroupWriter {
 public:
  explicit GroupWriter(std::byte* to) : to_(reinterpret_cast<uint8_t*>(to)) {}

  KVL_INLINE void Add(int line, Codes codes) {
    if constexpr (kBits == 8) {
      uint8_t bytes[kLineWords];
      StoreBytes(codes.a, bytes);
      StoreBytes(codes.b, bytes + kLanes);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) __builtin_memcpy(to_ + 16 * i + 8 * line, bytes + 8 * i, 8);
    } else {
      constexpr int kShift = LowBits(kBits);
      if constexpr (HasHighBit(kBits)) {
        const Ints low = Splat((1 << kShift) - 1);
        const uint32_t high = LaneBits(low < codes.a) | LaneBits(low < codes.b) << kLanes;
        __builtin_memcpy(to_ + 64 + 4 * line, &high, sizeof(high));
        codes.a = codes.a & low, codes.b = codes.b & low;
      }
      a_ = a_ | codes.a << (kShift * line);
      b_ = b_ | codes.b << (kShift * line);
    }
  }
  KVL_INLINE void Finish() {
    if constexpr (kBits != 8) {
      StoreShorts(a_, to_);
      StoreShorts(b_, to_ + 32);
    }
  }

 private:
  uint8_t* to_;
  Ints a_ = Splat(0), b_ = Splat(0);
};

// Scales [groups][2 * n_pairs], where groups are lines of a pair.
class ScalesByPair {
 public:
  explicit ScalesByPair(const QuantiseParams& p) : p_(p) {
    for (int line = 0; line < p.grid.n_lines; ++line) {
      offsets_[line] = line / p.group * 2 * p.grid.n_pairs;
    }
  }
  KVL_INLINE Line Read(const float* table, int pair, int line) const {
    const Floats both = SplatPair(table + offsets_[line] + 2 * pair);
    return {both, both};
  }
  KVL_INLINE Line Scale(int pair, int line) const { return Read(p_.scales, pair, line); }
  KVL_INLINE Line Minimum(int pair, int line) const { return Read(p_.minima, pair, line); }

 private:
  const QuantiseParams& p_;
  int offsets_[kMaxPackedRank / 16];
};

// Scales [groups][lines][32 words], where groups are pairs.
class ScalesByWord {
 public:
  explicit ScalesByWord(const QuantiseParams& p) : p_(p) {
    for (int pair = 0; pair < p.grid.n_pairs; ++pair) {
      offsets_[pair] = pair / p.group * p.grid.n_lines * kLineWords;
    }
  }
  KVL_INLINE Line Read(const float* table, int pair, int line) const {
    const float* words = table + offsets_[pair] + line * kLineWords;
    return {Load(words), Load(words + kLanes)};
  }
  KVL_INLINE Line Scale(int pair, int line) const { return Read(p_.scales, pair, line); }
  KVL_INLINE Line Minimum(int pair, int line) const { return Read(p_.minima, pair, line); }

 private:
  const QuantiseParams& p_;
  int offsets_[kMaxPackedRank / 2];
};

// Packs the codes of a block. lines.Line32 gives those of line `line` of pair `pair`.
template <int kBits, typename Lines>
void PackLines(const QuantiseParams& p, const Lines& lines) {
  constexpr int kGroupLines = LinesPerGroup(kBits), kGroupBytes = GroupBytes(kBits);
  const PairGrid grid = p.grid;
  std::byte* to = p.codes;
  if (p.is_key) {  // lines as they follow each other
    for (int first = 0; first < 4 * grid.n_pairs; first += kGroupLines, to += kGroupBytes) {
      GroupWriter<kBits> writer(to);
      for (int i = 0; i < kGroupLines; ++i) {
        writer.Add(i, lines.Line32((first + i) / 4, (first + i) % 4));
      }
      writer.Finish();
    }
    return;
  }
  for (int first = 0; first < grid.n_pairs; first += kGroupLines) {
    for (int line = 0; line < grid.n_lines; ++line, to += kGroupBytes) {
      GroupWriter<kBits> writer(to);
      for (int i = 0; i < kGroupLines; ++i) writer.Add(i, lines.Line32(first + i, line));
      writer.Finish();
    }
  }
}

// Makes codes of even steps.
template <int kBits, typename Scales>
class Quantiser {
 public:
  explicit Quantiser(const QuantiseParams& p)
      : p_(p),
        scales_(p),
        lowest_(Splat(kBits == 8 && p.is_symmetric ? -127.0f : 0.0f)),
        highest_(
            Splat(kBits == 8 && p.is_symmetric ? 127.0f : static_cast<float>((1 << kBits) - 1))) {}

  KVL_INLINE Codes Line32(int pair, int line) const {
    const int64_t offset = static_cast<int64_t>(pair * p_.grid.n_lines + line) * kLineWords;
    const Floats a = Load(p_.x + offset), b = Load(p_.x + offset + kLanes);
    const Line scale = scales_.Scale(pair, line), min = scales_.Minimum(pair, line);
    const Floats code_a = RoundedCodes(a, scale.a, min.a, lowest_, highest_);
    const Floats code_b = RoundedCodes(b, scale.b, min.b, lowest_, highest_);
    if (p_.residual != nullptr) {
      Store(Residual(a, code_a, scale.a, min.a), p_.residual + offset);
      Store(Residual(b, code_b, scale.b, min.b), p_.residual + offset + kLanes);
    }
    return {CodeBits(code_a), CodeBits(code_b)};
  }

 private:
  const QuantiseParams& p_;
  const Scales scales_;
  const Floats lowest_, highest_;
};

// Makes codes of a table. The number of boundaries below a quotient chooses its code.
template <typename Scales>
class TableQuantiser {
 public:
  explicit TableQuantiser(const QuantiseParams& p) : p_(p), scales_(p) {}

  KVL_INLINE Codes Line32(int pair, int line) const {
    const int64_t offset = static_cast<int64_t>(pair * p_.grid.n_lines + line) * kLineWords;
    const Line scale = scales_.Scale(pair, line);
    float* const residual = p_.residual == nullptr ? nullptr : p_.residual + offset;
    return {Choose(Load(p_.x + offset), scale.a, residual),
            Choose(Load(p_.x + offset + kLanes), scale.b,
                   residual == nullptr ? nullptr : residual + kLanes)};
  }

 private:
  KVL_INLINE Ints Choose(Floats x, Floats scale, float* residual) const {
    const TableSteps& steps = *p_.steps;
    const Floats quotient = x / scale;
    Floats code = Splat(steps.codes[0]), number = Splat(steps.numbers[0]);
    for (int i = 1; i < steps.n; ++i) {
      const Ints is_above = Splat(steps.boundaries[i]) < quotient;
      code = Select(is_above, Splat(steps.codes[i]), code);
      number = Select(is_above, Splat(steps.numbers[i]), number);
    }
    if (residual != nullptr) Store(x - number * scale, residual);
    return CodeBits(code + Splat(kRoundingBias));
  }

  const QuantiseParams& p_;
  const Scales scales_;
};

template <int kBits>
void QuantiseBits(const QuantiseParams& p) {
  if (p.by_pairs) {
    PackLines<kBits>(p, Quantiser<kBits, ScalesByPair>(p));
  } else {
    PackLines<kBits>(p, Quantiser<kBits, ScalesByWord>(p));
  }
}

template <int kBits>
void QuantiseByTable(const QuantiseParams& p) {
  if (p.by_pairs) {
    PackLines<kBits>(p, TableQuantiser<ScalesByPair>(p));
  } else {
    PackLines<kBits>(p, TableQuantiser<ScalesByWord>(p));
  }
}

void Quantise(const QuantiseParams& p) {
  if (p.steps != nullptr) {
    if (p.bits == 2) return QuantiseByTable<2>(p);
    return p.bits == 3 ? QuantiseByTable<3>(p) : QuantiseByTable<4>(p);
  }
  switch (p.bits) {
    case 1:
      return QuantiseBits<1>(p);
    case 2:
      return QuantiseBits<2>(p);
    case 3:
      return QuantiseBits<3>(p);
    case 4:
      return QuantiseBits<4>(p);
    case 5:
      return QuantiseBits<5>(p);
    default:
      return QuantiseBits<8>(p);
  }
}

constexpr SealKernels kSealKernelSet = {.expand = Expand,
                                        .gather_columns = GatherColumns,
                                        .find_tails = FindTails,
                                        .find_candidates = FindCandidates,
                                        .extend_ranges = ExtendRanges,
                                        .extend_token_ranges = ExtendTokenRanges,
                                        .round_scales = RoundScales,
                                        .quantise = Quantise,
                                        .encode_units = EncodeUnits,
                                        .encode_trellis = EncodeTrellis,
                                        .unit_losses = UnitLosses,
                                        .element_variances = ElementVariances,
                                        .member_variances = MemberVariances,
                                        .divide_elements = DivideElements,
                                        .to_f16 = ToF16Rows,
                                        .from_f16 = FromF16Rows,
                                        .multiply = Multiply,
                                        .multiply_transposed = MultiplyTransposed,
                                        .dot = Dot,
                                        .add_scaled = AddScaled,
                                        .scale = Scale,
                                        .max_abs = MaxAbs};

}  // namespace
}  // namespace kvlathe
