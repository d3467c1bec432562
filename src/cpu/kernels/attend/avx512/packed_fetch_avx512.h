// Fetches ahead: the runs that follow, and what the next block needs beside its codes, line by line
// while this block is scored. The core drops requests that find its miss buffers full (24 on Zen
// 4), so they must not come all at once. Only files compiled with AVX-512 flags may include this,
// and everything has internal linkage.
#pragma once

#include "cpu/kernels/attend/avx512/packed_block_avx512.h"
#include "cpu/kernels/attend/exact_entries.h"

namespace kvlathe {
namespace {

// Moves on to `run`: makes its view and those of the runs that follow, and fetches their lists of
// where exact entries end, without which the entries cannot be fetched.
inline void ViewRuns(const PackedRun& run, Work* w) {
  const AttendParams& p = *w->panel->p;
  const int64_t n_behind = run.is_open ? 0 : p.packed->runs + p.packed->n_runs - (&run + 1);
  if (w->n_ahead == 0) {
    w->run = ViewRun(p, run);
  } else {
    w->run = w->ahead[0];
    w->ahead[0] = w->ahead[1];
    --w->n_ahead;
  }
  for (; w->n_ahead < Min(kRunsAhead, static_cast<int>(n_behind)); ++w->n_ahead) {
    PackedRunView* view = &w->ahead[w->n_ahead];
    *view = ViewRun(p, (&run)[1 + w->n_ahead]);
    for (const uint32_t* ends : {view->k.exact.ends, view->v.exact.ends}) {
      if (ends != nullptr) PrefetchLine(reinterpret_cast<const std::byte*>(ends));
    }
  }
}

KVL_INLINE void ListLines(const void* from, int64_t n_bytes, FetchList* list) {
  const int64_t skew = reinterpret_cast<uintptr_t>(from) % 64;
  const std::byte* first = static_cast<const std::byte*>(from) - skew;
  const int n_lines = Min(static_cast<int>((n_bytes + skew + 63) / 64), kMaxFetches - list->n);
  const __m512i offsets = _mm512_set_epi64(448, 384, 320, 256, 192, 128, 64, 0);
  for (int i = 0; i < n_lines; i += 8) {
    const __m512i base = _mm512_set1_epi64(reinterpret_cast<int64_t>(first + i * 64));
    _mm512_storeu_si512(list->lines + list->n + i, _mm512_add_epi64(base, offsets));
  }
  list->n += n_lines;
}

inline void ListEntries(const PackedSideView& side, int block_idx, FetchList* list) {
  const ExactEntries entries = ExactEntriesOf(side, block_idx);
  ListLines(entries.differences, int64_t{2} * entries.n, list);
  ListLines(entries.places, entries.n, list);
}

// Lists the lines that block `block_idx` of `run`, which lies at w.next, needs.
inline void ListFetches(const Work& w, const PackedRunView& run, int block_idx) {
  FetchList* list = &w.s->fetches;
  const PackedSideView &k = run.k, &v = run.v;
  ListLines(w.next + k.scales, run.block_bytes - k.scales, list);
  const int token = block_idx * kBlockSize;
  if (k.is_per_channel && token % k.group == 0) {
    ListLines(k.shared_scales + int64_t{2} * (token / k.group) * k.rank,
              int64_t{4} * w.token_groups * k.rank, list);
  }
  if (v.balanced_tokens > 0 && token % v.balanced_tokens == 0) {
    ListLines(v.ChannelBalance(block_idx), int64_t{2} * v.rank, list);
  }
  if (v.shared_scales != nullptr) {
    ListLines(v.shared_scales + 2 * token, int64_t{4} * kBlockSize, list);
  }
  if (block_idx == 0 && run.lowrank > 0) {
    ListLines(k.basis, int64_t{2} * run.lowrank * k.rank, list);
    ListLines(v.basis, int64_t{2} * run.lowrank * v.rank, list);
  }
  if (k.exact.ends != nullptr) ListEntries(k, block_idx, list);
  if (v.exact.ends != nullptr) ListEntries(v, block_idx, list);
}

// Lists what the block behind this one needs, where it is of a run too.
inline void ListFetches(const Work& w, const PackedRun& run) {
  w.s->fetches.next = w.s->fetches.n = 0;
  if (w.next == w.block) return;
  if (w.block_idx + 1 < run.n_blocks) {
    ListFetches(w, w.run, w.block_idx + 1);
  } else if (w.n_ahead > 0) {
    ListFetches(w, w.ahead[0], 0);
  }
}

}  // namespace
}  // namespace kvlathe
