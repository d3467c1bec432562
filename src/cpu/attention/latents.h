// Attention over keys that are stored as latents from before RoPE. A few blocks at a time become
// plain ones in scratch, and the kernels of plain blocks attend to those.
//
// Heads may share their latents (Palu's G-LRD and J-LRD, docs/methods/palu.md): each of them stores
// a slice of the same width in its own blocks, and every one reads the slices of all. A key is then
// made from r latents, where r is the number of slices times rank_k, which takes
// kBlockSize * r * head_dim products a block. Values stay latents: outputs are as wide as all
// slices, and the caller makes rows of head_dim from them, once for each row of queries instead of
// once for each entry.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/kernels/attend/attend.h"
#include "cpu/kernels/attend/entry_scores.h"
#include "cpu/kernels/latent/latent_keys.h"

namespace kvlathe {

// What one head holds of the latents that it shares with others.
struct LatentSlice {
  const std::byte* const* blocks = nullptr;  // as HeadJob::blocks
  PackedHead packed;
  const void* sink_v = nullptr;  // [n_sink, rank_v] row_type
};

// What a job (attention.h) with such keys needs beside its blocks.
struct LatentHead {
  LatentMapView map;  // rank 0: keys are stored as they are
  // The slices of all heads that share the latents, in their order; the job's own is one of them.
  // Empty if the head has latents of its own.
  std::span<const LatentSlice> slices;
  // The angles of the blocks, from block 0 of the job on, where no entry was dropped and entries
  // follow each other by position. It is not used where there are positions.
  KeyRotation rotation;
  // Where entries were dropped, the positions of those that are left, and cosines and sines
  // [position][half].
  EntryTable positions;
  // Where only entries of the first blocks are out of order, the positions of those; the angles of
  // the other blocks are those of `rotation`.
  SortedPositions sorted;
  const float* cos = nullptr;
  const float* sin = nullptr;

  bool empty() const { return map.rank == 0; }
  // How many numbers an output row has where the rows of blocks have rank_v.
  int output_width(int rank_v) const {
    return slices.empty() ? rank_v : rank_v * static_cast<int>(slices.size());
  }
};

// How many bytes of scratch jobs of this shape need if their items have at most max_item_floats of
// partial results.
int64_t LatentScratchBytes(const BlockShape& shape, const LatentHead& head,
                           int64_t max_item_floats);

struct LatentScratch {
  std::byte* kernel = nullptr;   // kAttendScratchBytes
  std::byte* own = nullptr;      // LatentScratchBytes, 64-byte aligned
  double* rebuilding = nullptr;  // seconds in which blocks were made plain, added to; null: untimed
};

struct LatentReaders {
  ReadLatentBlock block;
  ReadSealedBlock sealed;  // of slices
};

// Does what kernels.attend does. params.shape is the shape in which the blocks are stored, and q
// has head_dim numbers. Blocks below the window of the first row may be null. With slices,
// params.blocks and params.packed are not used, and rows of o have output_width numbers.
void AttendLatents(const AttendKernels& kernels, const LatentReaders& readers,
                   const LatentHead& head, const AttendParams& params,
                   const LatentScratch& scratch);

// How many bytes of scratch sealed runs of a rotated format need.
int64_t RotatedScratchBytes(const BlockShape& shape, int64_t max_item_floats);

// Does what kernels.attend does for sealed runs whose format is rotated: their rows become full
// ones in scratch, in the same way. params.shape is that of plain blocks.
void AttendRotatedRuns(const AttendKernels& kernels, ReadLatentBlock read,
                       const AttendParams& params, const LatentScratch& scratch);

}  // namespace kvlathe
