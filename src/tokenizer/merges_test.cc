#include "tokenizer/merges.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace kvlathe {
namespace {

struct Pair {
  int32_t left, right, rank, merged_id;
};

// The definition, without any index.
std::vector<int32_t> MergeLiterally(const std::vector<Pair>& pairs, std::vector<int32_t> ids) {
  while (true) {
    size_t best = ids.size();
    const Pair* best_pair = nullptr;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      for (const Pair& pair : pairs) {
        if (pair.left != ids[i] || pair.right != ids[i + 1]) continue;
        if (best_pair == nullptr || pair.rank < best_pair->rank) best = i, best_pair = &pair;
      }
    }
    if (best_pair == nullptr) return ids;
    ids[best] = best_pair->merged_id;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

TEST(MergeTableTest, ScanAndHeapFollowTheDefinition) {
  Random random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<Pair> pairs;
    MergeTable table;
    int32_t n_ids = 4;
    for (int32_t rank = 0; rank < 12; ++rank) {
      const Pair pair = {static_cast<int32_t>(random.Below(n_ids)),
                         static_cast<int32_t>(random.Below(n_ids)), rank, n_ids};
      bool is_new = true;
      for (const Pair& other : pairs) {
        is_new &= other.left != pair.left || other.right != pair.right;
      }
      if (!is_new) continue;
      pairs.push_back(pair);
      table.Add(pair.left, pair.right, pair.rank, pair.merged_id);
      ++n_ids;
    }
    // Both sides of the length at which the heap takes over.
    std::vector<int32_t> ids(1 + random.Below(120));
    for (int32_t& id : ids) id = static_cast<int32_t>(random.Below(4));
    const std::vector<int32_t> expected = MergeLiterally(pairs, ids);
    MergeScratch scratch;
    table.Apply(&ids, &scratch);
    ASSERT_EQ(ids, expected) << "round " << round;
  }
}

}  // namespace
}  // namespace kvlathe
