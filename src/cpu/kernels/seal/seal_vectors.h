// Sixteen lanes at a time, in the widest vectors of the instruction set that the including file is
// compiled for: one vector, or halves of halves. Sums are taken per lane and then folded in one
// fixed order, so that the width does not show in the result (with -ffp-contract=off).
//
// Only files that are compiled for one instruction set may include this. Everything is local to the
// file, and nothing of the standard library is called, because the linker could take its functions
// from here for everyone.
#pragma once

#include <cstdint>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvlathe {
namespace {

#define KVL_INLINE inline __attribute__((always_inline))

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr int kVectorLanes = kVectorBytes / 4;
constexpr int kLanes = 16;

using FloatVector = float __attribute__((vector_size(kVectorBytes)));
using IntVector = int32_t __attribute__((vector_size(kVectorBytes)));
using LongVector = int64_t __attribute__((vector_size(kVectorBytes)));
using DoubleVector = double __attribute__((vector_size(kVectorBytes)));
using HalfFloatVector = float __attribute__((vector_size(kVectorBytes / 2)));
using ShortVector = uint16_t __attribute__((vector_size(kVectorBytes / 2)));
using ByteVector = uint8_t __attribute__((vector_size(kVectorBytes / 4)));

template <typename Half>
struct Two {
  Half low, high;
};
template <typename Vector>
constexpr bool kIsTwo = false;
template <typename Half>
constexpr bool kIsTwo<Two<Half>> = true;

// Whole<Vector>::Type is as many vectors as have sixteen lanes.
template <typename Part, bool kIsWhole = sizeof(Part) == 4 * kLanes>
struct Whole {
  using Type = typename Whole<Two<Part>>::Type;
};
template <typename Part>
struct Whole<Part, true> {
  using Type = Part;
};
using Floats = Whole<FloatVector>::Type;
using Ints = Whole<IntVector>::Type;

template <typename T>
KVL_INLINE T LoadAs(const void* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}

// --- Lane by lane. Vectors have these operators, and halves get them here. ---

#define KVL_BY_HALVES(op)                                 \
  template <typename Half>                                \
  KVL_INLINE auto operator op(Two<Half> a, Two<Half> b) { \
    using Result = decltype(a.low op b.low);              \
    return Two<Result>{a.low op b.low, a.high op b.high}; \
  }
KVL_BY_HALVES(+)
KVL_BY_HALVES(-)
KVL_BY_HALVES(*)
KVL_BY_HALVES(/)
KVL_BY_HALVES(&)
KVL_BY_HALVES(|)
KVL_BY_HALVES(^)
KVL_BY_HALVES(<)  // -1 where true, else 0
KVL_BY_HALVES(<=)
KVL_BY_HALVES(==)
#undef KVL_BY_HALVES

template <typename Half>
KVL_INLINE Two<Half> operator<<(Two<Half> a, int n) {
  return {a.low << n, a.high << n};
}
template <typename Half>
KVL_INLINE Two<Half> operator>>(Two<Half> a, int n) {
  return {a.low >> n, a.high >> n};
}

// Each lane by a number of its own.
template <typename Vector>
KVL_INLINE Vector ShiftedRight(Vector a, Vector n) {
  if constexpr (kIsTwo<Vector>) {
    return {ShiftedRight(a.low, n.low), ShiftedRight(a.high, n.high)};
  } else {
    return a >> n;
  }
}

template <typename Mask, typename Vector>
KVL_INLINE Vector Select(Mask mask, Vector a, Vector b) {
  if constexpr (kIsTwo<Vector>) {
    return {Select(mask.low, a.low, b.low), Select(mask.high, a.high, b.high)};
  } else {
    return mask ? a : b;
  }
}

// The lower and the higher of two numbers. The result is b where one of them is NaN.
struct Lower {
  template <typename Vector>
  KVL_INLINE Vector operator()(Vector a, Vector b) const {
    if constexpr (kIsTwo<Vector>) {
      return {(*this)(a.low, b.low), (*this)(a.high, b.high)};
    } else {
      return a < b ? a : b;
    }
  }
};
struct Higher {
  template <typename Vector>
  KVL_INLINE Vector operator()(Vector a, Vector b) const {
    if constexpr (kIsTwo<Vector>) {
      return {(*this)(a.low, b.low), (*this)(a.high, b.high)};
    } else {
      return a > b ? a : b;
    }
  }
};
struct Sum {
  template <typename Vector>
  KVL_INLINE Vector operator()(Vector a, Vector b) const {
    return a + b;
  }
};

// The same bits as another type of lanes.
template <typename To, typename From>
KVL_INLINE To Reinterpret(From a) {
  if constexpr (kIsTwo<From>) {
    using Half = decltype(To::low);
    return {Reinterpret<Half>(a.low), Reinterpret<Half>(a.high)};
  } else {
    return (To)a;
  }
}
KVL_INLINE Ints BitsOf(Floats a) { return Reinterpret<Ints>(a); }
KVL_INLINE Floats FromBits(Ints a) { return Reinterpret<Floats>(a); }

// Whole numbers as floats.
template <typename To = Floats, typename From>
KVL_INLINE To ToFloats(From a) {
  if constexpr (kIsTwo<From>) {
    using Half = decltype(To::low);
    return {ToFloats<Half>(a.low), ToFloats<Half>(a.high)};
  } else {
    return __builtin_convertvector(a, To);
  }
}

// `part` in all parts.
template <typename Vector, typename Part>
KVL_INLINE Vector Repeat(Part part) {
  if constexpr (kIsTwo<Vector>) {
    using Half = decltype(Vector::low);
    return {Repeat<Half>(part), Repeat<Half>(part)};
  } else {
    return (Vector)part;
  }
}
KVL_INLINE Ints Splat(int32_t x) { return Repeat<Ints>(IntVector{} + x); }
KVL_INLINE Floats Splat(float x) { return FromBits(Splat(LoadAs<int32_t>(&x))); }
// x[0], x[1], x[0], x[1], ...
KVL_INLINE Floats SplatPair(const float* x) {
  return Repeat<Floats>(LongVector{} + LoadAs<int64_t>(x));
}

// --- Memory ---

template <typename Vector>
KVL_INLINE Vector LoadLanes(const char* from) {
  if constexpr (kIsTwo<Vector>) {
    using Half = decltype(Vector::low);
    return {LoadLanes<Half>(from), LoadLanes<Half>(from + sizeof(Half))};
  } else {
    return LoadAs<Vector>(from);
  }
}
KVL_INLINE Floats Load(const float* from) {
  return LoadLanes<Floats>(reinterpret_cast<const char*>(from));
}
KVL_INLINE Ints LoadInts(const void* from) {
  return LoadLanes<Ints>(static_cast<const char*>(from));
}

template <typename Vector>
KVL_INLINE void StoreLanes(Vector a, char* to) {
  if constexpr (kIsTwo<Vector>) {
    StoreLanes(a.low, to);
    StoreLanes(a.high, to + sizeof(a.low));
  } else {
    __builtin_memcpy(to, &a, sizeof(a));
  }
}
KVL_INLINE void Store(Floats a, float* to) { StoreLanes(a, reinterpret_cast<char*>(to)); }
KVL_INLINE void Store(Ints a, void* to) { StoreLanes(a, static_cast<char*>(to)); }

// Loads sixteen unsigned numbers of 16 bits.
template <typename Vector = Ints>
KVL_INLINE Vector LoadShorts(const void* from) {
  if constexpr (kIsTwo<Vector>) {
    using Half = decltype(Vector::low);
    return {LoadShorts<Half>(from),
            LoadShorts<Half>(static_cast<const char*>(from) + sizeof(Half) / 2)};
  } else {
    return __builtin_convertvector(LoadAs<ShortVector>(from), IntVector);
  }
}
// Stores the low bits of each lane. Narrow is ShortVector or ByteVector.
template <typename Narrow, typename Vector>
KVL_INLINE void StoreNarrow(Vector a, char* to) {
  if constexpr (kIsTwo<Vector>) {
    StoreNarrow<Narrow>(a.low, to);
    StoreNarrow<Narrow>(a.high, to + sizeof(a.low) * sizeof(Narrow) / kVectorBytes);
  } else {
    const Narrow low = __builtin_convertvector(a, Narrow);
    __builtin_memcpy(to, &low, sizeof(low));
  }
}
KVL_INLINE void StoreShorts(Ints a, void* to) {
  StoreNarrow<ShortVector>(a, static_cast<char*>(to));
}
KVL_INLINE void StoreBytes(Ints a, void* to) { StoreNarrow<ByteVector>(a, static_cast<char*>(to)); }

// --- Across lanes ---

// Turns a mask of lanes that are -1 or 0 into a bit per lane.
KVL_INLINE uint32_t LaneBits(IntVector mask) {
#if defined(__AVX512DQ__)
  return _mm512_movepi32_mask((__m512i)mask);
#elif defined(__AVX__)
  return static_cast<uint32_t>(_mm256_movemask_ps((__m256)mask));
#elif defined(__SSE2__)
  return static_cast<uint32_t>(_mm_movemask_ps((__m128)mask));
#else
  uint32_t bits = 0;
  for (int lane = 0; lane < kVectorLanes; ++lane) bits |= (mask[lane] & 1u) << lane;
  return bits;
#endif
}
template <typename Half>
KVL_INLINE uint32_t LaneBits(Two<Half> mask) {
  return LaneBits(mask.low) | LaneBits(mask.high) << (sizeof(Half) / 4);
}

using LaneSequence = std::make_integer_sequence<int, kVectorLanes>;

template <int kStep, int... kLane>
KVL_INLINE FloatVector Exchange(FloatVector a, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(a, a, (kLane ^ kStep)...);
}
template <int kStep, typename F>
KVL_INLINE FloatVector FoldVector(FloatVector a, const F& f) {
  if constexpr (kStep < 2) {
    return a;
  } else {
    return FoldVector<kStep / 2>(f(a, Exchange<kStep>(a, LaneSequence())), f);
  }
}

struct Pair {
  float even, odd;
};
// Folds the even lanes into one number and the odd lanes into another: first lanes that are 8
// apart, then 4, then 2.
template <typename Vector, typename F>
KVL_INLINE Pair FoldPairs(Vector a, const F& f) {
  if constexpr (kIsTwo<Vector>) {
    return FoldPairs(f(a.low, a.high), f);
  } else {
    const FloatVector folded = FoldVector<kVectorLanes / 2>(a, f);
    return {folded[0], folded[1]};
  }
}

template <int kFirst, int... kLane>
KVL_INLINE FloatVector EverySecondLane(FloatVector a, FloatVector b,
                                       std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(a, b, (2 * kLane + kFirst)...);
}
// The even (0) or odd (1) of the lanes of a and b.
template <int kFirst, typename Vector>
KVL_INLINE Vector EverySecond(Vector a, Vector b) {
  if constexpr (kIsTwo<Vector>) {
    return {EverySecond<kFirst>(a.low, a.high), EverySecond<kFirst>(b.low, b.high)};
  } else {
    return EverySecondLane<kFirst>(a, b, LaneSequence());
  }
}

}  // namespace
}  // namespace kvlathe
