#include "base/sha256.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace kvlathe {
namespace {

// A processor without instructions for it tests the portable code twice.
std::vector<bool> Ways() { return {false, HasSha256Instructions()}; }

std::string HashOf(std::string_view text, bool with_instructions = false) {
  Sha256 hash(with_instructions);
  hash.Add(std::as_bytes(std::span(text)));
  return hash.HexDigest();
}

// The examples of FIPS 180-4's companion pages, and the padding of an empty text.
TEST(Sha256, IsThatOfTheStandard) {
  for (const bool way : Ways()) {
    EXPECT_EQ(HashOf("", way), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    EXPECT_EQ(HashOf("abc", way),
              "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(HashOf("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", way),
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    EXPECT_EQ(HashOf(std::string(1'000'000, 'a'), way),
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  }
}

TEST(Sha256, IsTheSameHoweverTheBytesAreCut) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 7);
  for (size_t n = 0; n <= text.size(); ++n) {
    Sha256 hash(Ways()[n % 2]);
    const auto bytes = std::as_bytes(std::span(text));
    hash.Add(bytes.first(n));
    EXPECT_EQ(hash.HexDigest(), HashOf(std::string_view(text).substr(0, n))) << n;
    hash.Add(bytes.subspan(n));
    EXPECT_EQ(hash.HexDigest(), HashOf(text)) << n;
  }
}

TEST(Sha256, DigestsTellListsOfTextsApart) {
  EXPECT_EQ(DigestOf({"ab", "c"}).size(), 64u);
  EXPECT_EQ(DigestOf({"ab", "c"}), DigestOf({"ab", "c"}));
  EXPECT_NE(DigestOf({"ab", "c"}), DigestOf({"a", "bc"}));
  EXPECT_NE(DigestOf({"abc"}), DigestOf({"abc", ""}));
}

}  // namespace
}  // namespace kvlathe
