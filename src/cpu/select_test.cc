#include "cpu/select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/random.h"
#include "format/entry_table.h"

namespace kvlathe {
namespace {

struct Table {
  explicit Table(const std::vector<std::pair<int, int64_t>>& entries)
      : memory((entries.size() / 64 + 1) * EntryTable::BlockBytes(true)) {
    for (size_t e = 0; e < entries.size(); ++e) {
      view().position(e) = entries[e].first;
      view().sum(e) = entries[e].second;
    }
  }
  EntryTable view() { return EntryTable(memory.data(), true); }
  std::vector<std::byte> memory;
};

TEST(ChooseDropped, LeavesTheNewestAndThoseWithMostVotes) {
  // Positions are not in order: 9, 8 and 7 are the newest.
  Table table({{9, 0}, {2, 50}, {3, 10}, {8, 0}, {5, 10}, {7, 1}, {6, 40}});
  const EntryTable view = table.view();
  EXPECT_EQ(ChooseDropped({.pool_kernel = 1}, {.n = 7, .n_recent = 3}, 7, {&view, 1}),
            (std::vector<int>{}));
  EXPECT_EQ(ChooseDropped({.pool_kernel = 1}, {.n = 6, .n_recent = 3}, 7, {&view, 1}),
            (std::vector<int>{2}));
  EXPECT_EQ(ChooseDropped({.pool_kernel = 1}, {.n = 5, .n_recent = 3}, 7, {&view, 1}),
            (std::vector<int>{2, 4}));
  EXPECT_EQ(ChooseDropped({.pool_kernel = 1}, {.n = 3, .n_recent = 3}, 7, {&view, 1}),
            (std::vector<int>{1, 2, 4, 6}));
}

TEST(ChooseDropped, SumsTheVotesOfHeads) {
  Table a({{0, 10}, {1, 1}, {2, 5}, {3, 0}}), b({{0, 1}, {1, 20}, {2, 5}, {3, 0}});
  const EntryTable views[] = {a.view(), b.view()};
  EXPECT_EQ(ChooseDropped({.pool_kernel = 1}, {.n = 3, .n_recent = 1}, 4, views),
            (std::vector<int>{2}));
}

TEST(ChooseDropped, PoolsOverNeighbours) {
  // Pooled: 9, 9, 9, 0, 8, 8, 8 and two newest.
  Table table({{0, 0}, {1, 9}, {2, 0}, {3, 0}, {4, 0}, {5, 8}, {6, 0}, {7, 0}, {8, 0}});
  const EntryTable view = table.view();
  EXPECT_EQ(ChooseDropped({.pool_kernel = 3}, {.n = 6, .n_recent = 2}, 9, {&view, 1}),
            (std::vector<int>{3, 4, 5}));
}

TEST(ChooseDropped, AveragesOverTheQueriesThatSawAnEntry) {
  // Votes for each of 10, 8, 5, 2 and 1 queries: 3, 2, 4, 1 and 9.
  Table table({{0, 30}, {2, 16}, {5, 20}, {8, 2}, {9, 9}});
  const EntryTable view = table.view();
  const VoteRule rule = {.averages = true};
  EXPECT_EQ(ChooseDropped(rule, {.n = 4, .n_recent = 1}, 5, {&view, 1}), (std::vector<int>{3}));
  EXPECT_EQ(ChooseDropped(rule, {.n = 3, .n_recent = 1}, 5, {&view, 1}), (std::vector<int>{1, 3}));
  EXPECT_EQ(ChooseDropped(rule, {.n = 2, .n_recent = 1}, 5, {&view, 1}),
            (std::vector<int>{0, 1, 3}));
}

// Those with the most votes first and those with the least last, in order within a class; entries
// behind the sorted ones take no part.
TEST(OrderByClass, SortsByVotes) {
  Table table({{0, 5}, {1, 90}, {2, 7}, {3, 0}, {4, 5}, {5, 80}, {6, 1}, {7, 9}, {8, 99}});
  EXPECT_EQ(OrderByClass(1, {.most = 2, .middle = 4, .least = 2}, table.view()),
            (std::vector<int>{1, 5, 0, 2, 4, 7, 3, 6}));
  EXPECT_EQ(OrderByClass(1, {.most = 1, .middle = 0, .least = 1}, table.view()),
            (std::vector<int>{1, 0}));
  // Of equal votes the newer counts for more.
  EXPECT_EQ(OrderByClass(1, {.most = 4, .middle = 1, .least = 3}, table.view()),
            (std::vector<int>{1, 2, 5, 7, 4, 0, 3, 6}));
}

TEST(MovesThatClose, LeaveTheKeptInFront) {
  Random random(3);
  for (int i = 0; i < 300; ++i) {
    const int n = 1 + static_cast<int>(random.Below(70));
    std::vector<int> dropped, rows;
    for (int e = 0; e < n; ++e) {
      rows.push_back(e);
      if (random.Below(3) == 0) dropped.push_back(e);
    }
    std::vector<int> want;
    for (int e = 0; e < n; ++e) {
      if (!std::ranges::binary_search(dropped, e)) want.push_back(e);
    }
    for (const bool in_order : {true, false}) {
      std::vector<int> moved = rows;
      const std::vector<RowMove> moves = MovesThatClose(dropped, n, in_order);
      for (const RowMove& move : moves) moved[move.to] = moved[move.from];
      moved.resize(want.size());
      if (!in_order) {
        EXPECT_LE(moves.size(), dropped.size());
        std::ranges::sort(moved);
      }
      ASSERT_EQ(moved, want) << "case " << i << (in_order ? " in order" : "");
    }
  }
}

}  // namespace
}  // namespace kvlathe
