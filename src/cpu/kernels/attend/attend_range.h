// What the vector kernels of attention share apart from vectors: which entries a row sees, how
// lines are fetched, and small loops that are unrolled at compile time. Every function has internal
// linkage, so that code compiled with instruction set flags is never linked into a portable path.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/kernels/attend/attend.h"

namespace kvlathe {

// Whether attention fetches the next block to L1. It does so if L1 holds this block and most of the
// next, as one of 48 KiB does: a block of 128 dimensions has 32 KiB, in codes 2 to 18. By way of L2
// a Zen 5 reads 10% less when it decodes with 16 bits, and 25% less with 2. Zen 4 has an L1 of 32
// KiB, and drops prefetches for it that find its miss buffers full.
extern const bool kFetchesToL1;

// The running state of a row, in scores that are not scaled.
struct RowState {
  float max;     // of the scores seen; -infinity before the first
  float shrink;  // what the last step multiplies o by
};

namespace {

#define KVL_INLINE inline __attribute__((always_inline))
// Marks lambdas, so that what they capture stays in registers.
#define KVL_PART __attribute__((always_inline))

template <int kIdx>
struct Index {
  static constexpr int value = kIdx;
};

// Calls f(Index<0>{}), ..., f(Index<kN - 1>{}): arrays in registers need constant subscripts.
template <int kN, typename F>
KVL_INLINE void Unroll(const F& f) {
  if constexpr (kN > 0) {
    Unroll<kN - 1>(f);
    f(Index<kN - 1>{});
  }
}

// Calls f(Index<n>{}) for an n from 1 to kMax.
template <int kMax, typename F>
KVL_INLINE void WithCount(int n, const F& f) {
  if constexpr (kMax > 1) {
    if (n < kMax) return WithCount<kMax - 1>(n, f);
  }
  f(Index<kMax>{});
}

constexpr float kMinusInfinity = -__builtin_inff();
constexpr float kLog2E = 1.44269504f;

constexpr KVL_INLINE int Min(int a, int b) { return a < b ? a : b; }
constexpr KVL_INLINE int Max(int a, int b) { return a > b ? a : b; }

// Asks for a line to be brought to L1 or L2. Written out because g++ takes a function that only
// prefetches for one without effect and drops calls of it.
KVL_INLINE void PrefetchLineToL2(const std::byte* line) {
  asm volatile("prefetcht1 %0" : : "m"(*reinterpret_cast<const char*>(line)));
}
KVL_INLINE void PrefetchLine(const std::byte* line) {
  if (!kFetchesToL1) return PrefetchLineToL2(line);
  asm volatile("prefetcht0 %0" : : "m"(*reinterpret_cast<const char*>(line)));
}

// How the scores of a row are capped, in q k that is not scaled: x becomes
// most tanh(x unit + shift).
struct RowCap {
  float unit, shift, most;
};

// Of AttendParams or AttendRowsParams with a cap.
template <typename Params>
KVL_INLINE RowCap CapOfRow(const Params& p, int row) {
  const float unit = p.sm_scale / p.score_cap;
  const float offset = p.score_offsets == nullptr ? 0 : p.score_offsets[row];
  return {unit, offset * unit, p.score_cap / p.sm_scale};
}

// The end of the entries that a row sees, which is at most kv_end.
KVL_INLINE int LimitOfRow(const AttendParams& p, int row) {
  return Min(p.kv_end, p.first_visible + row / p.gqa_group);
}

// The first entry that a row sees. It may lie outside the range.
KVL_INLINE int BeginOfRow(const AttendParams& p, int row) {
  return Max(0, p.first_visible + row / p.gqa_group - p.window);
}

// Where a panel that starts with `row` begins to read: later rows see no earlier entries.
KVL_INLINE int FirstEntryToRead(const AttendParams& p, int row) {
  return Max(p.kv_begin, BeginOfRow(p, row) / kBlockSize * kBlockSize);
}

}  // namespace
}  // namespace kvlathe
