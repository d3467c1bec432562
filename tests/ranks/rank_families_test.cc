// A model that ranks share computes what it computes on one machine, in every family: heads,
// columns and words are cut, layers are cut, and both.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "../model_shapes.h"
#include "../random_model.h"
#include "greedy_batch.h"
#include "thread_ranks.h"

namespace kvlathe {
namespace {

using testing::GreedyBatch;
using testing::NamedShape;
using testing::RandomModelShape;
using testing::RankParts;
using testing::SharedModel;
using testing::ThreadRanks;

constexpr int64_t kPoolBytesOfRank = int64_t{32} << 20;
constexpr int kDecodedTokens = 32;
constexpr double kMostKl = 1e-5;

// Beside the models of the whole tests, such as have heads for four ranks.
std::vector<NamedShape> DividedShapes() {
  std::vector<NamedShape> shapes;
  for (NamedShape& named : testing::ModelShapes()) {
    RandomModelShape& shape = named.shape;
    if (shape.n_kv_heads == 2) {  // of four query heads
      shape.n_heads = 8;
      shape.n_kv_heads = 4;
    }
    if (shape.model_type == "falcon") shape.hidden = shape.n_heads * shape.head_dim;
    shapes.push_back(named);
  }
  RandomModelShape gemma, three, papers;
  gemma.model_type = "gemma3_text";
  gemma.n_layers = 3;
  gemma.n_heads = gemma.n_kv_heads = 4;
  gemma.head_dim = 32;
  gemma.window = 9;
  gemma.whole_every = 2;
  gemma.rope.theta = 1e6;
  gemma.query_scalar = 20;
  gemma.tied = true;
  three.n_heads = 6;
  three.n_kv_heads = 3;
  three.n_layers = 3;
  papers.model_type = "falcon";
  papers.new_architecture = true;
  papers.n_layers = 4;
  papers.hidden = 128;
  papers.n_heads = 8;
  papers.n_kv_heads = 4;
  papers.n_norms = 2;
  papers.tied = true;
  shapes.insert(
      shapes.end(),
      {{"gemma3", gemma}, {"llama_three_heads", three}, {"falcon_of_the_papers", papers}});
  return shapes;
}

std::vector<RankGrid> GridsOf(const ModelConfig& config) {
  std::vector<RankGrid> grids = {{1, 2}};
  const std::optional<QkNormConfig>& norms = config.norms.of_qk;
  // Norms over all heads are not shared out.
  if (norms.has_value() && norms->over == QkNormConfig::Over::kAllHeads) return grids;
  if (config.n_kv_heads >= 2) grids.insert(grids.end(), {{2, 1}, {2, 2}});
  if (config.n_kv_heads >= 4) grids.push_back({4, 1});
  return grids;
}

// Of a whole model, what its ranks are to compute.
class ComputedWhole {
 public:
  explicit ComputedWhole(const SharedModel& model) : model_(model) {
    auto parts = RankParts::Load(model, {}, nullptr);
    EXPECT_TRUE(parts.ok()) << parts.status();
    parts_ = *std::move(parts);
    auto made = parts_->MakeModel("none");
    EXPECT_TRUE(made.ok()) << made.status();
    whole_ = *std::move(made);
    pool_ = std::make_unique<BlockPool>(kPoolBytesOfRank, &parts_->memory());
    batch_ = Decode(whole_.get(), pool_.get());
  }

  void ExpectSameOn(const RankGrid& grid) {
    SCOPED_TRACE(fmt::format("--tp {} --pp {}", grid.n_tensor_ranks, grid.n_stages));
    ThreadRanks ranks(model_, grid);
    {
      const auto model = ranks.MakeModel("none");
      ASSERT_TRUE(model.ok()) << model.status();
      BlockPool pool(kPoolBytesOfRank, &ranks.memory());
      const std::unique_ptr<GreedyBatch> batch = Decode(model->get(), &pool);
      for (size_t i = 0; i < batch->size(); ++i) {
        EXPECT_EQ(batch->tokens(i).size(), kDecodedTokens);
        EXPECT_EQ(batch->tokens(i), batch_->tokens(i)) << "sequence " << i;
        EXPECT_LE(testing::LargestKl(batch_->logits(i), batch->logits(i)), kMostKl)
            << "sequence " << i;
        EXPECT_EQ(ranks.BytesOf(batch->cache(i)).total(), batch_->cache(i).bytes().total());
      }
    }
    EXPECT_EQ(ranks.CountMirrored(), 0);
    for (const Status& status : ranks.End()) EXPECT_TRUE(status.ok()) << status;
  }

