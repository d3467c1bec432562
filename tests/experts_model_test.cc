// Models with experts whose weights are stored otherwise than in tests/golden, and damaged ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "io/gguf/ggml_types_quantize.h"
#include "io/safetensors/safetensors.h"
#include "loaded_model.h"
#include "model/planned_model.h"
#include "random_model.h"
#include "runtime/machines/machine_choice.h"

namespace kvlathe {
namespace {

using testing::EngineLogits;
using ::testing::HasSubstr;
using testing::LoadedModel;
using testing::LoadModel;
using testing::MaxDifference;

const std::string kGolden = KVLATHE_SOURCE_DIR "/tests/golden/";

// Tensors of a directory that a test may change.
struct Tensor {
  DType dtype;
  std::vector<int64_t> shape;
  std::vector<std::byte> data;
};
using Tensors = std::map<std::string, Tensor>;

Tensors ReadTensors(const std::string& model) {
  auto reader = SafetensorsReader::OpenModel(kGolden + model);
  EXPECT_TRUE(reader.ok()) << reader.status();
  Tensors tensors;
  for (const auto& [name, view] : reader->tensors()) {
    tensors[name] = {view.dtype, view.shape, {view.data, view.data + view.n_bytes}};
  }
  return tensors;
}

// A directory with these tensors and the config.json of a golden model.
std::string WriteModel(const std::string& model, const Tensors& tensors) {
  std::string directory = testing::FreshDirectory("experts_" + model);
  std::vector<TensorToWrite> written;
  for (const auto& [name, t] : tensors) written.push_back({name, t.dtype, t.shape, t.data.data()});
  const Status status = WriteSafetensors(directory + "/model.safetensors", written, {});
  EXPECT_TRUE(status.ok()) << status;
  std::filesystem::copy(kGolden + model + "/config.json", directory);
  return directory;
}

std::vector<int> RandomIds(int n, int vocab_size) {
  Random random(4);
  std::vector<int> ids(n);
  for (int& id : ids) id = static_cast<int>(random.Below(vocab_size));
  return ids;
}

// Tensors of all experts of a layer one behind the other, as transformers has them in memory: of
// the gates and ups those of an expert together.
void StackExperts(const std::string& layer, int n_experts, Tensors* tensors) {
  const std::string experts = layer + "mlp.experts.";
  Tensor in, down;
  for (int e = 0; e < n_experts; ++e) {
    const std::string expert = experts + std::to_string(e) + ".";
    for (const auto& [to, name] :
         {std::pair{&in, "gate_proj"}, {&in, "up_proj"}, {&down, "down_proj"}}) {
      const Tensor& part = tensors->at(expert + name + ".weight");
      to->dtype = part.dtype;
      const int64_t n_rows = part.shape[0] * (to == &in ? 2 : 1);
      to->shape = {n_experts, n_rows, part.shape[1]};
      to->data.insert(to->data.end(), part.data.begin(), part.data.end());
      tensors->erase(expert + name + ".weight");
    }
  }
  (*tensors)[experts + "gate_up_proj"] = std::move(in);
  (*tensors)[experts + "down_proj"] = std::move(down);
}

TEST(ExpertsModelTest, ExpertsInOneTensorAreThoseInManyOnes) {
  Tensors tensors = ReadTensors("qwen3_moe");
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    StackExperts(layer, 8, &tensors);
  }
  const std::string directory = WriteModel("qwen3_moe", tensors);
  LoadedModel apart = LoadModel(kGolden + "qwen3_moe", DType::kF32, AvailableIsas().back());
  LoadedModel stacked = LoadModel(directory, DType::kF32, AvailableIsas().back());
  const std::vector<int> ids = RandomIds(40, 84);
  EXPECT_EQ(EngineLogits(&apart, ids, {40}), EngineLogits(&stacked, ids, {40}));
  std::filesystem::remove_all(directory);
}

// --- What is damaged. ---

std::string LoadError(const std::string& model, const Tensors& tensors) {
  const std::string directory = WriteModel(model, tensors);
  const auto config = LoadModelConfig(directory);
  EXPECT_TRUE(config.ok()) << config.status();
  ThreadPool pool(2);
  auto reader = SafetensorsReader::OpenModel(directory);
  EXPECT_TRUE(reader.ok()) << reader.status();
  const auto weights = ModelWeights::Load(*config, DType::kF32, MakeFileSource(*std::move(reader)),
                                          MakeMachine(&pool, Isa::kScalar));
  EXPECT_FALSE(weights.ok());
  std::filesystem::remove_all(directory);
  return std::string(MessageOf(weights.status()));
}

TEST(ExpertsModelTest, TensorsOfWrongSizesAreNamed) {
  const auto error_of = [](const std::string& model, const std::string& name,
                           std::vector<int64_t> shape) {
    Tensors tensors = ReadTensors(model);
    EXPECT_TRUE(tensors.contains(name)) << name;
    Tensor& t = tensors[name];
    int64_t n = 2;
    for (const int64_t dim : shape) n *= dim;
    t.shape = std::move(shape);
    t.data.resize(n);
    return LoadError(model, tensors);
  };
  const std::string layer = "model.layers.1.";
  EXPECT_THAT(error_of("qwen3_moe", layer + "mlp.gate.weight", {7, 32}),
              HasSubstr("'model.layers.1.mlp.gate.weight' has shape [7, 32], expected [8, 32]"));
  EXPECT_THAT(error_of("qwen3_moe", layer + "mlp.experts.5.up_proj.weight", {16, 33}),
              HasSubstr("experts.5.up_proj.weight' has shape [16, 33], expected [16, 32]"));
  EXPECT_THAT(error_of("glm4_moe", layer + "mlp.gate.e_score_correction_bias", {9}),
              HasSubstr("e_score_correction_bias' has shape [9], expected [8]"));
  EXPECT_THAT(error_of("qwen2_moe", layer + "mlp.shared_expert_gate.weight", {2, 32}),
              HasSubstr("shared_expert_gate.weight' has shape [2, 32], expected [32]"));
  EXPECT_THAT(error_of("gpt_oss", layer + "mlp.experts.gate_up_proj", {7, 32, 32}),
              HasSubstr("gate_up_proj' has shape [7, 32, 32], expected [8, 32, 32]"));
  EXPECT_THAT(error_of("gpt_oss", layer + "mlp.experts.down_proj_bias", {8, 31}),
              HasSubstr("down_proj_bias' has shape [8, 31], expected [8, 32]"));
}

TEST(ExpertsModelTest, NumbersThatAreNoneAndMissingTensorsAreNamed) {
  const Bf16 nan = ToBf16(std::numeric_limits<float>::quiet_NaN());
  for (const std::string name :
       {"model.layers.0.mlp.gate.weight", "model.layers.1.mlp.experts.7.down_proj.weight"}) {
    Tensors tensors = ReadTensors("qwen3_moe");
    std::memcpy(tensors.at(name).data.data() + 64, &nan, sizeof(nan));
    EXPECT_THAT(LoadError("qwen3_moe", tensors),
                HasSubstr("tensor '" + name + "' holds values that are not finite"));
    tensors.erase(name);
    EXPECT_THAT(LoadError("qwen3_moe", tensors), HasSubstr("no tensor '" + name + "'"));
  }
}

// --- Blocks. ---

// Random weights; those of experts are larger, and in blocks.
class BlockSource : public TensorSource {
 public:
  explicit BlockSource(GgmlType type) : type_(type), source_(MakeRandomSource(8)) {}

