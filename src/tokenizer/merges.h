// The merge table of byte-pair encoding (Sennrich et al. 2016) is applied to one word at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

namespace kvlathe {

// Working memory of MergeTable::Apply, kept between words.
struct MergeScratch {
  std::vector<int32_t> rank;  // of the pair that starts at a position, MergeTable::kNoMerge if none
  std::vector<int32_t> merged_id;
  std::vector<int32_t> prev;
  std::vector<int32_t> next;
  std::vector<uint64_t> heap;  // rank << 32 | position
};

class MergeTable {
 public:
  static constexpr int32_t kNoMerge = INT32_MAX;

  void Reserve(size_t n_merges) { merges_.reserve(n_merges); }
  // A pair added twice keeps its last rank, as in Hugging Face tokenizers.
  void Add(int32_t left, int32_t right, int32_t rank, int32_t merged_id) {
    merges_.insert_or_assign(Key(left, right), Merge{rank, merged_id});
  }

  // Whether one side of some pair is one of `ids`.
  bool UsesAnyOf(const absl::flat_hash_set<int32_t>& ids) const;

  // Merges the pair of lowest rank, leftmost first, until none is left. Short words scan all pairs
  // per merge (O(n^2), no heap traffic); longer ones use a heap over a linked list (O(n log n)).
  void Apply(std::vector<int32_t>* symbols, MergeScratch* scratch) const;

 private:
  struct Merge {
    int32_t rank;
    int32_t id;
  };
  static uint64_t Key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  Merge Find(int32_t left, int32_t right) const {
    const auto entry = merges_.find(Key(left, right));
    return entry == merges_.end() ? Merge{kNoMerge, 0} : entry->second;
  }
  void ApplyByScan(std::vector<int32_t>* symbols, MergeScratch* scratch) const;
  void ApplyByHeap(std::vector<int32_t>* symbols, MergeScratch* scratch) const;

  absl::flat_hash_map<uint64_t, Merge> merges_;
};

}  // namespace kvlathe
