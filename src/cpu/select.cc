#include "cpu/select.h"

#include <algorithm>

#include "base/check.h"

namespace kvlathe {
namespace {

struct Candidate {
  int64_t votes = 0;
  int32_t position = 0;
  int entry = 0;

  bool operator<(const Candidate& other) const {
    return votes != other.votes ? votes < other.votes : position < other.position;
  }
};

// Votes from a damaged file may be anything; their sums wrap.
int64_t Sum(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
int64_t Difference(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
}

// Sums over a window of entries, which lie in the order of their positions; outside there is none.
void AddNeighbours(int kernel, std::vector<Candidate>* all) {
  const int n = static_cast<int>(all->size()), reach = kernel / 2;
  std::vector<int64_t> sums(n + 1);
  for (int i = 0; i < n; ++i) sums[i + 1] = Sum(sums[i], (*all)[i].votes);
  for (int i = 0; i < n; ++i) {
    (*all)[i].votes = Difference(sums[std::min(n, i + reach + 1)], sums[std::max(0, i - reach)]);
  }
}

}  // namespace

std::vector<int> ChooseDropped(const VoteRule& rule, const KeptEntries& kept, int64_t n_entries,
                               std::span<const EntryTable> tables) {
  const int64_t n_dropped = n_entries - kept.n;
  if (n_dropped <= 0) return {};
  std::vector<Candidate> candidates(n_entries);
  int32_t newest = 0;
  for (int e = 0; e < n_entries; ++e) {
    Candidate& c = candidates[e];
    c.entry = e;
    c.position = tables[0].position(e);
    newest = std::max(newest, c.position);
    for (const EntryTable& table : tables) {
      if (table.has_sums()) c.votes = Sum(c.votes, table.sum(e));
    }
  }
  // Every query from an entry's own position on has seen it.
  for (Candidate& c : candidates) {
    if (rule.averages) c.votes /= std::max<int64_t>(1, int64_t{newest} - c.position + 1);
  }
  if (rule.pool_kernel > 1) AddNeighbours(rule.pool_kernel, &candidates);
  // The newest n_recent positions are there without gaps: they were protected before as well.
  const int64_t protected_from = int64_t{newest} - kept.n_recent + 1;
  std::erase_if(candidates, [&](const Candidate& c) { return c.position >= protected_from; });
  KVL_CHECK_GE(std::ssize(candidates), n_dropped);
  const auto end = candidates.begin() + n_dropped;
  if (end != candidates.end()) std::nth_element(candidates.begin(), end, candidates.end());
  std::vector<int> dropped;
  for (auto c = candidates.begin(); c != end; ++c) dropped.push_back(c->entry);
  std::ranges::sort(dropped);
  return dropped;
}

std::vector<int> OrderByClass(int pool_kernel, const ClassSizes& sizes, const EntryTable& table) {
  std::vector<Candidate> candidates(sizes.sum());
  for (int e = 0; e < std::ssize(candidates); ++e) {
    candidates[e] = {table.sum(e), table.position(e), e};
  }
  if (pool_kernel > 1) AddNeighbours(pool_kernel, &candidates);
  std::ranges::sort(candidates, [](const Candidate& a, const Candidate& b) { return b < a; });
  std::vector<int> order;
  for (const Candidate& c : candidates) order.push_back(c.entry);
  const auto middle = order.begin() + sizes.most, least = middle + sizes.middle;
  std::sort(order.begin(), middle);
  std::sort(middle, least);
  std::sort(least, order.end());
  return order;
}

std::vector<RowMove> MovesThatClose(std::span<const int> dropped, int64_t n_entries,
                                    bool in_order) {
  std::vector<RowMove> moves;
  const int n = static_cast<int>(n_entries), n_dropped = static_cast<int>(dropped.size());
  if (in_order) {
    int n_passed = 0;
    for (int e = n_dropped == 0 ? n : dropped[0]; e < n; ++e) {
      if (n_passed < n_dropped && dropped[n_passed] == e) {
        ++n_passed;
      } else {
        moves.push_back({e, e - n_passed});
      }
    }
    return moves;
  }
  int last = n - 1, last_dropped = n_dropped - 1;
  for (int gap = 0; gap < n_dropped && dropped[gap] < n - n_dropped; ++gap) {
    for (; last_dropped >= 0 && dropped[last_dropped] == last; --last_dropped) --last;
    moves.push_back({last--, dropped[gap]});
  }
  return moves;
}

}  // namespace kvlathe
