// How kernels read and write rows: four numbers at once where places allow it, and results rounded
// to the type that a plan asks for.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/simt/simt.h"
#include "tensor/dtype.h"

namespace kvlathe::cuda {

// kWidth numbers that are loaded and stored at once, at multiples of their size.
template <int kWidth>
struct alignas(4 * kWidth) Floats {
  float x[kWidth];
};

template <int kWidth>
KVL_DEVICE Floats<kWidth> LoadFloats(const float* from) {
  return *reinterpret_cast<const Floats<kWidth>*>(from);
}
template <int kWidth>
KVL_DEVICE void StoreFloats(const Floats<kWidth>& numbers, float* to) {
  *reinterpret_cast<Floats<kWidth>*>(to) = numbers;
}

// Numbers first, first + 1 ... of `to`, which has F32 or BF16, rounded to nearest even. first is a
// multiple of kWidth, 1 or 4.
template <int kWidth>
KVL_DEVICE void StoreRounded(const Floats<kWidth>& y, DType type, void* to, int64_t first) {
  if (type != DType::kBf16) return StoreFloats(y, static_cast<float*>(to) + first);
  auto* const bits = static_cast<uint16_t*>(to) + first;
  if constexpr (kWidth == 4) {
    *reinterpret_cast<simt::Words2*>(bits) = {
        {simt::PackBf16(y.x[0], y.x[1]), simt::PackBf16(y.x[2], y.x[3])}};
  } else {
    for (int i = 0; i < kWidth; ++i) bits[i] = static_cast<uint16_t>(simt::Bf16OfFloat(y.x[i]));
  }
}

KVL_DEVICE float LoadNumber(DType type, const void* from, int64_t idx) {
  if (type == DType::kBf16) return simt::FloatOfBf16(static_cast<const uint16_t*>(from)[idx]);
  return static_cast<const float*>(from)[idx];
}

// Whether rows that begin at `first`, `stride` elements apart, may be read by fours.
template <typename T>
bool InFours(const T* first, int64_t stride) {
  return reinterpret_cast<uintptr_t>(first) % (4 * sizeof(T)) == 0 && stride % 4 == 0;
}
inline bool InFours(DType type, const void* first, int64_t stride) {
  return reinterpret_cast<uintptr_t>(first) % static_cast<uintptr_t>(4 * SizeOf(type)) == 0 &&
         stride % 4 == 0;
}

}  // namespace kvlathe::cuda
