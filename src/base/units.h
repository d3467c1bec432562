// Sizes and durations are read and written as people write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kvlathe {

// "512MiB", "2GiB", "1.5G", "1000000": bytes. K, M, G, T and KiB... are powers of 1024; KB... of
// 1000.
StatusOr<int64_t> ParseBytes(std::string_view text);

// 1536 -> "1.5 KiB".
std::string FormatBytes(int64_t n_bytes);

constexpr int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace kvlathe
