// Attention over keys that are stored as latents from before RoPE: blocks become plain ones in
// scratch, a few at a time, and the kernels of plain blocks attend to those.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attend.h"
#include "kernels/cpu/entry_scores.h"
#include "kernels/cpu/latent_keys.h"

namespace kvlathe {

// What a job (attention.h) with such keys has beside its blocks.
struct LatentHead {
  LatentMapView map;  // rank 0: keys are stored as they are
  // Angles of the blocks where entry e has position e of them, from block 0 of the job on; of no
  // use where there are positions.
  KeyRotation rotation;
  // Where entries were dropped: their positions, and cosines and sines [position][half].
  EntryTable positions;
  const float* cos = nullptr;
  const float* sin = nullptr;

  bool empty() const { return map.rank == 0; }
};

// Bytes of scratch for jobs of this shape, whose items have at most max_item_floats of partial
// results.
int64_t LatentScratchBytes(const BlockShape& shape, const LatentHead& head,
                           int64_t max_item_floats);

struct LatentScratch {
  std::byte* kernel = nullptr;  // kAttendScratchBytes
  std::byte* own = nullptr;     // LatentScratchBytes, 64-byte aligned
};

// As kernels.attend, with params.shape as the blocks are stored and q of head_dim numbers. Blocks
// below the window of the first row may be null.
void AttendLatents(const AttendKernels& kernels, ReadLatentBlock read, const LatentHead& head,
                   const AttendParams& params, const LatentScratch& scratch);

// Bytes of scratch for sealed runs with an svd_share.
int64_t RotatedScratchBytes(const BlockShape& shape, int64_t max_item_floats);

// As kernels.attend, with sealed runs whose format has an svd_share: their rows become full ones in
// scratch, in the same way. params.shape is that of plain blocks.
void AttendRotatedRuns(const AttendKernels& kernels, ReadLatentBlock read,
                       const AttendParams& params, const LatentScratch& scratch);

}  // namespace kvlathe
