// CRC-32C (Castagnoli) is the checksum of iSCSI and ext4: it finds every error burst of up to 32
// bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvlathe {

// Returns the CRC of all bytes so far, whose CRC is `crc` (0 if there are none), followed by
// `bytes`.
uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> bytes);

}  // namespace kvlathe
