// Vectors of floats as wide as the flags of the file allow, AVX-512 or AVX2, for kernels that
// compute in F32. With KVLATHE_NARROW_LANES a file that may use AVX-512 has vectors of AVX2 and the
// integer dots of AVX-VNNI, as AVX-512 encodes them: a test of those on machines that have only
// these. Everything has internal linkage, so that no such code is ever linked into a
// portable path.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace kvlathe {
namespace {

#define KVL_LANES inline __attribute__((always_inline))

#if defined(__AVX512F__) && !defined(KVLATHE_NARROW_LANES)

using Vec = __m512;
using IntVec = __m512i;
constexpr int kLanes = 16;
constexpr int kVecRegisters = 32;
// Whether the machine adds four products of bytes to a sum of 32 bits at once.
constexpr bool kHasByteDots = true;

KVL_LANES Vec Zero() { return _mm512_setzero_ps(); }
KVL_LANES Vec Set1(float x) { return _mm512_set1_ps(x); }
KVL_LANES Vec Load(const float* p) { return _mm512_loadu_ps(p); }
KVL_LANES void Store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
KVL_LANES Vec Fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
// The second where either is NaN.
KVL_LANES Vec Larger(Vec a, Vec b) { return _mm512_max_ps(a, b); }
KVL_LANES bool AnyGreater(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }
KVL_LANES float MaxOfLanes(Vec x) { return _mm512_reduce_max_ps(x); }
KVL_LANES float SumOfLanes(Vec x) { return _mm512_reduce_add_ps(x); }
KVL_LANES float FirstLane(Vec x) { return _mm512_cvtss_f32(x); }
// The last lane first.
KVL_LANES Vec Reversed(Vec x) {
  return _mm512_permutexvar_ps(
      _mm512_setr_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), x);
}

