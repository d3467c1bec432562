#include "model/families/gguf/gguf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/gguf/gguf_test_writer.h"
#include "io/scratch_folder.h"

namespace kvlathe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class GgufConfigTest : public ::testing::Test {
 protected:
  // The metadata of a small Llama, without what `left_out` names.
  GgufTestWriter Llama(const std::string& left_out = "") {
    GgufTestWriter writer;
    writer.AddText("general.architecture", "llama");
    const auto add = [&](const std::string& key, int64_t value) {
      if (key != left_out) writer.AddInteger("llama." + key, value);
    };
    add("block_count", 2);
    add("embedding_length", 64);
    add("attention.head_count", 4);
    add("attention.head_count_kv", 2);
    add("feed_forward_length", 96);
    add("context_length", 512);
    return writer;
  }
  StatusOr<ModelConfig> Read(GgufTestWriter writer, bool has_head = true) {
    const std::vector<float> rows(80 * 64, 0.5f);
    writer.AddF32("token_embd.weight", {80, 64}, rows);
    if (has_head) writer.AddF32("output.weight", {80, 64}, rows);
    const std::string path = folder_ / "model.gguf";
    writer.Write(path);
    KVL_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(path));
    return ReadGgufConfig(file);
  }
  std::string Refusal(GgufTestWriter writer, StatusCode code) {
    const auto config = Read(std::move(writer));
    EXPECT_EQ(config.status().code(), code) << config.status();
    return MessageOf(config.status());
  }

  ScratchFolder folder_;
};

TEST_F(GgufConfigTest, MetadataBecomeTheConfiguration) {
  GgufTestWriter writer = Llama();
  writer.AddFloat("llama.rope.freq_base", 100000);
  writer.AddFloat("llama.attention.layer_norm_rms_epsilon", 1e-5);
  writer.AddInteger("tokenizer.ggml.bos_token_id", 1);
  writer.AddInteger("tokenizer.ggml.eos_token_id", 2);
  writer.AddInteger("tokenizer.ggml.eot_token_id", 7);
  const auto c = Read(std::move(writer));
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->n_layers, 2);
  EXPECT_EQ(c->hidden_dim, 64);
  EXPECT_EQ(c->n_heads, 4);
  EXPECT_EQ(c->n_kv_heads, 2);
  EXPECT_EQ(c->head_dim, 16);
  EXPECT_EQ(c->ffn_dim, 96);
  EXPECT_EQ(c->max_seq_len, 512);
  EXPECT_EQ(c->vocab_size, 80);
  EXPECT_EQ(c->attention.of(0).rope.theta, 100000);
  EXPECT_FLOAT_EQ(c->norms.eps, 1e-5f);
  EXPECT_EQ(c->layout, WeightLayout::kGguf);
  EXPECT_TRUE(c->has_neighbour_pairs);
  EXPECT_FALSE(c->tie_word_embeddings);
  EXPECT_FALSE(c->biases.qkv);
  EXPECT_EQ(c->bos_id, 1);
  EXPECT_THAT(c->eos_ids, ElementsAre(2, 7));
}

TEST_F(GgufConfigTest, WithoutAnOutputTensorTheEmbeddingIsTheHead) {
  EXPECT_TRUE(Read(Llama(), /*has_head=*/false)->tie_word_embeddings);
}

TEST_F(GgufConfigTest, AnotherArchitectureIsRefusedByItsName) {
  GgufTestWriter writer;
  writer.AddText("general.architecture", "mamba");
  EXPECT_THAT(Refusal(std::move(writer), StatusCode::kUnimplemented),
              HasSubstr("architecture 'mamba' is not supported; supported: llama"));
}

TEST_F(GgufConfigTest, AMissingKeyIsNamed) {
  EXPECT_THAT(Refusal(Llama("block_count"), StatusCode::kDataLoss),
              HasSubstr("the key 'llama.block_count' is missing"));
}

