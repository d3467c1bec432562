// Merging of consecutive positions into entries: a position joins the newest entry of its head, or
// begins another one (DMC, arXiv 2403.09636; docs/methods/dmc.md; and fixed pooling).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv/retention/plan.h"

namespace kvlathe {

// The newest entry of a head, which positions still join: what its mean is made of, in F32. Keys
// are those before RoPE, at full width: the mean turns to the position of the newest of them.
//
// In memory: int32 n_positions, then float sums [1 + head_dim + rank_v] of weights, weighted keys
// and weighted values, then with a window the same of its newest positions, [window] of them in a
// ring. Once positions leave the window the sums are added up from the ring each time, oldest
// first: nothing drifts.
class OpenEntry {
 public:
  // `object` is Bytes(...) long; zeros are a head without an entry.
  OpenEntry(std::byte* object, const MergePlan& plan, int head_dim, int rank_v);

  static int64_t Bytes(const MergePlan& plan, int head_dim, int rank_v);

  // Positions that joined so far, those that left the window counted; 0: there is no entry yet.
  int n_positions() const { return *n_positions_; }
  // The next position begins another entry.
  void Close() { *n_positions_ = 0; }
  // key [head_dim], value [rank_v].
  void Add(float weight, const float* key, const float* value);
  // The weighted mean of what is in the window.
  void Mean(float* key, float* value) const;

 private:
  float* RingRow(int position) const;

  int head_dim_, rank_v_, window_;
  int32_t* n_positions_;
  float* sums_;
  float* ring_;
};

// Entries of a head after n positions past the sink, where each is made of `every` of them.
constexpr int64_t PooledEntries(int64_t n, int every) { return (n + every - 1) / every; }

}  // namespace kvlathe