KVL_LANES IntVec LoadWords(const void* p) { return _mm512_loadu_si512(p); }
KVL_LANES void StoreWords(void* p, IntVec x) { _mm512_storeu_si512(p, x); }
// kLanes Bf16.
KVL_LANES Vec LoadBf16(const uint16_t* p) {
  const IntVec wide =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
// The first and the second Bf16 of words of two.
KVL_LANES Vec WidenFirst(IntVec words) { return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16)); }
KVL_LANES Vec WidenSecond(IntVec words) {
  return _mm512_castsi512_ps(
      _mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

// The same of kLanes words in memory, a number in every lane, and a sum plus a product. Tiles whose
// sums fill the registers are written with these: with AVX2 they stay instructions of their own in
// the order in which they are written, where g++ would keep numbers for later and spill sums.
KVL_LANES Vec LoadFirsts(const void* words) { return WidenFirst(LoadWords(words)); }
KVL_LANES Vec LoadSeconds(const void* words) { return WidenSecond(LoadWords(words)); }
KVL_LANES Vec Broadcast(const float* p) { return Set1(*p); }
KVL_LANES Vec AddProduct(Vec sum, Vec a, Vec b) { return Fma(a, b, sum); }

KVL_LANES Vec LoadF16(const void* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
// kLanes unsigned 16-bit, unsigned 8-bit or signed 8-bit numbers.
KVL_LANES IntVec LoadShorts(const void* p) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
KVL_LANES IntVec LoadBytes(const void* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
KVL_LANES IntVec LoadSignedBytes(const void* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
KVL_LANES IntVec ShiftRight(IntVec x, int bits) {
  return _mm512_srl_epi32(x, _mm_cvtsi32_si128(bits));
}
KVL_LANES IntVec And(IntVec x, int mask) { return _mm512_and_si512(x, _mm512_set1_epi32(mask)); }
// Bits first, first + 1, ... of x, one per lane, as `value` or 0.
KVL_LANES IntVec SpreadBits(uint32_t x, int first, int value) {
  return _mm512_maskz_set1_epi32(static_cast<__mmask16>(x >> first), value);
}
KVL_LANES Vec ToFloats(IntVec x) { return _mm512_cvtepi32_ps(x); }

// Words of 16 bits.
KVL_LANES IntVec SetWords(int16_t x) { return _mm512_set1_epi16(x); }
KVL_LANES IntVec ShiftWords(IntVec x, int bits) {  // right
  return _mm512_srl_epi16(x, _mm_cvtsi32_si128(bits));
}
KVL_LANES IntVec ShiftSignedWords(IntVec x, int bits) {
  return _mm512_sra_epi16(x, _mm_cvtsi32_si128(bits));
}
// To the right, round the end.
KVL_LANES IntVec TurnWords(IntVec x, int bits) {
  return _mm512_shrdv_epi16(x, x, _mm512_set1_epi16(static_cast<int16_t>(bits)));
}
// In every 128 bits, bytes or words of 16 bits of a and b in turn, from the lower or the upper half
// of either.
KVL_LANES IntVec MixLowerBytes(IntVec a, IntVec b) { return _mm512_unpacklo_epi8(a, b); }
KVL_LANES IntVec MixUpperBytes(IntVec a, IntVec b) { return _mm512_unpackhi_epi8(a, b); }
KVL_LANES IntVec MixLowerWords(IntVec a, IntVec b) { return _mm512_unpacklo_epi16(a, b); }
KVL_LANES IntVec MixUpperWords(IntVec a, IntVec b) { return _mm512_unpackhi_epi16(a, b); }
KVL_LANES IntVec MixLowerPairs(IntVec a, IntVec b) { return _mm512_unpacklo_epi64(a, b); }
KVL_LANES IntVec MixUpperPairs(IntVec a, IntVec b) { return _mm512_unpackhi_epi64(a, b); }
// Stores the first 128 bits of all four vectors, then the second ones of all, and so on.
KVL_LANES void StoreTurnedQuarters(const IntVec (&x)[4], void* to) {
  const IntVec a = _mm512_shuffle_i64x2(x[0], x[1], 0x44),
               b = _mm512_shuffle_i64x2(x[2], x[3], 0x44);
  const IntVec c = _mm512_shuffle_i64x2(x[0], x[1], 0xee),
               d = _mm512_shuffle_i64x2(x[2], x[3], 0xee);
  auto* const lines = static_cast<IntVec*>(to);
  StoreWords(lines, _mm512_shuffle_i64x2(a, b, 0x88));
  StoreWords(lines + 1, _mm512_shuffle_i64x2(a, b, 0xdd));
  StoreWords(lines + 2, _mm512_shuffle_i64x2(c, d, 0x88));
  StoreWords(lines + 3, _mm512_shuffle_i64x2(c, d, 0xdd));
}
// Two words of 32 bits in turn.
KVL_LANES IntVec LoadTwoInts(const void* first, const void* second) {
  int32_t a, b;
  __builtin_memcpy(&a, first, sizeof(a));
  __builtin_memcpy(&b, second, sizeof(b));
  return _mm512_mask_set1_epi32(_mm512_set1_epi32(a), 0xaaaa, b);
}
// All bits of the words whose bit of x, from `first` on, is set.
KVL_LANES IntVec SpreadToWords(uint32_t x, int first) {
  return _mm512_movm_epi16(static_cast<__mmask32>(x >> first));
}
// All bits of the bytes whose bit of their place is set, byte i having bit i modulo 8.
KVL_LANES IntVec SpreadToBytes(IntVec x) {
  const IntVec bits = _mm512_set1_epi64(static_cast<int64_t>(0x8040201008040201u));
  return _mm512_movm_epi8(_mm512_test_epi8_mask(x, bits));
}
// All bits of the bytes that are alike.
KVL_LANES IntVec EqualBytes(IntVec a, IntVec b) {
  return _mm512_movm_epi8(_mm512_cmpeq_epi8_mask(a, b));
}
KVL_LANES IntVec WhereSet(IntVec mask, IntVec set, IntVec other) {
  return _mm512_ternarylogic_epi32(mask, set, other, 0xca);
}
// 16 bytes, in every part of 128 bits; and look-ups in them, 0 for negative places.
KVL_LANES IntVec LoadTable(const int8_t* p) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
KVL_LANES IntVec ShuffleBytes(IntVec table, IntVec places) {
  return _mm512_shuffle_epi8(table, places);
}
// Sums of 32 bits plus both products of each pair of words. Additions stay in the order and in the
// register in which they are written: g++ would add integers up in trees, which take more registers
// than there are, or copy every sum back and forth.
KVL_LANES IntVec AddDots(IntVec sums, IntVec a, IntVec b) {
  asm("vpdpwssd %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
  return sums;
}
// Four bytes, in every word of 32 bits.
KVL_LANES IntVec BroadcastFour(const void* bytes) {
  int32_t four;
  __builtin_memcpy(&four, bytes, sizeof(four));
  return _mm512_set1_epi32(four);
}
// Sums of 32 bits plus the sums of neighbouring products of both pairs of vectors of bytes, of
// which the first of either has no sign. Without kHasByteDots four products must fit into 16 bits.
KVL_LANES IntVec AddByteDots(IntVec sums, IntVec a, IntVec b, IntVec c, IntVec d) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(c), "v"(d));
  return sums;
}
KVL_LANES IntVec AddBytes(IntVec a, IntVec b) { return _mm512_add_epi8(a, b); }
KVL_LANES Vec FirstWordsToFloats(IntVec x) {  // of kLanes words
  return _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm512_castsi512_si256(x)));
}
KVL_LANES Vec LastWordsToFloats(IntVec x) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(x, 1)));
}
// The nearest integers of 16 numbers, which must fit.
KVL_LANES void StoreShorts(int16_t* p, const Vec (&x)[1]) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(x[0])));
}