 private:
  // A prompt of which all logits are compared, one of which those of its end are, and one that is
  // read at once.
  std::unique_ptr<GreedyBatch> Decode(Model* model, BlockPool* pool) const {
    std::vector<testing::PromptToRead> prompts =
        testing::RandomPrompts({45, 33, 6}, {17, 11, 6}, model_.config.vocab_size);
    prompts[0].logits = SequenceStep::Logits::kAll;
    prompts[1].logits = SequenceStep::Logits::kNone;
    auto batch = std::make_unique<GreedyBatch>(model, pool, prompts, kDecodedTokens);
    while (batch->Step()) {
    }
    return batch;
  }

  SharedModel model_;
  std::unique_ptr<RankParts> parts_;
  std::unique_ptr<Model> whole_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<GreedyBatch> batch_;
};

class RankFamilies : public ::testing::TestWithParam<NamedShape> {};

TEST_P(RankFamilies, ComputeWhatOneMachineDoes) {
  const std::string directory = testing::FreshDirectory(std::string("ranks_") + GetParam().name);
  testing::WriteRandomModel(GetParam().shape, directory, 17);
  const SharedModel model = testing::OfFile(directory);
  ComputedWhole whole(model);
  for (const RankGrid& grid : GridsOf(model.config)) whole.ExpectSameOn(grid);
  if (std::string(GetParam().name) == "falcon_of_the_papers") whole.ExpectSameOn({4, 2});
  std::filesystem::remove_all(directory);
}

INSTANTIATE_TEST_SUITE_P(Shapes, RankFamilies, ::testing::ValuesIn(DividedShapes()),
                         [](const auto& test) { return std::string(test.param.name); });

// Golden models, on as many ranks of both kinds as they have KV heads and layers for.
class RankGoldenModels : public ::testing::TestWithParam<const char*> {};

TEST_P(RankGoldenModels, ComputeWhatOneMachineDoes) {
  const std::string golden = KVLATHE_SOURCE_DIR "/tests/golden/";
  for (const std::string& path : {golden + GetParam(), golden + "gguf/" + GetParam() + ".gguf"}) {
    SCOPED_TRACE(path);
    const SharedModel model = testing::OfFile(path);
    ComputedWhole whole(model);
    whole.ExpectSameOn({model.config.n_kv_heads > 1 ? 2 : 1, model.config.n_layers > 1 ? 2 : 1});
  }
}

INSTANTIATE_TEST_SUITE_P(NormFamilies, RankGoldenModels,
                         ::testing::Values("starcoder2", "gpt_neox", "phi", "nemotron", "seed_oss",
                                           "hunyuan_v1_dense", "ernie4_5", "internlm2", "arcee",
                                           "apertus", "jais2", "olmo", "orion", "exaone", "qwen",
                                           "minicpm"),
                         [](const auto& test) { return std::string(test.param); });

// Rows of GGUF files lie otherwise: permuted, transposed, regrouped.
class RankGgufFiles : public ::testing::TestWithParam<const char*> {};

TEST_P(RankGgufFiles, ComputeWhatOneMachineDoes) {
  const SharedModel model =
      testing::OfFile(std::string(KVLATHE_SOURCE_DIR "/tests/golden/gguf/") + GetParam() + ".gguf");
  ComputedWhole whole(model);
  whole.ExpectSameOn({model.config.n_kv_heads > 1 ? 2 : 1, 2});
}

INSTANTIATE_TEST_SUITE_P(Families, RankGgufFiles,
                         ::testing::Values("llama", "qwen2", "mistral", "phi3", "phi3_longrope",
                                           "gpt2", "falcon_7b", "falcon_40b", "falcon_11b", "qwen3",
                                           "gemma3", "gemma2", "smollm3", "olmo2", "olmo3",
                                           "granite", "glm4", "cohere_qk_norm", "cohere2",
                                           "ministral3", "exaone4", "qwen2_moe", "ernie4_5_moe",
                                           "gpt_oss"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace kvlathe
