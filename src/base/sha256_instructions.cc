#include "base/sha256_instructions.h"

#include <cpuid.h>
#include <immintrin.h>

namespace kvlathe {

bool HasSha256Instructions() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool has_sse41 = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_SSE4_1) != 0;
  return has_sse41 && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & bit_SHA) != 0;
}

// Two rounds an instruction, whose operands have the words of the state in the order a, b, e, f and
// c, d, g, h from the highest lane down.
void AddSha256Blocks(const uint32_t* constants, const std::byte* bytes, size_t n_blocks,
                     uint32_t* state) {
  const auto lanes = [&](int i3, int i2, int i1, int i0) {
    return _mm_set_epi32(static_cast<int>(state[i3]), static_cast<int>(state[i2]),
                         static_cast<int>(state[i1]), static_cast<int>(state[i0]));
  };
  __m128i abef = lanes(0, 1, 4, 5), cdgh = lanes(2, 3, 6, 7);
  const __m128i big_endian = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
  for (; n_blocks > 0; --n_blocks, bytes += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];  // the words of the last 16 rounds, as a ring
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      __m128i& next = w[i % 4];
      if (i < 4) {
        next = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + 16 * i)),
                                big_endian);
      } else {
        const __m128i newest = w[(i + 3) % 4];
        const __m128i seven_before = _mm_alignr_epi8(newest, w[(i + 2) % 4], 4);
        const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(next, w[(i + 1) % 4]), seven_before);
        next = _mm_sha256msg2_epu32(sum, newest);
      }
      const __m128i k = _mm_loadu_si128(reinterpret_cast<const __m128i*>(constants + 4 * i));
      const __m128i added = _mm_add_epi32(next, k);
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, added);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(added, 0x0E));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  state[0] = static_cast<uint32_t>(_mm_extract_epi32(abef, 3));
  state[1] = static_cast<uint32_t>(_mm_extract_epi32(abef, 2));
  state[4] = static_cast<uint32_t>(_mm_extract_epi32(abef, 1));
  state[5] = static_cast<uint32_t>(_mm_extract_epi32(abef, 0));
  state[2] = static_cast<uint32_t>(_mm_extract_epi32(cdgh, 3));
  state[3] = static_cast<uint32_t>(_mm_extract_epi32(cdgh, 2));
  state[6] = static_cast<uint32_t>(_mm_extract_epi32(cdgh, 1));
  state[7] = static_cast<uint32_t>(_mm_extract_epi32(cdgh, 0));
}

}  // namespace kvlathe
