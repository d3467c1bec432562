// Where the model decides which entries leave (docs/methods/dms.md), a head keeps a bit for each
// position that is not settled yet: whether it may leave. Position p has bit p mod n_positions, so
// the bits are a ring:
//
//     0                                        ceil(n_positions / 8)     a multiple of 64
//     | bit 0 of byte 0, bit 1, ...              | padding                 |
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvlathe {

class EvictionFlags {
 public:
  // Bytes of the flags of n_positions.
  static constexpr int64_t Bytes(int n_positions) {
    constexpr int64_t kAlignment = 64;
    return (int64_t{n_positions} + 8 * kAlignment - 1) / (8 * kAlignment) * kAlignment;
  }

  // `bytes` has Bytes(n_positions) bytes and outlives this.
  EvictionFlags(std::span<std::byte> bytes, int n_positions)
      : bytes_(bytes), n_positions_(n_positions) {}

  bool at(int64_t position) const {
    const int64_t bit = position % n_positions_;
    return (bytes_[bit / 8] >> (bit % 8) & std::byte{1}) != std::byte{0};
  }
  void Set(int64_t position, bool may_leave) {
    const int64_t bit = position % n_positions_;
    const std::byte mask = std::byte{1} << (bit % 8);
    bytes_[bit / 8] = may_leave ? bytes_[bit / 8] | mask : bytes_[bit / 8] & ~mask;
  }

 private:
  std::span<std::byte> bytes_;
  int64_t n_positions_;
};

}  // namespace kvlathe
