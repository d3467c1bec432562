#include "backend/prune.h"

#include <algorithm>
#include <span>
#include <vector>

#include "backend/reopen.h"
#include "device/cpu_device.h"
#include "kernels/cpu/attend/resolve.h"
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

// Returns how many of the entries that stay were sealed.
int PruneHeadEntries(const PrunePlan& plan, const PruneHead& head, std::span<const int> dropped,
                     const CpuAccess& access) {
  const std::vector<RowMove> moves = MovesThatClose(dropped, head.n_entries, plan.in_order);
  const std::vector<std::byte*> blocks = access.At(head.blocks);
  int n_sealed = 0;
  if (head.opened.empty()) {
    CloseRows(head.shape, blocks, moves);
  } else {
    std::vector<PackedRun> runs;
    n_sealed =
        CopyKept({head.shape, PackedHeadAt(access, head.packed, &runs), blocks, head.n_entries},
                 dropped, access.At(head.opened));
  }
  const auto n_kept = static_cast<int>(std::min<int64_t>(plan.kept.n, head.n_entries));
  CloseEntries(plan.retention, moves, n_kept, EntryTableAt(access, head.entries));
  return n_sealed;
}

}  // namespace

std::vector<int> PruneHeads(const PrunePlan& plan, ThreadPool* pool) {
  const CpuAccess access(*plan.device);
  const int64_t n_heads = std::ssize(plan.heads);
  std::vector<EntryTable> tables;
  for (const PruneHead& head : plan.heads) tables.push_back(EntryTableAt(access, head.entries));
  const bool shares_heads = plan.retention.shares_heads;
  std::vector<int> dropped_by_all;
  if (shares_heads) {
    dropped_by_all = ChooseDropped(plan.retention, plan.kept, plan.heads.front().n_entries, tables);
  }
  std::vector<int> n_sealed(n_heads);
  pool->Run([&](int worker_id) {
    const Range share = ShareOf(n_heads, 1, worker_id, pool->n_workers());
    for (int64_t g = share.begin; g < share.end; ++g) {
      const PruneHead& head = plan.heads[g];
      n_sealed[g] = PruneHeadEntries(
          plan, head,
          shares_heads ? dropped_by_all
                       : ChooseDropped(plan.retention, plan.kept, head.n_entries, {&tables[g], 1}),
          access);
    }
  });
  return n_sealed;
}

}  // namespace kvlathe
