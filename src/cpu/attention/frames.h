// Attention to blocks whose keys are turned inside frames (format/keys.h): queries are turned back
// by the start of a frame and mapped for each frame, whose blocks are then attended to as they lie.
// Those of several frames are one product, so that a map is read once for all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cpu/kernels/attend/attend.h"
#include "cpu/kernels/elementwise/elementwise.h"
#include "cpu/kernels/linear/linear.h"
#include "format/mean_angles.h"

namespace kvlathe {

// The frames of a job: FrameIds (machine/attention/head_job.h) with addresses.
struct FramesOfHead {
  std::vector<const PackedMatrix*> maps;  // n_joined; empty: there are no frames
  int n_joined = 1;
  const float* key_offset = nullptr;    // [n_joined, head_dim], or null
  const float* turning_mean = nullptr;  // likewise
  MeanAngles mean_angles;               // of the pairs that have lost a mean
  const float* cos = nullptr;           // [position][half]
  const float* sin = nullptr;
  int half = 0;
  int n_absolute = 0;
  float way_back = 1;  // 1 / (cos^2 + sin^2)
  int head_dim = 0;
  int first_position = 0;
  int first_place = 0;
  // Queries before any basis, [n_rows, n_joined * head_dim] row_type of the rows of the call;
  // row t * gqa_group + h is zero but for the head_dim numbers of its KV head of the model, those
  // of the heads of which h is one: gqa_group / n_joined to each, in their order.
  const std::byte* q = nullptr;
  int64_t q_stride = 0;
};

// Bytes of scratch for calls with n_rows rows at most, whose partial results take max_item_floats.
int64_t FrameScratchBytes(const BlockShape& shape, int head_dim, int n_rows,
                          int64_t max_item_floats);

struct FrameScratch {
  std::byte* kernel = nullptr;   // kAttendScratchBytes
  std::byte* own = nullptr;      // FrameScratchBytes, 64-byte aligned
  double* rebuilding = nullptr;  // as LatentScratch has it
};

// What computes. worker_id picks the scratch memory of `linear`.
struct FrameKernels {
  const AttendKernels& attend;
  const ElementwiseKernels& elementwise;
  Linear* linear;
  int worker_id;
};

// Does what kernels.attend.attend does. params.q and params.mean are not read. There are no scores.
void AttendFrames(const FrameKernels& kernels, const FramesOfHead& frames,
                  const AttendParams& params, const FrameScratch& scratch);

}  // namespace kvlathe
