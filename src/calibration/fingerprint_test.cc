#include "calibration/fingerprint.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvlathe {
namespace {

std::string HashOf(const std::string& config, const std::string& tensor_name,
                   const std::vector<float>& values) {
  const std::string path = ::testing::TempDir() + "/fingerprint.safetensors";
  const auto n = static_cast<int64_t>(values.size());
  EXPECT_TRUE(WriteSafetensors(path, {{tensor_name, DType::kF32, {n}, values.data()}}, {}).ok());
  return ModelHash(config, *SafetensorsReader::OpenFile(path));
}

TEST(ModelHashTest, ChangesWithConfigNameShapeAndSampledBytes) {
  std::vector<float> values(10000, 0.5f);
  const std::string hash = HashOf("{}", "w", values);
  EXPECT_EQ(hash.size(), 32u);
  EXPECT_EQ(hash, HashOf("{}", "w", values));
  EXPECT_NE(hash, HashOf("{ }", "w", values));
  EXPECT_NE(hash, HashOf("{}", "v", values));
  EXPECT_NE(hash, HashOf("{}", "w", std::vector<float>(10001, 0.5f)));
  for (const int i : {0, 5000, 9999}) {
    std::vector<float> changed = values;
    changed[i] = 0.6f;
    EXPECT_NE(hash, HashOf("{}", "w", changed)) << i;
  }
}

TEST(FingerprintTest, BoundariesBetweenPartsCount) {
  Fingerprint a, b;
  a.Add("ab");
  a.Add("c");
  b.Add("a");
  b.Add("bc");
  EXPECT_NE(a.Hex(), b.Hex());
}

TEST(TokenHashTest, DependsOnTheTokens) {
  const std::vector<int32_t> ids = {1, 2, 3}, others = {1, 3, 2};
  EXPECT_EQ(TokenHash(ids), TokenHash(std::vector<int32_t>{1, 2, 3}));
  EXPECT_NE(TokenHash(ids), TokenHash(others));
}

}  // namespace
}  // namespace kvlathe