  bool Has(const std::string&) const override { return true; }
  std::optional<GgmlType> BlocksOf(const std::string& name) const override {
    const bool is_expert = name.find("experts.") != std::string::npos;
    return is_expert ? std::optional(type_) : std::nullopt;
  }
  StatusOr<StoredTensor> Get(const std::string& name, const std::vector<int64_t>& shape) override {
    KVL_ASSIGN_OR_RETURN(StoredTensor tensor, source_->Get(name, shape));
    if (!BlocksOf(name).has_value()) return tensor;
    std::vector<float> numbers(tensor.n_elements());
    tensor.Read(0, std::ssize(numbers), numbers.data());
    source_->Done(tensor);
    for (float& x : numbers) x *= 4;
    const GgmlLayout& layout = LayoutOf(type_);
    std::vector<std::byte>& blocks = blocks_[name];
    blocks.resize(std::ssize(numbers) / layout.block_values * layout.block_bytes);
    QuantizeBlocks(type_, numbers.data(), std::ssize(numbers), blocks.data());
    return StoredTensor{DType::kF32, type_, shape, blocks.data(), std::ssize(blocks)};
  }
  void Done(const StoredTensor& tensor) override {
    if (!tensor.blocks.has_value()) source_->Done(tensor);
  }
  bool is_mapped() const override { return false; }

