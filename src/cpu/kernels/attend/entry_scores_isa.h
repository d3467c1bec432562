// The kernel sets from which GetEntryScoreKernels chooses. Each is a translation unit of its own.
#pragma once

#include <algorithm>
#include <atomic>

#include "cpu/kernels/attend/entry_scores.h"

namespace kvlathe {

extern const EntryScoreKernels kEntryScoreScalar;
extern const EntryScoreKernels kEntryScoreAvx512;

inline int VisibleToRow(const EntryScoreParams& p, int row) {
  return std::clamp(p.first_visible + row / p.gqa_group, 0, p.n_entries);
}

// Keeps all others that lock the same sums out while it lives, which is a few dozen cycles. It
// takes one atomic exchange for a block of sums, in place of 64.
class SumsLock {
 public:
  explicit SumsLock(const int64_t* sums);
  ~SumsLock() { lock_->clear(std::memory_order_release); }
  SumsLock(const SumsLock&) = delete;

 private:
  std::atomic_flag* lock_;
};

inline void RaiseTo(int64_t units, int64_t* largest) {
  const std::atomic_ref at(*largest);
  int64_t before = at.load(std::memory_order_relaxed);
  while (before < units && !at.compare_exchange_weak(before, units, std::memory_order_relaxed)) {
  }
}

inline void AddToSum(int64_t units, int64_t* sum) {
  if (units != 0) std::atomic_ref(*sum).fetch_add(units, std::memory_order_relaxed);
}

}  // namespace kvlathe
