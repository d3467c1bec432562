#include "cuda/retain/cuda_pruner.h"

#include <algorithm>
#include <span>
#include <type_traits>

#include "cpu/select.h"
#include "cuda/kernels/retain/move_rows.h"

namespace kvlathe {
namespace {

static_assert(sizeof(RowMove) == sizeof(cuda::EntryMove) && std::is_trivially_copyable_v<RowMove>);

// The tables of all heads on the host.
struct HostTables {
  HostTables(const PrunePlan& plan, CudaDevice* memory) : bytes(plan.heads.size()) {
    for (size_t g = 0; g < plan.heads.size(); ++g) {
      const PruneHead& head = plan.heads[g];
      const int64_t n_blocks = (head.n_entries + kBlockSize - 1) / kBlockSize;
      bytes[g].resize(n_blocks * EntryTable::BlockBytes(head.entries.has_sums));
      memory->Download({.object = head.entries.object}, bytes[g]);
      tables.emplace_back(bytes[g].data(), head.entries.has_sums);
    }
  }
  std::vector<std::vector<std::byte>> bytes;
  std::vector<EntryTable> tables;
};

}  // namespace

bool CudaPruner::Takes(const PrunePlan& plan) {
  const auto is_open = [](const PruneHead& head) {
    return head.opened.empty() && head.n_kept == 0 && !head.shape.has_one_side &&
           !head.entries.empty();
  };
  return !plan.has_coded_rows && plan.classes.sum() == 0 &&
         std::ranges::all_of(plan.heads, is_open);
}

void CudaPruner::Prune(const PrunePlan& plan) {
  const HostTables host(plan, &memory_);
  const VoteRule rule = {.pool_kernel = plan.pool_kernel, .averages = plan.averages_votes};
  std::vector<int> dropped;
  if (plan.shares_heads) {
    dropped = ChooseDropped(rule, plan.kept, plan.heads.front().n_entries, host.tables);
  }
  std::vector<cuda::MoveRowsItem> items;
  int max_channels = 0;
  CudaStream& stream = memory_.stream();
  for (size_t g = 0; g < plan.heads.size(); ++g) {
    const PruneHead& head = plan.heads[g];
    if (!plan.shares_heads) {
      dropped = ChooseDropped(rule, plan.kept, head.n_entries, {&host.tables[g], 1});
    }
    const std::vector<RowMove> moves = MovesThatClose(dropped, head.n_entries, plan.in_order);
    std::vector<uint32_t> blocks;
    for (const ObjectId& block : head.blocks) blocks.push_back(memory_.PlaceOf(block));
    const auto n_kept = static_cast<int>(std::min<int64_t>(plan.kept.n, head.n_entries));
    items.push_back({.blocks = stream.Send(std::span<const uint32_t>(blocks)),
                     .moves = reinterpret_cast<const cuda::EntryMove*>(
                         stream.Send(std::span<const RowMove>(moves))),
                     .n_moves = static_cast<int>(moves.size()),
                     .rank_k = head.shape.rank_k,
                     .rank_v = head.shape.rank_v,
                     .element_bytes = static_cast<int>(head.shape.element_bytes()),
                     .table = memory_.At(head.entries.object),
                     .has_sums = head.entries.has_sums,
                     .n_cleared = plan.restarts_votes ? n_kept : 0});
    max_channels = std::max(max_channels, head.shape.rank_k + head.shape.rank_v);
  }
  const cuda::MoveRowsItem* const sent = stream.Send(std::span<const cuda::MoveRowsItem>(items));
  if (sent == nullptr) return;
  cuda::MoveRows(stream.get(), memory_.base(), sent, static_cast<int>(items.size()), max_channels);
}

}  // namespace kvlathe
