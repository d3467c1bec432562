#include "cpu/prune.h"

#include <algorithm>
#include <span>
#include <vector>

#include "cpu/kernels/attend/resolve.h"
#include "cpu/memory/cpu_device.h"
#include "cpu/reopen.h"
#include "cpu/select.h"
#include "format/split_bits/coded_rows.h"

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

// The row in another place.
template <typename T>
void CopyRow(const RowPlace<T>& from, const RowPlace<T>& to, const BlockShape& shape) {
  for (int r = 0; r < shape.rank_k; ++r) {
    to.k[KeyOffset(to.slot, r)] = from.k[KeyOffset(from.slot, r)];
  }
  for (int r = 0; r < shape.rank_v; ++r) {
    to.v[ValueOffset(shape, to.slot, r)] = from.v[ValueOffset(shape, from.slot, r)];
  }
}

template <typename T>
void MoveRows(const BlockShape& shape, std::span<std::byte* const> blocks,
              std::span<const RowMove> moves) {
  for (const RowMove& move : moves) {
    CopyRow(RowPlace<T>(shape, blocks, move.from), RowPlace<T>(shape, blocks, move.to), shape);
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

KeptEntries KeptOf(const PrunePlan& plan, const PruneHead& head) {
  KeptEntries kept = plan.kept;
  if (head.n_kept > 0) kept.n = head.n_kept;
  return kept;
}

// So do positions and votes; votes that count one prune only start again.
void CloseEntries(const PrunePlan& plan, std::span<const RowMove> moves, int n_kept,
                  const EntryTable& table) {
  for (const RowMove& move : moves) {
    table.position(move.to) = table.position(move.from);
    if (table.has_sums()) table.sum(move.to) = table.sum(move.from);
  }
  if (!plan.restarts_votes) return;
  for (int e = 0; e < n_kept; ++e) table.sum(e) = 0;
}

// Copies of the first blocks of a head. They are not many at a time: a head is sorted by one
// worker.
struct BlockCopies {
  BlockCopies(std::span<std::byte* const> blocks, int64_t n_blocks, int64_t block_bytes)
      : bytes(n_blocks * block_bytes) {
    for (int64_t b = 0; b < n_blocks; ++b) {
      list.push_back(bytes.data() + b * block_bytes);
      std::copy_n(blocks[b], block_bytes, list.back());
    }
  }
  std::vector<std::byte> bytes;
  std::vector<std::byte*> list;
};

// The same of codes (split_bits/coded_rows.h).
void CopyCodedRow(const std::byte* from, int from_slot, std::byte* to, int to_slot,
                  const BlockShape& shape) {
  for (int r = 0; r < shape.rank_k; ++r) {
    to[CodedKeyOffset(to_slot, r)] = from[CodedKeyOffset(from_slot, r)];
  }
  const int64_t values = CodedKeyBytes(shape);
  for (int r = 0; r < shape.rank_v; ++r) {
    to[values + CodedValueOffset(shape.rank_v, to_slot, r)] =
        from[values + CodedValueOffset(shape.rank_v, from_slot, r)];
  }
  to[CodedKeyScaleOffset(shape, to_slot)] = from[CodedKeyScaleOffset(shape, from_slot)];
  to[CodedValueScaleOffset(shape, to_slot)] = from[CodedValueScaleOffset(shape, from_slot)];
}

// Puts the first entries in the order of their classes. Nobody asks for votes any more.
void SortEntries(const PrunePlan& plan, const BlockShape& shape, const EntryTable& table,
                 std::span<std::byte* const> blocks) {
  const std::vector<int> order = OrderByClass(plan.pool_kernel, plan.classes, table);
  const int64_t token_bytes = plan.has_coded_rows ? CodedTokenBytes(shape) : TokenBytes(shape);
  const BlockCopies copies(blocks, std::ssize(order) / kBlockSize, kBlockSize * token_bytes);
  std::vector<int32_t> positions;
  for (const int e : order) positions.push_back(table.position(e));
  for (int to = 0; to < std::ssize(order); ++to) {
    const int from = order[to];
    if (plan.has_coded_rows) {
      CopyCodedRow(copies.list[from / kBlockSize], from % kBlockSize, blocks[to / kBlockSize],
                   to % kBlockSize, shape);
    } else if (shape.row_type == DType::kF32) {
      CopyRow(RowPlace<uint32_t>(shape, copies.list, from), RowPlace<uint32_t>(shape, blocks, to),
              shape);
    } else {
      CopyRow(RowPlace<uint16_t>(shape, copies.list, from), RowPlace<uint16_t>(shape, blocks, to),
              shape);
    }
  }
  if (!plan.keeps_sorted_positions) return;
  const SortedPositions kept(reinterpret_cast<std::byte*>(table.positions(0)),
                             static_cast<int>(copies.list.size()), plan.has_wide_positions);
  for (size_t e = 0; e < positions.size(); ++e) kept.Set(e, positions[e]);
}

// Returns how many of the entries that stay were sealed.
int PruneHeadEntries(const PrunePlan& plan, const PruneHead& head, std::span<const int> dropped,
                     const CpuLookup& lookup) {
  const CpuAccess& access = lookup.cache;
  const std::vector<RowMove> moves = MovesThatClose(dropped, head.n_entries, plan.in_order);
  const std::vector<std::byte*> blocks = access.At(head.blocks);
  int n_sealed = 0;
  if (head.opened.empty()) {
    CloseRows(head.shape, blocks, moves);
  } else {
    std::vector<PackedRun> runs;
    n_sealed =
        CopyKept({head.shape, PackedHeadAt(lookup, head.packed, &runs), blocks, head.n_entries},
                 dropped, access.At(head.opened));
  }
  if (head.entries.empty()) return n_sealed;
  const auto n_kept = static_cast<int>(std::min<int64_t>(KeptOf(plan, head).n, head.n_entries));
  const EntryTable table = EntryTableAt(access, head.entries);
  CloseEntries(plan, moves, n_kept, table);
  if (plan.classes.sum() > 0) SortEntries(plan, head.shape, table, blocks);
  return n_sealed;
}

}  // namespace

std::vector<int> PruneHeads(const PrunePlan& plan, const CpuLookup& lookup, ThreadPool* pool) {
  const CpuAccess& access = lookup.cache;
  const int64_t n_heads = std::ssize(plan.heads);
  std::vector<EntryTable> tables;
  const auto has_chosen = [](const PruneHead& head) { return head.entries.empty(); };
  for (const PruneHead& head : plan.heads) {
    tables.push_back(has_chosen(head) ? EntryTable() : EntryTableAt(access, head.entries));
  }
  const bool shares_heads = plan.shares_heads;
  const VoteRule rule = {.pool_kernel = plan.pool_kernel, .averages = plan.averages_votes};
  std::vector<int> dropped_by_all;
  if (shares_heads) {
    dropped_by_all = ChooseDropped(rule, plan.kept, plan.heads.front().n_entries, tables);
  }
  std::vector<int> n_sealed(n_heads);
  pool->Run([&](int worker_id) {
    const Range share = ShareOf(n_heads, 1, worker_id, pool->n_workers());
    for (int64_t g = share.begin; g < share.end; ++g) {
      const PruneHead& head = plan.heads[g];
      if (has_chosen(head)) {
        PruneHeadEntries(plan, head, head.dropped, lookup);
        continue;
      }
      n_sealed[g] = PruneHeadEntries(
          plan, head,
          shares_heads ? dropped_by_all
                       : ChooseDropped(rule, KeptOf(plan, head), head.n_entries, {&tables[g], 1}),
          lookup);
    }
  });
  return n_sealed;
}

}  // namespace kvlathe
