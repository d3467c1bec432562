// Attention of many query rows to blocks whose rows are in a basis: a few blocks at a time become
// rows of each KV head of the model again, in scratch, and the kernels of plain blocks attend to
// those. That takes kBlockSize * (rank_k + rank_v) * n_joined * head_dim products a block, however
// many rows there are, and with it a row meets 2 head_dim numbers of an entry in place of rank_k +
// rank_v. Queries stay as they are: what keys of frames have lost, and by what they turn
// (frames.h), goes into the keys.
//
// Outputs are those of the basis all the same: a row o of head_dim numbers becomes o P, where P is
// the pseudo-inverse of the map B that makes o of what the caller wants. As o is a combination of
// rows z B, o P B is o.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/attention/frames.h"
#include "cpu/kernels/attend/attend.h"
#include "cpu/kernels/latent/latent_keys.h"
#include "cpu/kernels/latent/rebuild_rows.h"
#include "cpu/kernels/linear/linear.h"

namespace kvlathe {

// RebuildIds (machine/attention/head_job.h) with addresses.
struct RebuiltHead {
  std::vector<const PackedMatrix*> keys;     // empty: blocks cannot be rebuilt
  std::vector<const PackedMatrix*> values;   // empty: values stay as they are stored
  std::vector<const PackedMatrix*> outputs;  // as many as there are values
  int head_dim = 0;
};

struct RebuildReaders {
  ReadSealedBlock sealed;
  const RebuildKernels& rows;
};

// Whether n_rows rows, of which the head's n_joined KV heads of the model have equal shares, are so
// many that rebuilding blocks for them takes less time than they save. `turns` says whether keys
// lie in frames or have lost a mean: then queries are spared a map for every frame too.
bool IsWorthRebuilding(const BlockShape& shape, int head_dim, int n_joined, bool turns, int n_rows);

// Bytes of scratch for calls with n_rows rows at most.
int64_t RebuiltScratchBytes(const BlockShape& shape, int head_dim, int n_joined, int n_rows);

// Does what kernels.attend.attend does, for rows in Bf16. params.q and params.mean are not read,
// and there are no scores; `frames.q` has the queries in the layout that is documented there.
void AttendRebuilt(const FrameKernels& kernels, const RebuildReaders& readers,
                   const RebuiltHead& head, const FramesOfHead& frames, const AttendParams& params,
                   const FrameScratch& scratch);

}  // namespace kvlathe
