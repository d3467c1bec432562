// Retention keeps a table beside the entries of a head, and adds noise to their scores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/random.h"
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

// What a head keeps of entries that were sorted where the prompt ended (EntryClass), if attention
// has to know their positions: these alone, of its first blocks, as uint16 where the prompt is
// short enough for it, else as int32. Later entries follow each other by position.
class SortedPositions {
 public:
  SortedPositions() = default;
  SortedPositions(std::byte* positions, int n_blocks, bool is_wide)
      : positions_(positions), n_blocks_(n_blocks), is_wide_(is_wide) {}

  // Whether the positions of a prompt of this length need 32 bits.
  static constexpr bool IsWide(int64_t n_prompt) { return n_prompt > (int64_t{1} << 16); }
  static constexpr int64_t BlockBytes(bool is_wide) { return kBlockSize * (is_wide ? 4 : 2); }
  bool Has(int64_t block) const { return block < n_blocks_; }
  int n_blocks() const { return n_blocks_; }

  int32_t at(int64_t entry) const {
    if (is_wide_) return Load<int32_t>(entry);
    return Load<uint16_t>(entry);
  }
  void Set(int64_t entry, int32_t position) const {
    if (is_wide_) return Store(entry, position);
    Store(entry, static_cast<uint16_t>(position));
  }

 private:
  template <typename T>
  T Load(int64_t entry) const {
    T value;
    std::memcpy(&value, positions_ + entry * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return value;
  }
  template <typename T>
  void Store(int64_t entry, T value) const {
    std::memcpy(positions_ + entry * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
  }

  std::byte* positions_ = nullptr;
  int n_blocks_ = 0;
  bool is_wide_ = false;
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

  // Of a token that comes so many behind that of row 0.
  constexpr float TemperatureOf(int token) const {
    const float grown = temperature + static_cast<float>(token) * temperature_step;
    return grown < max_temperature ? grown : max_temperature;
  }
};

// The hash key of one query. The h of ScoreNoise is HashScore(QueryKey(...), position of the key).
constexpr uint32_t QueryKey(const ScoreNoise& noise, int head, int position) {
  const uint64_t place =
      uint64_t{static_cast<uint32_t>(head)} << 32 | static_cast<uint32_t>(position);
  return static_cast<uint32_t>(MixBits(noise.key ^ MixBits(place)));
}
constexpr uint32_t HashScore(uint32_t query_key, uint32_t key_position) {
  uint32_t x = query_key + key_position * 0x9e3779b1u;
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

}  // namespace kvlathe
