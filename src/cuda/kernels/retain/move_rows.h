// Rows of blocks that take other places, where entries are dropped, on a GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace kvlathe::cuda {

// An entry that takes another's place.
struct EntryMove {
  int from = 0;
  int to = 0;
};

// One head: plain blocks and the table of its entries.
struct MoveRowsItem {
  const uint32_t* blocks =
      nullptr;  // places of blocks in the device's memory, in steps of 64 bytes
  const EntryMove* moves = nullptr;  // on the device, in the order in which they are made
  int n_moves = 0;
  int rank_k = 0, rank_v = 0;
  int element_bytes = 2;       // of plain rows: 2 or 4
  std::byte* table = nullptr;  // an EntryTable; null: none
  bool has_sums = false;
  int n_cleared = 0;  // so many first sums become 0 behind that
};

// Makes the moves of every item. No move may write where a later one reads, as with those of
// MovesThatClose (cpu/select.h). `items` lies on the device; max_channels is the largest rank_k +
// rank_v of an item.
void MoveRows(cudaStream_t stream, std::byte* memory, const MoveRowsItem* items, int n_items,
              int max_channels);

}  // namespace kvlathe::cuda