 private:
  GgmlType type_;
  std::unique_ptr<TensorSource> source_;
  std::map<std::string, std::vector<std::byte>> blocks_;
};

ModelConfig BlockConfig() {
  ModelConfig c;
  c.model_type = "qwen3_moe";
  c.n_layers = 2;
  c.hidden_dim = 256;
  c.n_heads = 4;
  c.n_kv_heads = 2;
  c.head_dim = 32;
  c.ffn_dim = 96;
  c.vocab_size = 97;
  c.max_seq_len = 512;
  c.experts = ExpertsConfig{.n_experts = 6, .n_used = 2, .ffn_dim = 256, .normalises = true};
  c.experts->of_layer = {false, true};
  return c;
}

LoadedModel LoadBlocks(GgmlType type, const NumberTypes& types, Isa isa) {
  LoadedModel loaded;
  loaded.pool = std::make_unique<ThreadPool>(2);
  loaded.machine = MakeMachine(loaded.pool.get(), isa);
  loaded.blocks = std::make_unique<BlockPool>(int64_t{64} << 20, &loaded.machine->memory());
  auto weights =
      ModelWeights::Load(BlockConfig(), types, std::make_unique<BlockSource>(type), loaded.machine);
  EXPECT_TRUE(weights.ok()) << weights.status();
  loaded.weights = *std::move(weights);
  auto model = CreateModel(loaded.weights, PartsOf(static_cast<const ModelBasis*>(nullptr), 0));
  EXPECT_TRUE(model.ok()) << model.status();
  loaded.model = *std::move(model);
  return loaded;
}

class ExpertBlocks : public ::testing::TestWithParam<std::pair<GgmlType, WeightType>> {};

// Blocks that stay blocks give what the numbers give that they stand for: with rows in F32 to
// rounding, with rows that become integers about as well as these are.
TEST_P(ExpertBlocks, ComputeWhatTheirNumbersDo) {
  const auto [stored, kept] = GetParam();
  const std::vector<int> ids = RandomIds(48, 97);
  LoadedModel whole = LoadBlocks(stored, DType::kF32, AvailableIsas().back());
  const testing::Matrix wanted = EngineLogits(&whole, ids, {48});
  for (const Isa isa : AvailableIsas()) {
    NumberTypes types = DType::kF32;
    types.keeps_blocks = true;
    LoadedModel blocks = LoadBlocks(stored, types, isa);
    EXPECT_EQ(blocks.weights->layer(1).experts.in[5].type(), kept);
    EXPECT_TRUE(blocks.weights->remade().empty());
    for (const std::vector<int>& chunks : std::vector<std::vector<int>>{{48}, {1}, {30, 1, 17}}) {
      EXPECT_LT(MaxDifference(EngineLogits(&blocks, ids, chunks), wanted), 1e-4) << IsaName(isa);
    }
    NumberTypes short_types = DType::kBf16;
    short_types.keeps_blocks = true;
    LoadedModel with_integers = LoadBlocks(stored, short_types, isa);
    const testing::Matrix rounded = EngineLogits(&with_integers, ids, {48});
    // Of a few tokens another expert may be chosen, which the mean does not see.
    double sum = 0, n = 0;
    for (size_t t = 0; t < rounded.size(); ++t) {
      for (size_t i = 0; i < rounded[t].size(); ++i, ++n) {
        sum += std::abs(rounded[t][i] - wanted[t][i]);
      }
    }
    EXPECT_LT(sum / n, 0.02) << IsaName(isa);
    EXPECT_GT(sum / n, 0) << IsaName(isa);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ExpertBlocks,
                         ::testing::Values(std::pair{GgmlType::kQ8_0, WeightType::kQ8_0},
                                           std::pair{GgmlType::kQ4_K, WeightType::kQ4_K},
                                           std::pair{GgmlType::kMxfp4, WeightType::kMxfp4}),
                         [](const auto& test) {
                           return std::string(WeightTypeName(test.param.second));
                         });

// A step of one token reads the matrices of as many experts as it goes to.
TEST(ExpertsModelTest, TheBytesOfAStepAreThoseOfTheChosenExperts) {
  NumberTypes types = DType::kBf16;
  types.keeps_blocks = true;
  LoadedModel loaded = LoadBlocks(GgmlType::kQ8_0, types, AvailableIsas().back());
  const ModelWeights& w = *loaded.weights;
  const ExpertWeights& experts = w.layer(1).experts;
  const int64_t of_expert = experts.in[0].n_bytes() + experts.down[0].n_bytes();
  EXPECT_EQ(of_expert, 3 * 256 * 256 / 32 * 34);
  int64_t n_bytes = w.lm_head().n_bytes() + w.layer(0).mlp_in.n_bytes() + w.layer(0).down.n_bytes();
  for (int l = 0; l < 2; ++l) {
    const auto values = loaded.weights->FoldValues(l, nullptr, loaded.pool.get());
    ASSERT_TRUE(values.ok());
    n_bytes += w.layer(l).qk.n_bytes() + (*values)->v.n_bytes() + (*values)->o.n_bytes();
  }
  EXPECT_EQ(loaded.model->weight_bytes(), n_bytes + experts.router.n_bytes() + 2 * of_expert);
}

}  // namespace
}  // namespace kvlathe
