// What kernels are written in. nvcc compiles them for a GPU; a C++ compiler compiles the same
// source for the fibre runtime (simt_host.h), where each thread of a block is a fibre, so that
// kernels run under a debugger and the sanitizers on a machine without a GPU.
//
// A kernel is `KVL_KERNEL(threads) Name(KVL_PARAMS(Params) p)`: it returns nothing, is launched
// with at most `threads` threads a block, a multiple of 32, and has one parameter, plain data by
// value (at most 32,764 bytes; launches that run often stay below 4 KiB). KVL_KERNEL(threads, 1)
// keeps the compiler from spilling registers so that a second block finds room beside. It is
// launched by simt/launch.h. Memory that the threads of a block share is dynamic alone (Shared);
// functions that lanes of a warp call together are met by all 32.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#include "cuda/simt/simt_device.h"
#else
#include "cuda/simt/simt_host.h"
#endif

namespace kvlathe::simt {

inline constexpr int kWarp = 32;

KVL_DEVICE int Lane() { return ThreadIdx() % kWarp; }
KVL_DEVICE int WarpIdx() { return ThreadIdx() / kWarp; }
KVL_DEVICE int WarpCount() { return BlockDim() / kWarp; }

// Sums and maxima over a warp; every lane gets them. The order is that of a butterfly.
KVL_DEVICE float SumOfWarp(float x) {
  for (int step = 16; step > 0; step /= 2) x += ShuffleXor(x, step);
  return x;
}
KVL_DEVICE float MaxOfWarp(float x) {
  for (int step = 16; step > 0; step /= 2) {
    const float other = ShuffleXor(x, step);
    x = x > other ? x : other;
  }
  return x;
}

// 16 and 8 bytes that are loaded and stored at once, at multiples of their size.
struct alignas(16) Words4 {
  uint32_t x[4];
};
struct alignas(8) Words2 {
  uint32_t x[2];
};

// Of numbers in memory that no thread of the kernel writes.
KVL_DEVICE Words4 LoadWords4(const void* from) { return LoadConst<Words4>(from); }
KVL_DEVICE Words2 LoadWords2(const void* from) { return LoadConst<Words2>(from); }
KVL_DEVICE uint32_t LoadWord(const void* from) { return LoadConst<uint32_t>(from); }

// Numbers of 16 bits, as bits. Rounding is to nearest even, as in tensor/dtype.h.
KVL_DEVICE float FloatOfBf16(uint32_t low_bits) { return std::bit_cast<float>(low_bits << 16); }
KVL_DEVICE float UpperBf16(uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000u); }
KVL_DEVICE uint32_t Bf16OfFloat(float x) { return PackBf16(x, 0.0f) & 0xffffu; }

}  // namespace kvlathe::simt
