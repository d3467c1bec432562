#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace kvlathe {
namespace {

uint32_t Crc(std::string_view text) { return ExtendCrc32c(0, std::as_bytes(std::span(text))); }

// One bit at a time, as the definition says.
uint32_t CrcByBits(std::string_view text) {
  uint32_t crc = 0xFFFFFFFF;
  for (const char c : text) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78 : 0);
  }
  return ~crc;
}

TEST(Crc32c, EqualsTheValuesOfTheStandard) {
  // RFC 3720, appendix B.4, and the check value of the CRC catalogues.
  EXPECT_EQ(Crc(""), 0u);
  EXPECT_EQ(Crc("123456789"), 0xE3069283u);
  EXPECT_EQ(Crc(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(Crc(std::string(32, '\xFF')), 0x62A8AB43u);
}

TEST(Crc32c, EqualsTheDefinitionAtEveryLengthAndCut) {
  std::string text;
  for (int i = 0; i < 70; ++i) {
    const uint32_t whole = CrcByBits(text);
    for (size_t cut = 0; cut <= text.size(); ++cut) {
      const auto bytes = std::as_bytes(std::span(text));
      ASSERT_EQ(ExtendCrc32c(ExtendCrc32c(0, bytes.first(cut)), bytes.subspan(cut)), whole);
    }
    text += static_cast<char>(37 * i * i + 11);
  }
}

}  // namespace
}  // namespace kvlathe