// p[0], p[1], p[0], p[1], ...
KVL_LANES Vec BroadcastPair(const float* p) {
  double pair;
  __builtin_memcpy(&pair, p, sizeof(pair));
  return _mm512_castpd_ps(_mm512_set1_pd(pair));
}
// Sums of neighbours: a[0] + a[1], a[2] + a[3], ..., b[0] + b[1], ...
KVL_LANES Vec SumPairs(Vec a, Vec b) {
  const IntVec first = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const IntVec second =
      _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  return _mm512_add_ps(_mm512_permutex2var_ps(a, first, b), _mm512_permutex2var_ps(a, second, b));
}
// x[0], 0, x[2], 0, ... whatever the others hold.
KVL_LANES Vec ClearSeconds(Vec x) { return _mm512_maskz_mov_ps(0x5555, x); }

KVL_LANES Vec Floor(Vec x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}
KVL_LANES Vec Nearest(Vec x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
KVL_LANES Vec Smaller(Vec a, Vec b) { return _mm512_min_ps(a, b); }
KVL_LANES Vec Absolute(Vec x) { return _mm512_abs_ps(x); }
// x >= 0 with the sign of another.
KVL_LANES Vec WithSign(Vec x, Vec of) { return _mm512_or_ps(x, _mm512_and_ps(of, Set1(-0.0f))); }
KVL_LANES Vec WherePositive(Vec x, Vec positive, Vec other) {
  return _mm512_mask_mov_ps(other, _mm512_cmp_ps_mask(x, Zero(), _CMP_GT_OQ), positive);
}
// 2^x for whole x from -127 (which gives 0) to 127.
KVL_LANES Vec PowerOf2(Vec x) {
  const IntVec exponent = _mm512_add_epi32(_mm512_cvtps_epi32(x), _mm512_set1_epi32(127));
  return _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23));
}
// x 2^n for whole |n| < 250, also where 2^n is no float.
KVL_LANES Vec TimesPowerOf2(Vec x, Vec n) { return _mm512_scalef_ps(x, n); }

