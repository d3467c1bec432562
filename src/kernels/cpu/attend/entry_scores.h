// Attention mass of cache entries, what retention chooses by: column sums of the attention
// probabilities (H2O), or of probabilities from noisy scores (Keyformer).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu_features.h"
#include "format/block_layout.h"

namespace kvlathe {

// What a head keeps beside the rows of its entries, block by block as the rows lie:
//   int32 positions [kBlockSize], then, where entries are scored, int64 sums [kBlockSize].
//
// Sums are fixed-point numbers of kScoreUnit: adding them has no rounding, so neither threads nor
// the way a prompt is cut into steps change what is kept.
inline constexpr double kScoreUnit = 1.0 / (1 << 30);

class EntryTable {
 public:
  EntryTable() = default;
  EntryTable(std::byte* blocks, bool has_sums) : blocks_(blocks), has_sums_(has_sums) {}

  static constexpr int64_t BlockBytes(bool has_sums) {
    return kBlockSize * static_cast<int64_t>(sizeof(int32_t) + (has_sums ? sizeof(int64_t) : 0));
  }
  bool empty() const { return blocks_ == nullptr; }
  bool has_sums() const { return has_sums_; }

  int32_t* positions(int64_t block) const {
    return reinterpret_cast<int32_t*>(blocks_ + block * BlockBytes(has_sums_));
  }
  int64_t* sums(int64_t block) const {
    return reinterpret_cast<int64_t*>(positions(block) + kBlockSize);
  }
  int32_t& position(int64_t entry) const {
    return positions(entry / kBlockSize)[entry % kBlockSize];
  }
  int64_t& sum(int64_t entry) const { return sums(entry / kBlockSize)[entry % kBlockSize]; }

 private:
  std::byte* blocks_ = nullptr;
  bool has_sums_ = false;
};

// Standard Gumbel noise on scores and a temperature under them (docs/methods/keyformer.md).
// The noise depends on these keys and positions alone: u = (2 h + 1) 2^-24 for a hash h of 23 bits,
// noise = -ln(-ln u).
struct ScoreNoise {
  uint64_t key = 0;        // of the seed and the layer
  int first_head = 0;      // query head of row 0, counted in the layer
  int first_position = 0;  // of the query of row 0
  // Of the token of row 0, and what it grows by per token, up to max_temperature.
  float temperature = 1;
  float temperature_step = 0;
  float max_temperature = 1;
};
// The key of one query: h is HashScore(QueryKey(...), position of the key).
uint32_t QueryKey(const ScoreNoise& noise, int head, int position);
constexpr uint32_t HashScore(uint32_t query_key, uint32_t key_position) {
  uint32_t x = query_key + key_position * 0x9e3779b1u;
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

// Rows of queries and their scores against the entries of one head. Row r belongs to token
// r / gqa_group and sees entries < first_visible + r / gqa_group.
struct EntryScoreParams {
  // [n_rows, stride] q k, not scaled; the noisy sums overwrite it. What lies behind the entries, up
  // to whole blocks of them, is read and not used.
  float* scores = nullptr;
  int64_t stride = 0;
  int n_rows = 0;
  int gqa_group = 1;
  int first_visible = 0;
  int n_entries = 0;
  float sm_scale = 1;
  // Of each row's softmax over all that it sees, sinks included; not used with noise, whose
  // probabilities are over these entries.
  const float* row_max = nullptr;
  const float* row_sum = nullptr;
  const ScoreNoise* noise = nullptr;  // null: the probabilities themselves
  EntryTable table;
};

struct EntryScoreKernels {
  // Adds the probabilities of every row to the sums of the entries. Calls on one table may run at
  // the same time.
  void (*add)(const EntryScoreParams& params);
};

const EntryScoreKernels& GetEntryScoreKernels(Isa isa);

}  // namespace kvlathe
