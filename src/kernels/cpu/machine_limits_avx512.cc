#include <immintrin.h>

#include "kernels/cpu/machine_limits.h"

namespace kvlathe {
namespace {

constexpr int64_t kLineBytes = 64;

// kStreams equal parts of the data side by side, kLines lines of each per step, optionally fetched
// kAheadBytes early. Memory controllers and prefetchers differ in how many streams they like.
template <int kStreams, int kLines, int kAheadBytes>
uint64_t Read(const std::byte* data, int64_t n_bytes) {
  static_assert(kReadLoopStep % (kStreams * kLines * kLineBytes) == 0);
  const int64_t stream_bytes = n_bytes / kStreams;
  __m512i sums[kLines];
#pragma GCC unroll 16
  for (int j = 0; j < kLines; ++j) sums[j] = _mm512_setzero_si512();
  for (int64_t i = 0; i < stream_bytes; i += kLines * kLineBytes) {
#pragma GCC unroll 4
    for (int s = 0; s < kStreams; ++s) {
      const std::byte* from = data + s * stream_bytes + i;
#pragma GCC unroll 16
      for (int j = 0; j < kLines; ++j) {
        if constexpr (kAheadBytes > 0) {
          _mm_prefetch(reinterpret_cast<const char*>(from + kAheadBytes + j * kLineBytes),
                       _MM_HINT_T0);
        }
        sums[j] = _mm512_xor_si512(sums[j], _mm512_loadu_si512(from + j * kLineBytes));
      }
    }
  }
  for (int j = 1; j < kLines; ++j) sums[0] = _mm512_xor_si512(sums[0], sums[j]);
  return static_cast<uint64_t>(_mm512_reduce_add_epi64(sums[0]));
}

}  // namespace

const ReadLoop kReadLoopsOfAvx512[kReadLoopsAvx512] = {
    {"4 lines", Read<1, 4, 0>},
    {"16 lines", Read<1, 16, 0>},
    {"4 lines, fetched 4 KiB ahead", Read<1, 4, 4096>},
    {"8 lines, fetched 1 KiB ahead", Read<1, 8, 1024>},
    {"2 streams of 8 lines, fetched 2 KiB ahead", Read<2, 8, 2048>},
    {"4 streams of 4 lines", Read<4, 4, 0>},
};

}  // namespace kvlathe
