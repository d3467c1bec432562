// Attention of many query rows to blocks whose rows are in a basis: a few blocks at a time become
// rows of each KV head of the model again, in scratch, and the kernels of plain blocks attend to
// those. That takes kBlockSize * (rank_k + rank_v) * head_dim products a block and KV head, however
// many rows there are, and with it a row meets 2 head_dim numbers of an entry in place of rank_k +
// rank_v. Queries stay as they are: what keys of frames have lost, and by what they turn
// (frames.h), goes into the keys.
//
// Outputs are those of the basis all the same: a row o of head_dim numbers becomes o P, where P is
// the pseudo-inverse of the map B that makes o of what the caller wants. As o is a combination of
// rows z B, o P B is o.
#pragma once

#include <cstdint>

#include "cpu/attention/frames.h"
#include "cpu/kernels/attend/attend.h"
#include "cpu/kernels/latent/latent_keys.h"
#include "cpu/kernels/latent/rebuild_rows.h"
#include "cpu/kernels/linear/linear.h"

namespace kvlathe {

// One KV head of the model of RebuildIds (machine/attention/head_job.h), with addresses.
struct RebuiltHead {
  const PackedMatrix* key = nullptr;
  const PackedMatrix* value = nullptr;   // null: values stay as they are stored
  const PackedMatrix* output = nullptr;  // null likewise
  int head_dim = 0;
  int map = 0;  // which of the KV heads that the head of the cache joins
};

struct RebuildReaders {
  ReadSealedBlock sealed;
  const RebuildKernels& rows;
};

// The queries of a call before any basis, in Bf16: that of row t * gqa_group + h is head_dim
// numbers, t token strides and h row strides behind the first.
struct RebuiltQueries {
  const std::byte* first;
  int64_t token_stride, row_stride;  // elements
};

// Whether n_rows rows are so many that rebuilding blocks for them takes less time than it saves.
// `turns` says whether keys lie in frames or have lost a mean: then queries are spared a map for
// every frame too.
bool IsWorthRebuilding(const BlockShape& shape, int head_dim, bool turns, int n_rows);

// Bytes of scratch for calls with n_rows rows at most.
int64_t RebuiltScratchBytes(const BlockShape& shape, int head_dim, int n_rows);

// Does what kernels.attend.attend does, for rows in Bf16 whose queries all meet the keys of one KV
// head of the model. params.q, params.mean and frames.q are not read, and there are no scores.
void AttendRebuilt(const FrameKernels& kernels, const RebuildReaders& readers,
                   const RebuiltHead& head, const FramesOfHead& frames,
                   const RebuiltQueries& queries, const AttendParams& params,
                   const FrameScratch& scratch);

}  // namespace kvlathe
