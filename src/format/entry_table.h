// What retention keeps beside the entries of a head, and what it adds to their scores.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/rows/block_layout.h"

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

// Standard Gumbel noise that is added to scores, and the temperature that divides the sum
// (docs/methods/keyformer.md).
// The noise depends on these keys and positions alone: u = (2 h + 1) 2^-24 for a hash h of 23 bits,
// noise = -ln(-ln u).
struct ScoreNoise {
  uint64_t key = 0;        // of the seed and the layer
  int first_head = 0;      // query head of row 0, counted in the layer
  int first_position = 0;  // of the query of row 0
  // The temperature of the token of row 0. It grows by temperature_step with each token, up to
  // max_temperature.
  float temperature = 1;
  float temperature_step = 0;
  float max_temperature = 1;
};

}  // namespace kvlathe
