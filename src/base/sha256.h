// SHA-256 (FIPS 180-4), by which hubs name what they hold.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "base/sha256_instructions.h"

namespace kvlathe {

// Of bytes that come piece by piece.
class Sha256 {
 public:
  Sha256() : Sha256(HasSha256Instructions()) {}
  // With the processor's instructions for it, if it has them, or without: the result is the same.
  explicit Sha256(bool with_instructions) : with_instructions_(with_instructions) {}

  void Add(std::span<const std::byte> bytes);
  // Of all bytes so far, as 64 hexadecimal digits in lower case. More may be added afterwards.
  std::string HexDigest() const;

 private:
  static constexpr size_t kBlockBytes = 64;

  void AddBlocks(const std::byte* bytes, size_t n_blocks);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, kBlockBytes> pending_ = {};  // the beginning of a block
  size_t n_pending_ = 0;
  uint64_t n_bytes_ = 0;
  bool with_instructions_;
};

// Of these texts, each with its length before it, so that no two lists of texts are alike.
std::string DigestOf(std::initializer_list<std::string_view> texts);

}  // namespace kvlathe