KVL_LANES __mmask16 LaneMask(int64_t n) {
  return n >= kLanes ? 0xffff : static_cast<__mmask16>((1u << n) - 1);
}
// The first n lanes, at least one; the others are 0 and their memory is left alone.
KVL_LANES Vec FirstLanes(Vec x, int64_t n) { return _mm512_maskz_mov_ps(LaneMask(n), x); }
KVL_LANES Vec LoadFirst(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(LaneMask(n), p); }
KVL_LANES void StoreFirst(float* p, int64_t n, Vec x) { _mm512_mask_storeu_ps(p, LaneMask(n), x); }
// Bf16 rounded to nearest even, NaN stays NaN.
KVL_LANES void StoreFirstBf16(uint16_t* p, int64_t n, Vec x) {
  _mm256_mask_storeu_epi16(p, LaneMask(n), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
}

#else

using Vec = __m256;
using IntVec = __m256i;
constexpr int kLanes = 8;
constexpr int kVecRegisters = 16;
#if defined(__AVXVNNI__)
constexpr bool kHasByteDots = true;
#define KVL_DOT_ENCODING "%{vex%} "
#elif defined(KVLATHE_NARROW_LANES)
constexpr bool kHasByteDots = true;
#define KVL_DOT_ENCODING "%{evex%} "
#else
constexpr bool kHasByteDots = false;
#endif

KVL_LANES Vec Zero() { return _mm256_setzero_ps(); }
KVL_LANES Vec Set1(float x) { return _mm256_set1_ps(x); }
KVL_LANES Vec Load(const float* p) { return _mm256_loadu_ps(p); }
KVL_LANES void Store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
KVL_LANES Vec Fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
KVL_LANES Vec Larger(Vec a, Vec b) { return _mm256_max_ps(a, b); }
KVL_LANES bool AnyGreater(Vec a, Vec b) {
  return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0;
}
KVL_LANES float MaxOfLanes(Vec x) {
  __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}
KVL_LANES float SumOfLanes(Vec x) {
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
KVL_LANES float FirstLane(Vec x) { return _mm256_cvtss_f32(x); }
KVL_LANES Vec Reversed(Vec x) {
  return _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0));
}

