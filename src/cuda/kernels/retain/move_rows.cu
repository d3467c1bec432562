#include "cuda/kernels/retain/move_rows.h"
#include "cuda/simt/launch.h"
#include "format/entry_table.h"
#include "machine/object_id.h"

namespace kvlathe::cuda {
namespace {

using namespace simt;

constexpr int kThreads = 128;
constexpr int kTogether = 8;  // moves whose numbers a thread reads before it writes any

struct MoveParams {
  std::byte* memory = nullptr;
  const MoveRowsItem* items = nullptr;
};

KVL_DEVICE std::byte* BlockOf(const MoveParams& p, const MoveRowsItem& item, int entry) {
  return p.memory + int64_t{item.blocks[entry / kBlockSize]} * kDeviceAlignment;
}

// Moves what `at(entry)` gives the address of, in the order of the moves. A later move may write
// where an earlier one reads, and a thread makes all moves of its numbers.
template <typename T, typename At>
KVL_DEVICE void MoveAll(const MoveRowsItem& item, const At& at) {
  for (int first = 0; first < item.n_moves; first += kTogether) {
    T numbers[kTogether];
    for (int i = 0; i < kTogether; ++i) {
      if (first + i < item.n_moves) numbers[i] = *at(item.moves[first + i].from);
    }
    for (int i = 0; i < kTogether; ++i) {
      if (first + i < item.n_moves) *at(item.moves[first + i].to) = numbers[i];
    }
  }
}

// Channel `channel` of K and V.
template <typename T>
KVL_DEVICE void MovePlainChannel(const MoveParams& p, const MoveRowsItem& item, int channel) {
  const BlockShape shape = {.rank_k = item.rank_k, .rank_v = item.rank_v};
  if (channel < item.rank_k) {
    MoveAll<T>(item, [&](int entry) {
      return reinterpret_cast<T*>(BlockOf(p, item, entry)) + KeyOffset(entry % kBlockSize, channel);
    });
  } else {
    MoveAll<T>(item, [&](int entry) {
      return reinterpret_cast<T*>(BlockOf(p, item, entry)) + kBlockSize * item.rank_k +
             ValueOffset(shape, entry % kBlockSize, channel - item.rank_k);
    });
  }
}

KVL_DEVICE void MoveSums(const MoveRowsItem& item) {
  const auto at = [&](int entry) {
    std::byte* const block = item.table + entry / kBlockSize * EntryTable::BlockBytes(true);
    return reinterpret_cast<int64_t*>(block + kBlockSize * sizeof(int32_t)) + entry % kBlockSize;
  };
  MoveAll<int64_t>(item, at);
  for (int e = 0; e < item.n_cleared; ++e) *at(e) = 0;
}

// A thread moves one channel of all rows, or positions or sums.
KVL_KERNEL(kThreads) MoveKernel(KVL_PARAMS(MoveParams) p) {
  const MoveRowsItem& item = p.items[BlockIdxY()];
  const int n_of_rows = item.rank_k + item.rank_v;
  const int channel = BlockIdx() * kThreads + ThreadIdx();
  if (channel < n_of_rows) {
    if (item.element_bytes == 4) {
      MovePlainChannel<uint32_t>(p, item, channel);
    } else {
      MovePlainChannel<uint16_t>(p, item, channel);
    }
  } else if (item.table != nullptr && channel == n_of_rows) {
    MoveAll<int32_t>(item, [&](int entry) {
      return reinterpret_cast<int32_t*>(item.table + entry / kBlockSize *
                                                         EntryTable::BlockBytes(item.has_sums)) +
             entry % kBlockSize;
    });
  } else if (item.table != nullptr && item.has_sums && channel == n_of_rows + 1) {
    MoveSums(item);
  }
}

}  // namespace

void MoveRows(cudaStream_t stream, std::byte* memory, const MoveRowsItem* items, int n_items,
              int max_channels) {
  constexpr int kOthers = 2;  // positions and sums
  Launch(stream, MoveKernel,
         {.n_blocks = (max_channels + kOthers + kThreads - 1) / kThreads,
          .n_threads = kThreads,
          .n_blocks_y = n_items},
         MoveParams{memory, items});
}

}  // namespace kvlathe::cuda
