#include "tokenizer/merges.h"

#include <algorithm>
#include <functional>

namespace kvlathe {
namespace {

constexpr size_t kMaxScanSymbols = 48;

}  // namespace

bool MergeTable::UsesAnyOf(const absl::flat_hash_set<int32_t>& ids) const {
  return std::any_of(merges_.begin(), merges_.end(), [&](const auto& entry) {
    return ids.contains(static_cast<int32_t>(entry.first >> 32)) ||
           ids.contains(static_cast<int32_t>(entry.first & 0xFFFFFFFF));
  });
}

void MergeTable::Apply(std::vector<int32_t>* symbols, MergeScratch* scratch) const {
  if (symbols->size() < 2) return;
  if (symbols->size() <= kMaxScanSymbols) {
    ApplyByScan(symbols, scratch);
  } else {
    ApplyByHeap(symbols, scratch);
  }
}

void MergeTable::ApplyByScan(std::vector<int32_t>* symbols, MergeScratch* scratch) const {
  auto& ids = *symbols;
  auto& rank = scratch->rank;
  auto& merged_id = scratch->merged_id;
  rank.resize(ids.size());
  merged_id.resize(ids.size());
  size_t n = ids.size();
  const auto look_up = [&](size_t i) {
    const Merge merge = Find(ids[i], ids[i + 1]);
    rank[i] = merge.rank;
    merged_id[i] = merge.id;
  };
  for (size_t i = 0; i + 1 < n; ++i) look_up(i);
  while (n > 1) {
    const auto best = static_cast<size_t>(
        std::min_element(rank.begin(), rank.begin() + static_cast<ptrdiff_t>(n) - 1) -
        rank.begin());
    if (rank[best] == kNoMerge) break;
    ids[best] = merged_id[best];
    std::copy(ids.begin() + best + 2, ids.begin() + n, ids.begin() + best + 1);
    std::copy(rank.begin() + best + 1, rank.begin() + n, rank.begin() + best);
    std::copy(merged_id.begin() + best + 1, merged_id.begin() + n, merged_id.begin() + best);
    --n;
    if (best > 0) look_up(best - 1);
    if (best + 1 < n) look_up(best);
  }
  ids.resize(n);
}

void MergeTable::ApplyByHeap(std::vector<int32_t>* symbols, MergeScratch* scratch) const {
  auto& ids = *symbols;
  auto& [rank, merged_id, prev, next, heap] = *scratch;
  const auto n = static_cast<int32_t>(ids.size());
  rank.assign(n, kNoMerge);
  merged_id.resize(n);
  prev.resize(n);
  next.resize(n);
  heap.clear();
  const auto look_up = [&](int32_t i) {
    const Merge merge = next[i] < n ? Find(ids[i], ids[next[i]]) : Merge{kNoMerge, 0};
    rank[i] = merge.rank;
    merged_id[i] = merge.id;
    return merge.rank != kNoMerge;
  };
  const auto entry_of = [&](int32_t i) {
    return static_cast<uint64_t>(rank[i]) << 32 | static_cast<uint32_t>(i);
  };
  for (int32_t i = 0; i < n; ++i) {
    prev[i] = i - 1;
    next[i] = i + 1;
    if (look_up(i)) heap.push_back(entry_of(i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto push = [&](int32_t i) {
    if (!look_up(i)) return;
    heap.push_back(entry_of(i));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    const uint64_t entry = heap.front();
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    const auto i = static_cast<int32_t>(entry & 0xFFFFFFFF);
    // A merge changes the ranks of its neighbours and clears that of what it swallowed; entries
    // pushed before are then stale.
    if (rank[i] != static_cast<int32_t>(entry >> 32)) continue;
    const int32_t swallowed = next[i];
    ids[i] = merged_id[i];
    rank[swallowed] = kNoMerge;
    next[i] = next[swallowed];
    if (next[i] < n) prev[next[i]] = i;
    push(i);
    if (prev[i] >= 0) push(prev[i]);
  }
  size_t n_left = 0;
  for (int32_t i = 0; i < n; i = next[i]) ids[n_left++] = ids[i];
  ids.resize(n_left);
}

}  // namespace kvlathe