KVL_LANES IntVec LoadWords(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
KVL_LANES void StoreWords(void* p, IntVec x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
KVL_LANES Vec LoadBf16(const uint16_t* p) {
  const IntVec wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
KVL_LANES Vec WidenFirst(IntVec words) { return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16)); }
KVL_LANES Vec WidenSecond(IntVec words) {
  return _mm256_castsi256_ps(
      _mm256_and_si256(words, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

KVL_LANES Vec LoadFirsts(const void* words) {
  Vec x;
  asm volatile("vmovups %1, %0\n\tvpslld $16, %0, %0"
               : "=x"(x)
               : "m"(*static_cast<const __m256i_u*>(words)));
  return x;
}
// The mask is read from memory, because a register less would be left for sums.
KVL_LANES Vec LoadSeconds(const void* words) {
  alignas(32) static constexpr uint32_t kMask[] = {0xffff0000u, 0xffff0000u, 0xffff0000u,
                                                   0xffff0000u, 0xffff0000u, 0xffff0000u,
                                                   0xffff0000u, 0xffff0000u};
  Vec x;
  asm volatile("vmovups %1, %0\n\tvandps %2, %0, %0"
               : "=x"(x)
               : "m"(*static_cast<const __m256i_u*>(words)),
                 "m"(*reinterpret_cast<const __m256i*>(kMask)));
  return x;
}
KVL_LANES Vec Broadcast(const float* p) {
  Vec x;
  asm volatile("vbroadcastss %1, %0" : "=x"(x) : "m"(*p));
  return x;
}
KVL_LANES Vec AddProduct(Vec sum, Vec a, Vec b) {
  asm volatile("vfmadd231ps %1, %2, %0" : "+x"(sum) : "x"(a), "x"(b));
  return sum;
}

KVL_LANES Vec LoadF16(const void* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
KVL_LANES IntVec LoadShorts(const void* p) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
KVL_LANES IntVec LoadBytes(const void* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
}
KVL_LANES IntVec LoadSignedBytes(const void* p) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
}
KVL_LANES IntVec ShiftRight(IntVec x, int bits) {
  return _mm256_srl_epi32(x, _mm_cvtsi32_si128(bits));
}
KVL_LANES IntVec And(IntVec x, int mask) { return _mm256_and_si256(x, _mm256_set1_epi32(mask)); }
KVL_LANES IntVec SpreadBits(uint32_t x, int first, int value) {
  const __m256i bits =
      _mm256_sllv_epi32(_mm256_set1_epi32(1 << first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  const __m256i found = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(x)), bits);
  return _mm256_and_si256(_mm256_cmpeq_epi32(found, bits), _mm256_set1_epi32(value));
}
KVL_LANES Vec ToFloats(IntVec x) { return _mm256_cvtepi32_ps(x); }

KVL_LANES IntVec SetWords(int16_t x) { return _mm256_set1_epi16(x); }
KVL_LANES IntVec ShiftWords(IntVec x, int bits) { return _mm256_srli_epi16(x, bits); }
KVL_LANES IntVec ShiftSignedWords(IntVec x, int bits) { return _mm256_srai_epi16(x, bits); }
KVL_LANES IntVec TurnWords(IntVec x, int bits) {
  return _mm256_or_si256(_mm256_srli_epi16(x, bits), _mm256_slli_epi16(x, 16 - bits));
}
KVL_LANES IntVec MixLowerBytes(IntVec a, IntVec b) { return _mm256_unpacklo_epi8(a, b); }
KVL_LANES IntVec MixUpperBytes(IntVec a, IntVec b) { return _mm256_unpackhi_epi8(a, b); }
KVL_LANES IntVec MixLowerWords(IntVec a, IntVec b) { return _mm256_unpacklo_epi16(a, b); }
KVL_LANES IntVec MixUpperWords(IntVec a, IntVec b) { return _mm256_unpackhi_epi16(a, b); }
KVL_LANES IntVec MixLowerPairs(IntVec a, IntVec b) { return _mm256_unpacklo_epi64(a, b); }
KVL_LANES IntVec MixUpperPairs(IntVec a, IntVec b) { return _mm256_unpackhi_epi64(a, b); }
KVL_LANES void StoreTurnedQuarters(const IntVec (&x)[4], void* to) {
  auto* const lines = static_cast<IntVec*>(to);
  StoreWords(lines, _mm256_permute2x128_si256(x[0], x[1], 0x20));
  StoreWords(lines + 1, _mm256_permute2x128_si256(x[2], x[3], 0x20));
  StoreWords(lines + 2, _mm256_permute2x128_si256(x[0], x[1], 0x31));
  StoreWords(lines + 3, _mm256_permute2x128_si256(x[2], x[3], 0x31));
}
KVL_LANES IntVec LoadTwoInts(const void* first, const void* second) {
  int32_t a, b;
  __builtin_memcpy(&a, first, sizeof(a));
  __builtin_memcpy(&b, second, sizeof(b));
  return _mm256_blend_epi32(_mm256_set1_epi32(a), _mm256_set1_epi32(b), 0xaa);
}
KVL_LANES IntVec SpreadToWords(uint32_t x, int first) {
  const __m256i bits = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096,
                                         8192, 16384, -32768);
  const __m256i word = _mm256_set1_epi16(static_cast<int16_t>(x >> first));
  return _mm256_cmpeq_epi16(_mm256_and_si256(word, bits), bits);
}
KVL_LANES IntVec SpreadToBytes(IntVec x) {
  const IntVec bits = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
  return _mm256_cmpeq_epi8(_mm256_and_si256(x, bits), bits);
}
KVL_LANES IntVec EqualBytes(IntVec a, IntVec b) { return _mm256_cmpeq_epi8(a, b); }
KVL_LANES IntVec WhereSet(IntVec mask, IntVec set, IntVec other) {
  return _mm256_blendv_epi8(other, set, mask);
}
KVL_LANES IntVec LoadTable(const int8_t* p) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
KVL_LANES IntVec ShuffleBytes(IntVec table, IntVec places) {
  return _mm256_shuffle_epi8(table, places);
}
KVL_LANES IntVec AddDots(IntVec sums, IntVec a, IntVec b) {
#ifdef KVL_DOT_ENCODING
  asm(KVL_DOT_ENCODING "vpdpwssd %2, %1, %0" : "+x"(sums) : "x"(a), "x"(b));
#else
  asm("vpaddd %1, %0, %0" : "+x"(sums) : "x"(_mm256_madd_epi16(a, b)));
#endif
  return sums;
}
KVL_LANES IntVec BroadcastFour(const void* bytes) {
  int32_t four;
  __builtin_memcpy(&four, bytes, sizeof(four));
  return _mm256_set1_epi32(four);
}
KVL_LANES IntVec AddByteDots(IntVec sums, IntVec a, IntVec b, IntVec c, IntVec d) {
#ifdef KVL_DOT_ENCODING
  asm(KVL_DOT_ENCODING "vpdpbusd %2, %1, %0" : "+x"(sums) : "x"(a), "x"(b));
  asm(KVL_DOT_ENCODING "vpdpbusd %2, %1, %0" : "+x"(sums) : "x"(c), "x"(d));
  return sums;
#else
  const IntVec four = _mm256_add_epi16(_mm256_maddubs_epi16(a, b), _mm256_maddubs_epi16(c, d));
  return AddDots(sums, four, _mm256_set1_epi16(1));
#endif
}
KVL_LANES IntVec AddBytes(IntVec a, IntVec b) { return _mm256_add_epi8(a, b); }
KVL_LANES Vec FirstWordsToFloats(IntVec x) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(x)));
}
KVL_LANES Vec LastWordsToFloats(IntVec x) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_extracti128_si256(x, 1)));
}
KVL_LANES void StoreShorts(int16_t* p, const Vec (&x)[2]) {
  const __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(x[0]), _mm256_cvtps_epi32(x[1]));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0)));
}

