// Finds the blocks of a head and the runs that hold them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/kernels/attend/expand.h"
#include "cuda/simt/simt.h"

namespace kvlathe::cuda {

struct BlockPlace {
  const std::byte* block = nullptr;
  const ExpandRun* run = nullptr;  // null: the block is plain
  int block_idx = 0;               // in the run
};

// Blocks in ascending order.
struct BlockFinder {
  const uint32_t* blocks;
  const ExpandRun* runs;
  int n_runs;
  const std::byte* base;
  int run_idx;  // where it begins to look

  KVL_DEVICE BlockPlace Find(int block) {
    const std::byte* const at = base + int64_t{blocks[block]} * kPlaceBytes;
    while (run_idx < n_runs) {
      const ExpandRun& run = runs[run_idx];
      if (block < run.first_block + run.n_blocks) return {at, &run, block - run.first_block};
      ++run_idx;
    }
    return {at};
  }
};

// Brings the tables of the runs' unit to shared memory; all threads of a block call it. Runs of a
// head share a unit, but for open ones, which have no windows.
KVL_DEVICE void StageWindows(const ExpandRun* runs, int n_runs, const WindowTables& tables,
                             uint16_t* to) {
  if (n_runs == 0) return;
  const uint16_t* const values = &tables.values[runs[0].k.has_token_scales ? 1 : 0][0][0];
  for (int i = simt::ThreadIdx(); i < 5 * 64; i += simt::BlockDim()) to[i] = values[i];
  simt::SyncBlock();
}

}  // namespace kvlathe::cuda
