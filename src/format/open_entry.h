// Consecutive positions are merged into entries: a position joins the newest entry of its head, or
// begins another one (DMC, arXiv 2403.09636; docs/methods/dmc.md; and fixed pooling).
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvlathe {

// Consecutive positions of a head that become one entry.
struct MergePlan {
  int every = 0;   // positions in an entry; 0 if the model decides for each position (DMC)
  int window = 0;  // the newest positions of an entry count in its mean; 0 if all do

  friend bool operator==(const MergePlan&, const MergePlan&) = default;
};

// The newest entry of a head, which positions can still join, as what its mean is made of, in F32.
// Its keys are those from before RoPE at full width; RoPE is applied to their mean, at the position
// of the newest of them.
//
// In memory an entry is an int32 n_positions; then float sums [1 + head_dim + rank_v] of the
// weights, of the weighted keys and of the weighted values; then, with a window, the same numbers
// of each of its newest [window] positions, in a ring. Once positions have left the window, the
// sums are added up from the ring each time, oldest first, so that nothing drifts.
class OpenEntry {
 public:
  // `object` is Bytes(...) long. If it holds zeros, the head has no entry yet.
  OpenEntry(std::byte* object, const MergePlan& plan, int head_dim, int rank_v);

  static int64_t Bytes(const MergePlan& plan, int head_dim, int rank_v);

  // How many positions have joined so far, those that have left the window included; 0 if there is
  // no entry yet.
  int n_positions() const { return *n_positions_; }
  // Makes the next position begin another entry.
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

}  // namespace kvlathe
