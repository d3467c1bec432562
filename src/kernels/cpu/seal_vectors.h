// Sixteen lanes at a time in the widest vectors of the instruction set that the including file is
// compiled for. What is summed, is summed per lane and then folded in one fixed order, so that the
// width does not show in the result (with -ffp-contract=off).
//
// Only for files that are compiled for one instruction set: all is local to the file, and nothing
// of the standard library is called, whose functions the linker could take from here for everyone.
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
constexpr int kParts = kLanes / kVectorLanes;

using FloatVector = float __attribute__((vector_size(kVectorBytes)));
using IntVector = int32_t __attribute__((vector_size(kVectorBytes)));
using LongVector = int64_t __attribute__((vector_size(kVectorBytes)));
using DoubleVector = double __attribute__((vector_size(kVectorBytes)));
using HalfFloatVector = float __attribute__((vector_size(kVectorBytes / 2)));
using ShortVector = uint16_t __attribute__((vector_size(kVectorBytes / 2)));
using ByteVector = uint8_t __attribute__((vector_size(kVectorBytes / 4)));

template <typename Vector>
struct LanesOf {
  Vector part[kParts];
};
using Floats = LanesOf<FloatVector>;
using Ints = LanesOf<IntVector>;

template <typename T>
KVL_INLINE T LoadAs(const void* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}

// f(0), ... f(kParts - 1)
template <typename Vector, typename F>
KVL_INLINE LanesOf<Vector> Each(const F& f) {
  LanesOf<Vector> y;
#pragma GCC unroll 4
  for (int i = 0; i < kParts; ++i) y.part[i] = f(i);
  return y;
}

#define KVL_EACH(Vector, expression) \
  Each<Vector>([&](int i) __attribute__((always_inline)) { return expression; })

KVL_INLINE Floats operator+(Floats a, Floats b) {
  return KVL_EACH(FloatVector, a.part[i] + b.part[i]);
}
KVL_INLINE Floats operator-(Floats a, Floats b) {
  return KVL_EACH(FloatVector, a.part[i] - b.part[i]);
}
KVL_INLINE Floats operator*(Floats a, Floats b) {
  return KVL_EACH(FloatVector, a.part[i] * b.part[i]);
}
KVL_INLINE Floats operator/(Floats a, Floats b) {
  return KVL_EACH(FloatVector, a.part[i] / b.part[i]);
}
KVL_INLINE Ints operator+(Ints a, Ints b) { return KVL_EACH(IntVector, a.part[i] + b.part[i]); }
KVL_INLINE Ints operator-(Ints a, Ints b) { return KVL_EACH(IntVector, a.part[i] - b.part[i]); }
KVL_INLINE Ints operator&(Ints a, Ints b) { return KVL_EACH(IntVector, a.part[i] & b.part[i]); }
KVL_INLINE Ints operator|(Ints a, Ints b) { return KVL_EACH(IntVector, a.part[i] | b.part[i]); }
KVL_INLINE Ints operator^(Ints a, Ints b) { return KVL_EACH(IntVector, a.part[i] ^ b.part[i]); }
KVL_INLINE Ints operator<<(Ints a, int n) { return KVL_EACH(IntVector, a.part[i] << n); }
KVL_INLINE Ints operator>>(Ints a, int n) { return KVL_EACH(IntVector, a.part[i] >> n); }

// -1 where true, else 0.
KVL_INLINE Ints operator<(Floats a, Floats b) {
  return KVL_EACH(IntVector, (IntVector)(a.part[i] < b.part[i]));
}
KVL_INLINE Ints operator<=(Floats a, Floats b) {
  return KVL_EACH(IntVector, (IntVector)(a.part[i] <= b.part[i]));
}
KVL_INLINE Ints operator==(Floats a, Floats b) {
  return KVL_EACH(IntVector, (IntVector)(a.part[i] == b.part[i]));
}
KVL_INLINE Ints operator<(Ints a, Ints b) {
  return KVL_EACH(IntVector, (IntVector)(a.part[i] < b.part[i]));
}
KVL_INLINE Ints operator==(Ints a, Ints b) {
  return KVL_EACH(IntVector, (IntVector)(a.part[i] == b.part[i]));
}

KVL_INLINE Floats Select(Ints mask, Floats a, Floats b) {
  return KVL_EACH(FloatVector, mask.part[i] ? a.part[i] : b.part[i]);
}
KVL_INLINE Ints Select(Ints mask, Ints a, Ints b) {
  return KVL_EACH(IntVector, mask.part[i] ? a.part[i] : b.part[i]);
}

