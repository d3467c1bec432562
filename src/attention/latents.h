// Attention over keys that are stored as latents from before RoPE: blocks become plain ones in
// scratch, a few at a time, and the kernels of plain blocks attend to those.
//
// Heads may share their latents (Palu's G-LRD and J-LRD, docs/methods/palu.md): each of them stores
// a slice of the same width in its own blocks, and every one reads the slices of all. A key is then
// made from r latents, r = slices times rank_k, for kBlockSize * r * head_dim products a block.
// Values stay latents: outputs are as wide as all slices, and what makes rows of head_dim from them
// is left to the caller, once per row of queries in place of once per entry.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cpu/attend/attend.h"
#include "kernels/cpu/attend/entry_scores.h"
#include "kernels/cpu/latent/latent_keys.h"

namespace kvlathe {

// What one of the heads that share latents holds of them.
struct LatentSlice {
  const std::byte* const* blocks = nullptr;  // as HeadJob::blocks
  PackedHead packed;
  const void* sink_v = nullptr;  // [n_sink, rank_v] row_type
};

// What a job (attention.h) with such keys has beside its blocks.
struct LatentHead {
  LatentMapView map;  // rank 0: keys are stored as they are
  // Of all heads that share the latents, in their order; the job's own is one of them. Empty: the
  // head has latents of its own.
  std::span<const LatentSlice> slices;
  // Angles of the blocks where entry e has position e of them, from block 0 of the job on; of no
  // use where there are positions.
  KeyRotation rotation;
  // Where entries were dropped: their positions, and cosines and sines [position][half].
  EntryTable positions;
  const float* cos = nullptr;
  const float* sin = nullptr;

  bool empty() const { return map.rank == 0; }
  // Numbers of an output row where blocks hold rank_v of them.
  int output_width(int rank_v) const {
    return slices.empty() ? rank_v : rank_v * static_cast<int>(slices.size());
  }
};

// Bytes of scratch for jobs of this shape, whose items have at most max_item_floats of partial
// results.
int64_t LatentScratchBytes(const BlockShape& shape, const LatentHead& head,
                           int64_t max_item_floats);

struct LatentScratch {
  std::byte* kernel = nullptr;  // kAttendScratchBytes
  std::byte* own = nullptr;     // LatentScratchBytes, 64-byte aligned
};

struct LatentReaders {
  ReadLatentBlock block;
  ReadSealedBlock sealed;  // of slices
};

// As kernels.attend, with params.shape as the blocks are stored and q of head_dim numbers. Blocks
// below the window of the first row may be null. With slices, params.blocks and params.packed are
// of no use, and rows of o have output_width numbers.
void AttendLatents(const AttendKernels& kernels, const LatentReaders& readers,
                   const LatentHead& head, const AttendParams& params,
                   const LatentScratch& scratch);

// Bytes of scratch for sealed runs of a rotated format.
int64_t RotatedScratchBytes(const BlockShape& shape, int64_t max_item_floats);

// As kernels.attend, with sealed runs whose format is rotated: their rows become full ones in
// scratch, in the same way. params.shape is that of plain blocks.
void AttendRotatedRuns(const AttendKernels& kernels, ReadLatentBlock read,
                       const AttendParams& params, const LatentScratch& scratch);

}  // namespace kvlathe
