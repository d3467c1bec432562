#include "model/ranks/model_shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "model/tensor_source.h"

namespace kvlathe {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr int kHeadDim = 16;

// Four heads of queries, of keys and of values.
ModelConfig FourHeads(const char* model_type) {
  const nlohmann::json json = {{"model_type", model_type}, {"hidden_size", 64},
                               {"num_hidden_layers", 2},   {"num_attention_heads", 4},
                               {"num_key_value_heads", 4}, {"intermediate_size", 128},
                               {"vocab_size", 96},         {"max_position_embeddings", 128},
                               {"qk_layernorm", true},     {"rms_norm_eps", 1e-5}};
  const auto config = ParseModelConfig(json, "config.json");
  EXPECT_TRUE(config.ok()) << config.status();
  return *config;
}

std::vector<std::pair<int64_t, int64_t>> PairsOf(const std::vector<Projection::Run>& runs) {
  std::vector<std::pair<int64_t, int64_t>> pairs;
  for (const Projection::Run& run : runs) pairs.emplace_back(run.begin, run.n);
  return pairs;
}

// What the second of two ranks holds: heads 2 and 3.
class SecondRank {
 public:
  explicit SecondRank(const char* model_type)
      : config_(FourHeads(model_type)), names_(config_, *MakeRandomSource(1)) {
    const auto shard = ShardOf(config_, {2, 1}, 1);
    EXPECT_TRUE(shard.ok()) << shard.status();
    shard_ = *shard;
    held_ = std::make_unique<ShardNames>(&names_, &config_, shard_);
  }
  const ShardNames& held() const { return *held_; }

 private:
  ModelConfig config_;
  WeightNames names_;
  ModelShard shard_;
  std::unique_ptr<ShardNames> held_;
};

TEST(ShardNames, HeadsOfARankAreCutFromWhatIsFusedByHead) {
  for (const char* model_type : {"gpt_neox", "internlm2"}) {
    const SecondRank rank(model_type);
    const std::vector<Projection> qk = rank.held().qk(1);
    ASSERT_EQ(qk.size(), 1u);
    EXPECT_EQ(qk[0].n_stored, 12 * kHeadDim);
    // A head has its query, its key, its value.
    EXPECT_THAT(PairsOf(qk[0].runs),
                ElementsAre(Pair(6 * kHeadDim, kHeadDim), Pair(9 * kHeadDim, kHeadDim),
                            Pair(7 * kHeadDim, kHeadDim), Pair(10 * kHeadDim, kHeadDim)));
    EXPECT_THAT(PairsOf(rank.held().v(1).runs),
                ElementsAre(Pair(8 * kHeadDim, kHeadDim), Pair(11 * kHeadDim, kHeadDim)));
    ASSERT_TRUE(rank.held().o(1).inputs.has_value());
    EXPECT_EQ(rank.held().o(1).inputs->begin, 2 * kHeadDim);
    EXPECT_EQ(rank.held().o(1).inputs->end, 4 * kHeadDim);
  }
  EXPECT_EQ(SecondRank("gpt_neox").held().qk(1)[0].tensor,
            "gpt_neox.layers.1.attention.query_key_value");
  EXPECT_EQ(SecondRank("internlm2").held().qk(1)[0].tensor, "model.layers.1.attention.wqkv");
}

TEST(ShardNames, NormsOfEachHeadGoWithTheirHeads) {
  const SecondRank rank("stablelm");
  for (const auto& [parts, name] : {std::pair{rank.held().q_norm(0), "q_layernorm"},
                                    std::pair{rank.held().k_norm(0), "k_layernorm"}}) {
    ASSERT_EQ(parts.size(), 4u);
    for (int h = 0; h < 4; ++h) {
      EXPECT_EQ(parts[h].name, fmt::format("model.layers.0.self_attn.{}.norms.{}.weight", name, h));
      EXPECT_EQ(parts[h].n_stored, kHeadDim);
    }
    EXPECT_THAT(parts[0].runs, IsEmpty());
    EXPECT_THAT(parts[1].runs, IsEmpty());
    EXPECT_THAT(PairsOf(parts[2].runs), ElementsAre(Pair(0, kHeadDim)));
    EXPECT_THAT(PairsOf(parts[3].runs), ElementsAre(Pair(0, kHeadDim)));
  }
}

TEST(ShardNames, NormsThatHeadsShareStayWhole) {
  const SecondRank rank("phi");
  const std::vector<VectorPart> parts = rank.held().k_norm(1);
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].name, "model.layers.1.self_attn.k_layernorm.weight");
  EXPECT_THAT(PairsOf(parts[0].runs), ElementsAre(Pair(0, kHeadDim)));
}

TEST(ModelShard, NumbersOfXieluGoWithTheirLayers) {
  ModelConfig config = FourHeads("apertus");
  config.xielu = {{.positive = 1}, {.positive = 2}};
  const auto second = ShardOf(config, {1, 2}, 1);
  ASSERT_TRUE(second.ok()) << second.status();
  const ModelConfig of_second = ConfigOf(config, *second);
  ASSERT_EQ(of_second.xielu.size(), 1u);
  EXPECT_EQ(of_second.xielu[0].positive, 2);
}

}  // namespace
}  // namespace kvlathe
