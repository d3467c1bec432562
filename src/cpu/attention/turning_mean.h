// Attention to blocks whose keys have lost a mean before they turned (format/keys.h): what the mean
// adds to scores comes of the queries as they are before any basis.
#pragma once

#include <cstdint>

#include "cpu/attention/frames.h"
#include "cpu/kernels/attend/attend.h"
#include "cpu/kernels/elementwise/elementwise.h"

namespace kvlathe {

// What the queries of a call add to the scores of blocks for the mean.
class MeanQueries {
 public:
  // Floats of memory for n_rows rows and n_blocks blocks at a time.
  static int64_t MemoryFloats(int n_rows, int n_blocks) {
    return (int64_t{1} + n_blocks) * n_rows * kMeanWeights;
  }
  // All of them outlive it; `memory` is 64-byte aligned.
  MeanQueries(const FramesOfHead& frames, const ElementwiseKernels& elementwise, int n_rows,
              float* memory)
      : frames_(frames), elementwise_(elementwise), n_rows_(n_rows), memory_(memory) {}

  bool HasMean() const { return frames_.mean_angles.n_pairs > 0; }
  // Takes query q [head_dim] as that of a row, whose KV head of the model is one of n_joined.
  void SetRow(int64_t row, int joined_idx, const float* q);
  // For n_blocks blocks side by side, of which the first begins at `position`. Valid until the next
  // call.
  TurningMean Of(int position, int n_blocks) const;

 private:
  const FramesOfHead& frames_;
  const ElementwiseKernels& elementwise_;
  int n_rows_;
  // By row, kMeanWeights each: weights at the middle of a block at position 0; then those of
  // TurningMean.
  float* memory_;
};

// Bytes of scratch for calls with n_rows rows at most, whose partial results take max_item_floats.
int64_t LessMeanScratchBytes(int head_dim, int n_rows, int64_t max_item_floats);

// Does what kernels.attend.attend does where there are no frames. params.mean is not read. There
// are no scores.
void AttendLessMean(const FrameKernels& kernels, const FramesOfHead& frames,
                    const AttendParams& params, const FrameScratch& scratch);

}  // namespace kvlathe