KVL_LANES Vec BroadcastPair(const float* p) {
  double pair;
  __builtin_memcpy(&pair, p, sizeof(pair));
  return _mm256_castpd_ps(_mm256_set1_pd(pair));
}
KVL_LANES Vec SumPairs(Vec a, Vec b) {
  const __m256d sums = _mm256_castps_pd(_mm256_hadd_ps(a, b));  // halves of a and b alternate
  return _mm256_castpd_ps(_mm256_permute4x64_pd(sums, _MM_SHUFFLE(3, 1, 2, 0)));
}
KVL_LANES Vec ClearSeconds(Vec x) { return _mm256_blend_ps(x, _mm256_setzero_ps(), 0xaa); }

KVL_LANES Vec Floor(Vec x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
KVL_LANES Vec Nearest(Vec x) {
  return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
KVL_LANES Vec Smaller(Vec a, Vec b) { return _mm256_min_ps(a, b); }
KVL_LANES Vec Absolute(Vec x) { return _mm256_andnot_ps(Set1(-0.0f), x); }
KVL_LANES Vec WithSign(Vec x, Vec of) { return _mm256_or_ps(x, _mm256_and_ps(of, Set1(-0.0f))); }
KVL_LANES Vec WherePositive(Vec x, Vec positive, Vec other) {
  return _mm256_blendv_ps(other, positive, _mm256_cmp_ps(x, Zero(), _CMP_GT_OQ));
}
KVL_LANES Vec PowerOf2(Vec x) {
  const IntVec exponent = _mm256_add_epi32(_mm256_cvtps_epi32(x), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}
KVL_LANES Vec TimesPowerOf2(Vec x, Vec n) {
  const Vec half = Floor(n * Set1(0.5f));
  return x * PowerOf2(half) * PowerOf2(n - half);
}

KVL_LANES __m256i LaneMask(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n >= kLanes ? kLanes : static_cast<int>(n)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
KVL_LANES Vec FirstLanes(Vec x, int64_t n) {
  return _mm256_and_ps(x, _mm256_castsi256_ps(LaneMask(n)));
}
KVL_LANES Vec LoadFirst(const float* p, int64_t n) {
  return n >= kLanes ? Load(p) : _mm256_maskload_ps(p, LaneMask(n));
}
// Masked stores take many times longer than others on Zen.
KVL_LANES void StoreFirst(float* p, int64_t n, Vec x) {
  if (n >= kLanes) return Store(p, x);
  _mm256_maskstore_ps(p, LaneMask(n), x);
}
KVL_LANES __m128i RoundToBf16(Vec x) {
  const __m256i bits = _mm256_castps_si256(x), top = _mm256_srli_epi32(bits, 16);
  const __m256i is_odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
  const __m256i raised =
      _mm256_add_epi32(bits, _mm256_add_epi32(is_odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i rounded = _mm256_blendv_epi8(_mm256_srli_epi32(raised, 16), quiet, is_nan);
  const __m256i packed = _mm256_packus_epi32(rounded, rounded);  // each half twice
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0)));
}
KVL_LANES void StoreFirstBf16(uint16_t* p, int64_t n, Vec x) {
  const __m128i rounded = RoundToBf16(x);
  if (n >= kLanes) return _mm_storeu_si128(reinterpret_cast<__m128i*>(p), rounded);
  uint16_t lanes[kLanes];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(lanes), rounded);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

#endif

// 2^x for x <= 0; exactly 1 at 0, 0 below -126, NaN stays NaN. Relative error 1e-7: a degree-5
// minimax polynomial (Remez, with the values at both ends fixed) for the fraction in [0, 1).
KVL_LANES Vec Exp2(Vec x) {
  x = Larger(Set1(-127.0f), x);
  const Vec whole = Floor(x), f = x - whole;
  Vec y = Set1(1.8793186e-3f);
  y = Fma(y, f, Set1(8.9909951e-3f));
  y = Fma(y, f, Set1(5.5818676e-2f));
  y = Fma(y, f, Set1(2.4015927e-1f));
  y = Fma(y, f, Set1(6.9315174e-1f));
  y = Fma(y, f, Set1(1.0f));
  return y * PowerOf2(whole);
}
KVL_LANES float Exp2(float x) { return FirstLane(Exp2(Set1(x))); }

// tanh x = e / (e + 2), where e = 2^(2 |x| log2(e)) - 1 is made of what Exp2's polynomial adds to
// 1, so that nothing is lost near 0. Relative error 1e-6; NaN stays NaN.
KVL_LANES Vec Tanh(Vec x) {
  constexpr float kTwiceLog2E = 2.88539008f;
  constexpr float kMost = 10;  // tanh of which is 1
  const Vec u = Smaller(Set1(kMost * kTwiceLog2E), Absolute(x) * Set1(kTwiceLog2E));
  const Vec whole = Floor(u), f = u - whole, power = PowerOf2(whole);
  Vec y = Set1(1.8793186e-3f);
  y = Fma(y, f, Set1(8.9909951e-3f));
  y = Fma(y, f, Set1(5.5818676e-2f));
  y = Fma(y, f, Set1(2.4015927e-1f));
  y = Fma(y, f, Set1(6.9315174e-1f));
  const Vec e = Fma(power, y * f, power - Set1(1.0f));
  return WithSign(e / (e + Set1(2.0f)), x);
}

}  // namespace
}  // namespace kvlathe
