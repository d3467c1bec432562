#include "kv/retention/prune.h"

#include <algorithm>
#include <span>
#include <vector>

#include "base/check.h"
#include "device/cpu_device.h"
#include "kernels/cpu/attend/resolve.h"
#include "kv/retention/reopen.h"
#include "kv/retention/select.h"

namespace kvlathe {
namespace {

// The row of one entry in its block.
template <typename T>
struct RowPlace {
  RowPlace(const BlockShape& shape, std::span<std::byte* const> blocks, int entry)
      : k(reinterpret_cast<T*>(blocks[entry / kBlockSize])),
        v(k + KeyOffset(0, shape.rank_k)),
        slot(entry % kBlockSize) {}
  T* k;
  T* v;
  int slot;
};

template <typename T>
void MoveRows(const BlockShape& shape, std::span<std::byte* const> blocks,
              std::span<const RowMove> moves) {
  for (const RowMove& move : moves) {
    const RowPlace<T> from(shape, blocks, move.from), to(shape, blocks, move.to);
    for (int r = 0; r < shape.rank_k; ++r) {
      to.k[KeyOffset(to.slot, r)] = from.k[KeyOffset(from.slot, r)];
    }
    for (int r = 0; r < shape.rank_v; ++r) {
      to.v[ValueOffset(shape, to.slot, r)] = from.v[ValueOffset(shape, from.slot, r)];
    }
  }
}

// Rows take their new places.
void CloseRows(const BlockShape& shape, std::span<std::byte* const> blocks,
               std::span<const RowMove> moves) {
  if (shape.row_type == DType::kF32) {
    MoveRows<uint32_t>(shape, blocks, moves);
  } else {
    MoveRows<uint16_t>(shape, blocks, moves);
  }
}

// So do positions and votes; votes that count one prune only start again.
void CloseEntries(const RetentionPlan& plan, std::span<const RowMove> moves, int n_kept,
                  const EntryTable& table) {
  for (const RowMove& move : moves) {
    table.position(move.to) = table.position(move.from);
    if (plan.HasVotes()) table.sum(move.to) = table.sum(move.from);
  }
  if (plan.votes != RetentionPlan::Votes::kLast) return;
  for (int e = 0; e < n_kept; ++e) table.sum(e) = 0;
}

// Blocks to which what stays of each head is copied, where sealed runs are opened; else empty.
using OpenedBlocks = std::vector<std::vector<ObjectId>>;

// What is kept of every head of the layer is in its place behind this. Returns how many entries of
// each were sealed.
std::vector<int> CloseGaps(const CacheLayout& layout, int layer_idx,
                           std::span<const SealedHead> packed, const OpenedBlocks& opened,
                           ThreadPool* pool, const SequenceCache& cache) {
  const RetentionPlan& plan = *layout.retention;
  const KeptEntries kept = cache.kept();
  const CpuAccess access(cache.device());
  std::vector<EntryTable> tables;
  for (int g = 0; g < layout.n_kv_heads; ++g) {
    tables.push_back(EntryTableAt(access, cache.entries(layer_idx, g)));
  }
  // While decoding, a gap takes the last row; in a prompt, and in what is to be sealed, the order
  // of positions stays.
  const bool in_order = layout.seal.has_value() || cache.n_tokens() <= cache.n_prompt();
  std::vector<int> dropped_by_all;
  if (plan.shares_heads) {
    dropped_by_all = ChooseDropped(plan, kept, cache.n_entries(layer_idx, 0), tables);
  }
  std::vector<int> n_sealed(layout.n_kv_heads);
  pool->Run([&](int worker_id) {
    const Range heads = ShareOf(layout.n_kv_heads, 1, worker_id, pool->n_workers());
    for (int g = static_cast<int>(heads.begin); g < heads.end; ++g) {
      const BlockShape shape = cache.shape(layer_idx, g);
      const std::vector<std::byte*> blocks = access.At(cache.blocks(layer_idx, g));
      const int n_entries = cache.n_entries(layer_idx, g);
      const std::vector<int> dropped = plan.shares_heads
                                           ? dropped_by_all
                                           : ChooseDropped(plan, kept, n_entries, {&tables[g], 1});
      const std::vector<RowMove> moves = MovesThatClose(dropped, n_entries, in_order);
      if (opened.empty()) {
        CloseRows(shape, blocks, moves);
      } else {
        std::vector<PackedRun> runs;
        n_sealed[g] = CopyKept({shape, PackedHeadAt(access, packed[g], &runs), blocks, n_entries},
                               dropped, access.At(opened[g]));
      }
      CloseEntries(plan, moves, static_cast<int>(std::min<int64_t>(kept.n, n_entries)), tables[g]);
    }
  });
  return n_sealed;
}

}  // namespace

StatusOr<std::vector<int>> PruneLayer(const CacheLayout& layout, int layer_idx,
                                      std::span<const SealedHead> packed, ThreadPool* pool,
                                      SequenceCache* cache) {
  KVL_CHECK(cache->must_prune());
  OpenedBlocks opened;
  if (cache->must_reopen(layer_idx)) {
    KVL_ASSIGN_OR_RETURN(opened, cache->TakeKeptBlocks(layer_idx));
  }
  const std::vector<int> n_sealed = CloseGaps(layout, layer_idx, packed, opened, pool, *cache);
  if (!opened.empty()) cache->PlaceKeptBlocks(layer_idx, opened);
  cache->DropPruned(layer_idx);
  return n_sealed;
}

}  // namespace kvlathe
