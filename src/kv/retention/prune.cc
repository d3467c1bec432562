#include "kv/retention/prune.h"

#include <algorithm>
#include <span>
#include <vector>

#include "base/check.h"
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

// Rows, positions and votes take their new places; votes that count one prune only start again.
void CloseGaps(const RetentionPlan& plan, const BlockShape& shape,
               std::span<std::byte* const> blocks, std::span<const RowMove> moves, int n_kept,
               const EntryTable& table) {
  if (shape.row_type == DType::kF32) {
    MoveRows<uint32_t>(shape, blocks, moves);
  } else {
    MoveRows<uint16_t>(shape, blocks, moves);
  }
  for (const RowMove& move : moves) {
    table.position(move.to) = table.position(move.from);
    if (plan.HasVotes()) table.sum(move.to) = table.sum(move.from);
  }
  if (plan.votes != RetentionPlan::Votes::kLast) return;
  for (int e = 0; e < n_kept; ++e) table.sum(e) = 0;
}

}  // namespace

void PruneLayer(const CacheLayout& layout, int layer_idx, ThreadPool* pool, SequenceCache* cache) {
  KVL_CHECK(cache->must_prune());
  const RetentionPlan& plan = *layout.retention;
  const KeptEntries kept = cache->kept();
  std::vector<EntryTable> tables;
  for (int g = 0; g < layout.n_kv_heads; ++g) tables.push_back(cache->entries(layer_idx, g));
  // While decoding, a gap takes the last row; in a prompt the order of positions stays.
  const bool in_order = cache->n_tokens() <= cache->n_prompt();
  std::vector<int> dropped_by_all;
  if (plan.shares_heads) {
    dropped_by_all = ChooseDropped(plan, kept, cache->n_entries(layer_idx, 0), tables);
  }
  pool->Run([&](int worker_id) {
    const Range heads = ShareOf(layout.n_kv_heads, 1, worker_id, pool->n_workers());
    for (int g = static_cast<int>(heads.begin); g < heads.end; ++g) {
      const int n_entries = cache->n_entries(layer_idx, g);
      const std::vector<int> dropped = plan.shares_heads
                                           ? dropped_by_all
                                           : ChooseDropped(plan, kept, n_entries, {&tables[g], 1});
      const std::vector<RowMove> moves = MovesThatClose(dropped, n_entries, in_order);
      CloseGaps(plan, layout.shape(layer_idx, g), cache->blocks(layer_idx, g), moves,
                static_cast<int>(std::min<int64_t>(kept.n, n_entries)), tables[g]);
    }
  });
  cache->DropPruned(layer_idx);
}

}  // namespace kvlathe
