#include "base/crc32c.h"

#include <array>

namespace kvlathe {
namespace {

constexpr uint32_t kReflectedPolynomial = 0x82F63B78;
constexpr size_t kBytesPerRound = 8;

// tables[k][b]: the CRC of byte b followed by k zero bytes. With them a round takes eight bytes at
// once (slicing-by-8: M. Kounavis and F. Berry, "A Systematic Approach to Building High
// Performance, Software-based, CRC Generators", 2005).
using Tables = std::array<std::array<uint32_t, 256>, kBytesPerRound>;

constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? kReflectedPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < kBytesPerRound; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t shorter = tables[k - 1][byte];
      tables[k][byte] = shorter >> 8 ^ tables[0][shorter & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

}  // namespace

uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> bytes) {
  crc = ~crc;
  while (bytes.size() >= kBytesPerRound) {
    uint32_t next = 0;
    for (size_t i = 0; i < kBytesPerRound; ++i) {
      const uint32_t of_crc = i < 4 ? crc >> (8 * i) & 0xFF : 0;
      next ^= kTables[kBytesPerRound - 1 - i][std::to_integer<uint32_t>(bytes[i]) ^ of_crc];
    }
    crc = next;
    bytes = bytes.subspan(kBytesPerRound);
  }
  for (const std::byte byte : bytes) {
    crc = crc >> 8 ^ kTables[0][(crc ^ std::to_integer<uint32_t>(byte)) & 0xFF];
  }
  return ~crc;
}

}  // namespace kvlathe
