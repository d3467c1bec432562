#include "io/json_checksum.h"

#include <gtest/gtest.h>

#include <string>

namespace kvlathe {
namespace {

nlohmann::ordered_json Sample() {
  return {{"name", "sample"},
          {"numbers", {1, 0.1, 1e300, -3}},
          {"inner", {{"b", true}, {"a", nullptr}}}};
}

TEST(JsonChecksumTest, FitsWhatIsReadAgain) {
  nlohmann::ordered_json json = Sample();
  AddChecksum(&json);
  EXPECT_EQ(json["crc32c"].get<std::string>().size(), 8u);
  EXPECT_TRUE(FitsItsChecksum(nlohmann::json::parse(json.dump())));
  EXPECT_TRUE(FitsItsChecksum(nlohmann::json::parse(json.dump(1))));
  const nlohmann::ordered_json once = json;
  AddChecksum(&json);
  EXPECT_EQ(json, once);
}

// A flip that leaves JSON that means something else is noticed, but in the name of the checksum.
TEST(JsonChecksumTest, FitsNothingElse) {
  nlohmann::ordered_json json = Sample();
  AddChecksum(&json);
  const std::string text = json.dump();
  const auto whole = nlohmann::json::parse(text);
  int n_parsed = 0;
  for (size_t bit = 0; bit < 8 * text.size(); ++bit) {
    std::string other = text;
    other[bit / 8] = static_cast<char>(other[bit / 8] ^ 1 << bit % 8);
    const auto parsed = nlohmann::json::parse(other, nullptr, /*allow_exceptions=*/false);
    if (parsed.is_discarded() || parsed == whole || !parsed.contains("crc32c")) continue;
    ++n_parsed;
    EXPECT_FALSE(FitsItsChecksum(parsed)) << other;
  }
  EXPECT_GT(n_parsed, 50);
}

TEST(JsonChecksumTest, WithoutOneThereIsNothingToFit) {
  EXPECT_TRUE(FitsItsChecksum(nlohmann::json::parse(Sample().dump())));
  EXPECT_TRUE(FitsItsChecksum(nlohmann::json::array({1, 2})));
}

}  // namespace
}  // namespace kvlathe
