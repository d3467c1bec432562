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

TEST(BasisHashTest, DependsOnRanksAndEveryMap) {
  HeadBasis head{.rank_k = 1, .rank_v = 2};
  head.query_basis = head.key_basis = {1, 2};
  head.value_basis = head.output_basis = {1, 2, 3, 4};
  const ModelBasis basis = {1, 2, 2, {head, head}};
  EXPECT_EQ(BasisHash(basis), BasisHash(ModelBasis(basis)));
  const auto expect_other = [&](const auto& change) {
    ModelBasis changed = basis;
    change(&changed.heads[1]);
    EXPECT_NE(BasisHash(changed), BasisHash(basis));
  };
  expect_other([](HeadBasis* h) { h->rank_k = 2; });
  expect_other([](HeadBasis* h) { h->query_basis[1] = 3; });
  expect_other([](HeadBasis* h) { h->key_basis[0] = -1; });
  expect_other([](HeadBasis* h) { h->value_basis[3] = 0; });
  expect_other([](HeadBasis* h) { h->output_basis[2] = 0; });
  expect_other([](HeadBasis* h) { h->key_offset = {1, 1}; });
  expect_other([](HeadBasis* h) { h->value_offset = {1, 1}; });
  expect_other([](HeadBasis* h) { h->key_way_back = {1, 1}; });
}

TEST(CodebooksHashTest, DependsOnEveryNumber) {
  LayerCodebooks layer;
  layer.key_scales = {{1, 2}, {3, 4}};
  const ModelCodebooks codebooks = {layer, layer};
  EXPECT_EQ(CodebooksHash(codebooks), CodebooksHash(ModelCodebooks(codebooks)));
  const auto expect_other = [&](const auto& change) {
    ModelCodebooks changed = codebooks;
    change(&changed[1]);
    EXPECT_NE(CodebooksHash(changed), CodebooksHash(codebooks));
  };
  expect_other([](LayerCodebooks* l) { l->k.boundaries[3] = 1; });
  expect_other([](LayerCodebooks* l) { l->v.centroids[15] = 1; });
  expect_other([](LayerCodebooks* l) { l->v.n_codes = 4; });
  expect_other([](LayerCodebooks* l) { l->key_scales[1][0] = 5; });
}

}  // namespace
}  // namespace kvlathe