TEST_F(GgufConfigTest, NumbersThatCannotBeAreRefused) {
  GgufTestWriter writer = Llama("attention.head_count_kv");
  writer.AddInteger("llama.attention.head_count_kv", 3);
  EXPECT_THAT(Refusal(std::move(writer), StatusCode::kDataLoss),
              HasSubstr("4 attention heads cannot share 3 key/value heads"));
  GgufTestWriter zero = Llama("attention.head_count");
  zero.AddInteger("llama.attention.head_count", 0);
  EXPECT_THAT(Refusal(std::move(zero), StatusCode::kDataLoss),
              HasSubstr("'num_attention_heads' is 0"));
}

TEST_F(GgufConfigTest, LayersThatDifferAreRefused) {
  GgufTestWriter per_layer = Llama("feed_forward_length");
  per_layer.AddIntegers("llama.feed_forward_length", {96, 128});
  EXPECT_THAT(Refusal(std::move(per_layer), StatusCode::kUnimplemented),
              HasSubstr("differs from layer to layer"));
}

TEST_F(GgufConfigTest, CountsOfExpertsAreBounded) {
  const auto refusal = [&](int64_t n_experts, int64_t n_used) {
    GgufTestWriter writer = Llama();
    writer.AddInteger("llama.expert_count", n_experts);
    writer.AddInteger("llama.expert_used_count", n_used);
    return Refusal(std::move(writer), StatusCode::kDataLoss);
  };
  EXPECT_THAT(refusal(65536, 2), HasSubstr("'num_local_experts' is 65536; expected an integer from "
                                           "1 to 1024"));
  EXPECT_THAT(refusal(8, 0), HasSubstr("'num_experts_per_tok' is 0; expected an integer from 1 to "
                                       "8"));
  EXPECT_THAT(refusal(8, 9), HasSubstr("'num_experts_per_tok' is 9"));
  GgufTestWriter unsaid = Llama();
  unsaid.AddInteger("llama.expert_count", 8);
  EXPECT_THAT(Refusal(std::move(unsaid), StatusCode::kDataLoss),
              HasSubstr("'llama.expert_used_count' is missing"));
}

TEST_F(GgufConfigTest, AScalingOfRopeThatIsNotRunIsRefusedByItsName) {
  GgufTestWriter writer = Llama();
  writer.AddText("llama.rope.scaling.type", "xpos");
  writer.AddFloat("llama.rope.scaling.factor", 4);
  EXPECT_THAT(Refusal(std::move(writer), StatusCode::kUnimplemented), HasSubstr("'xpos'"));
}

TEST_F(GgufConfigTest, AFactorAloneIsLinear) {
  GgufTestWriter writer = Llama();
  writer.AddFloat("llama.rope.scale_linear", 4);
  const auto c = Read(std::move(writer));
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->attention.of(0).rope.scaling, RopeConfig::Scaling::kLinear);
  EXPECT_EQ(c->attention.of(0).rope.factor, 4);
}

TEST_F(GgufConfigTest, ATypeThatIsNotReadIsRefusedWithItsTensor) {
  GgufTestWriter writer = Llama();
  writer.AddEntry("blk.0.attn_v.weight", /*type=*/16, {256}, /*offset=*/0);
  writer.AddData(std::string(96, '\0'));
  EXPECT_THAT(Refusal(std::move(writer), StatusCode::kUnimplemented),
              ::testing::AllOf(HasSubstr("blk.0.attn_v.weight"), HasSubstr("IQ2_XXS")));
}

TEST_F(GgufConfigTest, BiasesAreFoundByTheirTensors) {
  GgufTestWriter writer = Llama();
  writer.AddF32("blk.0.attn_q.bias", {64}, std::vector<float>(64));
  const auto c = Read(std::move(writer));
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_TRUE(c->biases.qkv);
  EXPECT_FALSE(c->biases.o);
}

}  // namespace
}  // namespace kvlathe
