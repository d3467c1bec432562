// Ways of reading memory with the vectors of the instruction set that a file is compiled for.
#pragma once

#include "cpu/kernels/lanes.h"
#include "cpu/kernels/limits/machine_limits.h"

namespace kvlathe {
namespace {

constexpr int64_t kLineBytes = 64;
constexpr int kVecBytes = static_cast<int>(sizeof(Vec));
constexpr int kReadChains = kVecRegisters / 2;

// kStreams equal parts of the data side by side, kLines lines of each per step, optionally fetched
// kAheadBytes early. Memory controllers and prefetchers differ in how many streams they like.
template <int kStreams, int kLines, int kAheadBytes>
uint64_t Read(const std::byte* data, int64_t n_bytes) {
  static_assert(kReadLoopStep % (kStreams * kLines * kLineBytes) == 0);
  constexpr int kVecs = kLines * static_cast<int>(kLineBytes) / kVecBytes;
  const int64_t stream_bytes = n_bytes / kStreams;
  IntVec sums[kReadChains] = {};
  for (int64_t i = 0; i < stream_bytes; i += kLines * kLineBytes) {
#pragma GCC unroll 4
    for (int s = 0; s < kStreams; ++s) {
      const std::byte* from = data + s * stream_bytes + i;
#pragma GCC unroll 32
      for (int j = 0; j < kVecs; ++j) {
        if constexpr (kAheadBytes > 0) {
          if (j * kVecBytes % kLineBytes == 0) {
            _mm_prefetch(reinterpret_cast<const char*>(from + kAheadBytes + j * kVecBytes),
                         _MM_HINT_T0);
          }
        }
        sums[j % kReadChains] ^= LoadWords(from + j * kVecBytes);
      }
    }
  }
  for (int j = 1; j < kReadChains; ++j) sums[0] ^= sums[j];
  uint64_t words[kVecBytes / 8], sum = 0;
  __builtin_memcpy(words, &sums[0], sizeof(words));
  for (uint64_t word : words) sum ^= word;
  return sum;
}

constexpr ReadLoop kReadLoops[kVectorReadLoops] = {
    {"4 lines", Read<1, 4, 0>},
    {"16 lines", Read<1, 16, 0>},
    {"4 lines, fetched 4 KiB ahead", Read<1, 4, 4096>},
    {"8 lines, fetched 1 KiB ahead", Read<1, 8, 1024>},
    {"2 streams of 8 lines, fetched 2 KiB ahead", Read<2, 8, 2048>},
    {"4 streams of 4 lines", Read<4, 4, 0>},
};

}  // namespace
}  // namespace kvlathe