// The lower and the higher of two; b where one is NaN.
struct Lower {
  KVL_INLINE FloatVector operator()(FloatVector a, FloatVector b) const { return a < b ? a : b; }
  KVL_INLINE Floats operator()(Floats a, Floats b) const {
    return KVL_EACH(FloatVector, (*this)(a.part[i], b.part[i]));
  }
};
struct Higher {
  KVL_INLINE FloatVector operator()(FloatVector a, FloatVector b) const { return a > b ? a : b; }
  KVL_INLINE Floats operator()(Floats a, Floats b) const {
    return KVL_EACH(FloatVector, (*this)(a.part[i], b.part[i]));
  }
};
struct Sum {
  KVL_INLINE FloatVector operator()(FloatVector a, FloatVector b) const { return a + b; }
};

KVL_INLINE Ints Splat(int32_t x) {
  return KVL_EACH(IntVector, (static_cast<void>(i), IntVector{} + x));
}
KVL_INLINE Ints BitsOf(Floats a) { return KVL_EACH(IntVector, (IntVector)a.part[i]); }
KVL_INLINE Floats FromBits(Ints a) { return KVL_EACH(FloatVector, (FloatVector)a.part[i]); }
KVL_INLINE Floats Splat(float x) { return FromBits(Splat(LoadAs<int32_t>(&x))); }
// x[0], x[1], x[0], x[1], ...
KVL_INLINE Floats SplatPair(const float* x) {
  const LongVector both = LongVector{} + LoadAs<int64_t>(x);
  return KVL_EACH(FloatVector, (static_cast<void>(i), (FloatVector)both));
}

KVL_INLINE Floats Load(const float* from) {
  return KVL_EACH(FloatVector, LoadAs<FloatVector>(from + i * kVectorLanes));
}
KVL_INLINE Ints LoadShorts(const void* from) {
  return KVL_EACH(
      IntVector,
      __builtin_convertvector(
          LoadAs<ShortVector>(static_cast<const char*>(from) + i * kVectorBytes / 2), IntVector));
}
KVL_INLINE void Store(Floats a, float* to) { __builtin_memcpy(to, &a, sizeof(a)); }
KVL_INLINE void Store(Ints a, void* to) { __builtin_memcpy(to, &a, sizeof(a)); }
KVL_INLINE void StoreShorts(Ints a, void* to) {
#pragma GCC unroll 4
  for (int i = 0; i < kParts; ++i) {
    const ShortVector low = __builtin_convertvector(a.part[i], ShortVector);
    __builtin_memcpy(static_cast<char*>(to) + i * kVectorBytes / 2, &low, sizeof(low));
  }
}
KVL_INLINE void StoreBytes(Ints a, uint8_t* to) {
#pragma GCC unroll 4
  for (int i = 0; i < kParts; ++i) {
    const ByteVector low = __builtin_convertvector(a.part[i], ByteVector);
    __builtin_memcpy(to + i * kVectorBytes / 4, &low, sizeof(low));
  }
}

// A bit per lane, of a mask of -1 and 0.
KVL_INLINE uint32_t LaneBits(Ints mask) {
  uint32_t bits = 0;
#pragma GCC unroll 4
  for (int i = 0; i < kParts; ++i) {
#if defined(__AVX512DQ__)
    const uint32_t part = _mm512_movepi32_mask((__m512i)mask.part[i]);
#elif defined(__AVX__)
    const uint32_t part = _mm256_movemask_ps((__m256)mask.part[i]);
#elif defined(__SSE2__)
    const uint32_t part = _mm_movemask_ps((__m128)mask.part[i]);
#else
    uint32_t part = 0;
    for (int lane = 0; lane < kVectorLanes; ++lane) part |= (mask.part[i][lane] & 1u) << lane;
#endif
    bits |= part << (i * kVectorLanes);
  }
  return bits;
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
// Of the even lanes and of the odd lanes: lanes 8 apart first, then 4, then 2.
template <typename F>
KVL_INLINE Pair FoldPairs(Floats a, const F& f) {
#pragma GCC unroll 2
  for (int n = kParts / 2; n >= 1; n /= 2) {
#pragma GCC unroll 2
    for (int i = 0; i < n; ++i) a.part[i] = f(a.part[i], a.part[i + n]);
  }
  const FloatVector folded = FoldVector<kVectorLanes / 2>(a.part[0], f);
  return {folded[0], folded[1]};
}

template <int kFirst, int... kLane>
KVL_INLINE FloatVector EverySecond(FloatVector a, FloatVector b,
                                   std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(a, b, (2 * kLane + kFirst)...);
}
// The even (0) or odd (1) words of 32.
template <int kFirst>
KVL_INLINE Floats EverySecond(Floats a, Floats b) {
  FloatVector words[2 * kParts];
#pragma GCC unroll 4
  for (int i = 0; i < kParts; ++i) words[i] = a.part[i], words[kParts + i] = b.part[i];
  return KVL_EACH(FloatVector, EverySecond<kFirst>(words[2 * i], words[2 * i + 1], LaneSequence()));
}

}  // namespace
}  // namespace kvlathe
