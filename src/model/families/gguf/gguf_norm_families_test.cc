// Families with LayerNorm, and those that differ from Llama by norms and biases, from GGUF.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "io/gguf/gguf_test_writer.h"
#include "io/scratch_folder.h"
#include "model/families/gguf/gguf_config.h"
#include "model/families/xielu.h"

namespace kvlathe {
namespace {

using ::testing::HasSubstr;

class GgufNormFamiliesTest : public ::testing::Test {
 protected:
  using Change = std::function<void(GgufTestWriter*)>;

  // A small model of four heads, whose file has no more keys than it must have.
  StatusOr<ModelConfig> Read(const std::string& architecture, const Change& change = nullptr) {
    GgufTestWriter writer;
    writer.AddText("general.architecture", architecture);
    const auto add = [&](const std::string& key, int64_t value) {
      writer.AddInteger(architecture + "." + key, value);
    };
    add("block_count", 2);
    add("embedding_length", 256);
    add("attention.head_count", 4);
    add("feed_forward_length", 96);
    add("context_length", 512);
    if (change) change(&writer);
    const std::vector<float> rows(int64_t{80} * 256, 0.5f);
    writer.AddF32("token_embd.weight", {80, 256}, rows);
    writer.AddF32("output.weight", {80, 256}, rows);
    const std::string path = folder_ / "model.gguf";
    writer.Write(path);
    KVL_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(path));
    return ReadGgufConfig(file);
  }
  static void AddVector(GgufTestWriter* writer, const std::string& name, int64_t n) {
    writer->AddF32(name, {n}, std::vector<float>(n));
  }
  static void AddXielu(GgufTestWriter* writer) {
    writer->AddFloats("xielu.alpha_p", {0.5, 1});
    writer->AddFloats("xielu.alpha_n", {0.25, 2});
    writer->AddFloats("xielu.beta", {0.5, 0.5});
    writer->AddFloat("xielu.eps", -1e-6);  // one for all layers
  }

  ScratchFolder folder_;
};

// llama.cpp's defaults hold in a file, not those of transformers: heads share the width out, every
// head has keys and values of its own, theta is 10000, all channels rotate.
TEST_F(GgufNormFamiliesTest, WithoutKeysLlamaCppsDefaultsHold) {
  for (const char* architecture :
       {"starcoder2", "stablelm", "gptneox", "phi2", "nemotron", "seed_oss", "hunyuan-dense",
        "ernie4_5", "internlm2", "arcee", "apertus", "jais2", "olmo", "orion", "exaone", "xverse",
        "qwen", "minicpm"}) {
    const auto c = Read(architecture, std::string(architecture) == "apertus" ? AddXielu : Change());
    ASSERT_TRUE(c.ok()) << c.status();
    EXPECT_EQ(c->n_kv_heads, 4) << architecture;
    EXPECT_EQ(c->head_dim, 64) << architecture;
    EXPECT_EQ(c->rope_dim(), 64) << architecture;
    EXPECT_EQ(c->max_seq_len, 512) << architecture;
    EXPECT_EQ(c->attention.of(0).rope.theta, 10000) << architecture;
    EXPECT_EQ(c->attention.of(0).rope.scaling, RopeConfig::Scaling::kNone) << architecture;
    EXPECT_FALSE(c->tie_word_embeddings) << architecture;
    // Biases are where their tensors are.
    EXPECT_FALSE(c->biases.qkv || c->biases.o || c->biases.mlp || c->biases.head) << architecture;
    EXPECT_EQ(c->layout, WeightLayout::kGguf);
  }
}

TEST_F(GgufNormFamiliesTest, RowsOfSomeAreStoredAsNeighbours) {
  for (const char* architecture : {"ernie4_5", "internlm2", "arcee", "olmo", "xverse", "minicpm"}) {
    EXPECT_TRUE(Read(architecture)->has_neighbour_pairs) << architecture;
  }
  for (const char* architecture :
       {"starcoder2", "stablelm", "gptneox", "phi2", "nemotron", "seed_oss", "hunyuan-dense",
        "jais2", "orion", "exaone", "qwen"}) {
    EXPECT_FALSE(Read(architecture)->has_neighbour_pairs) << architecture;
  }
}

TEST_F(GgufNormFamiliesTest, APartOfAHeadRotatesWhereLlamaCppRunsItAlone) {
  for (const char* architecture :
       {"starcoder2", "seed_oss", "hunyuan-dense", "ernie4_5", "internlm2", "arcee", "apertus",
        "jais2", "olmo", "orion", "exaone", "xverse", "qwen", "minicpm"}) {
    const std::string key = std::string(architecture) + ".rope.dimension_count";
    const Status status =
        Read(architecture, [&](GgufTestWriter* writer) { writer->AddInteger(key, 32); }).status();
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented) << architecture;
    EXPECT_THAT(MessageOf(status), HasSubstr("'" + key + "' is 32")) << architecture;
  }
}

TEST_F(GgufNormFamiliesTest, MultipliersOfMiniCpmAreThoseOf2BWhereTheFileHasNone) {
  auto c = Read("minicpm");
  ASSERT_TRUE(c.ok()) << c.status();
  const double residual = 1.4 / std::sqrt(2.0);
  EXPECT_FLOAT_EQ(c->embedding_scale, static_cast<float>(12 / residual));
  EXPECT_FLOAT_EQ(c->logit_scale, 1);  // 256 channels
  EXPECT_FLOAT_EQ(c->score_scale, 0.125f);
  c = Read("minicpm", [](GgufTestWriter* writer) {
    writer->AddFloat("minicpm.embedding_scale", 6);
    writer->AddFloat("minicpm.residual_scale", 0.5);
    writer->AddFloat("minicpm.logit_scale", 4);
  });
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_FLOAT_EQ(c->embedding_scale, 12);
  EXPECT_FLOAT_EQ(c->logit_scale, 0.25f);
}

TEST_F(GgufNormFamiliesTest, ClippedQueriesOfOlmoAreRefused) {
  const Status status = Read("olmo", [](GgufTestWriter* writer) {
                          writer->AddFloat("olmo.attention.clamp_kqv", 8);
                        }).status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(MessageOf(status), HasSubstr("'clip_qkv' is 8"));
}

TEST_F(GgufNormFamiliesTest, AWindowOfStarCoder2IsReadWhereAFileHasIt) {
  EXPECT_EQ(Read("starcoder2")->attention.of(0).window, 0);
  const auto c = Read("starcoder2", [](GgufTestWriter* writer) {
    writer->AddInteger("starcoder2.attention.sliding_window", 100);
  });
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->attention.of(1).window, 100);
}

TEST_F(GgufNormFamiliesTest, KeysOfLayerNormAndOfTheShareThatRotates) {
  for (const char* architecture : {"stablelm", "gptneox", "phi2", "nemotron"}) {
    const auto c = Read(architecture, [&](GgufTestWriter* writer) {
      const std::string prefix = architecture;
      writer->AddFloat(prefix + ".attention.layer_norm_epsilon", 3e-5);
      writer->AddInteger(prefix + ".rope.dimension_count", 16);
      writer->AddFloat(prefix + ".rope.freq_base", 5000);
      AddVector(writer, "blk.0.attn_qkv.bias", 64);
      AddVector(writer, "output.bias", 80);
    });
    ASSERT_TRUE(c.ok()) << c.status();
    EXPECT_EQ(c->norms.kind, NormKind::kLayer) << architecture;
    EXPECT_FLOAT_EQ(c->norms.eps, 3e-5f) << architecture;
    EXPECT_EQ(c->rope_dim(), 16) << architecture;
    EXPECT_EQ(c->attention.of(0).rope.theta, 5000) << architecture;
    EXPECT_TRUE(c->biases.qkv && c->biases.head) << architecture;
  }
}

TEST_F(GgufNormFamiliesTest, BlocksAreParallelWhereTheFileSaysSo) {
  EXPECT_TRUE(Read("gptneox")->parallel_block);
  EXPECT_FALSE(Read("gptneox")->shared_norm);
  EXPECT_FALSE(Read("gptneox", [](GgufTestWriter* writer) {
                 writer->AddBool("gptneox.use_parallel_residual", false);
               })->parallel_block);
  // StableLM's are so where there is no second norm.
  const auto parallel = Read("stablelm", [](GgufTestWriter* writer) {
    writer->AddF32("blk.0.attn_q_norm.weight", {4, 64}, std::vector<float>(256));
  });
  ASSERT_TRUE(parallel.ok()) << parallel.status();
  EXPECT_TRUE(parallel->parallel_block && parallel->shared_norm);
  EXPECT_EQ(parallel->norms.of_qk->over, QkNormConfig::Over::kHeadOwn);
  const auto sequential = Read(
      "stablelm", [](GgufTestWriter* writer) { AddVector(writer, "blk.0.ffn_norm.weight", 256); });
  ASSERT_TRUE(sequential.ok()) << sequential.status();
  EXPECT_FALSE(sequential->parallel_block || sequential->norms.of_qk.has_value());
}

TEST_F(GgufNormFamiliesTest, PhiNeedsAHeadOfItsOwn) {
  GgufTestWriter writer;
  writer.AddText("general.architecture", "phi2");
  for (const auto& [key, value] :
       {std::pair{"block_count", 2}, std::pair{"embedding_length", 64},
        std::pair{"attention.head_count", 2}, std::pair{"feed_forward_length", 96},
        std::pair{"context_length", 512}}) {
    writer.AddInteger(std::string("phi2.") + key, value);
  }
  writer.AddF32("token_embd.weight", {80, 64}, std::vector<float>(80 * 64));
  const std::string path = folder_ / "tied.gguf";
  writer.Write(path);
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const Status status = ReadGgufConfig(*file).status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(MessageOf(status), HasSubstr("tie_word_embeddings"));
}

TEST_F(GgufNormFamiliesTest, NumbersOfXieluComeFromTheKeys) {
  const auto c = Read("apertus", AddXielu);
  ASSERT_TRUE(c.ok()) << c.status();
  ASSERT_EQ(c->xielu.size(), 2u);
  const XieluNumbers second = XieluOf(1, 2, 0.5, -1e-6);
  EXPECT_EQ(c->xielu[1].positive, second.positive);
  EXPECT_EQ(c->xielu[1].negative, second.negative);
  EXPECT_FLOAT_EQ(c->xielu[1].eps, -1e-6f);
  EXPECT_EQ(c->xielu[0].positive, XieluOf(0.5, 0, 0, 0).positive);
  EXPECT_THAT(MessageOf(Read("apertus").status()), HasSubstr("the key 'xielu.alpha_p' is missing"));
  const Status short_list = Read("apertus", [](GgufTestWriter* writer) {
                              writer->AddFloats("xielu.alpha_p", {0.5});
                              writer->AddFloats("xielu.alpha_n", {0.5, 1});
                              writer->AddFloats("xielu.beta", {0.5, 1});
                              writer->AddFloats("xielu.eps", {0.5, 1});
                            }).status();
  EXPECT_EQ(short_list.code(), StatusCode::kDataLoss);
  EXPECT_THAT(MessageOf(short_list), HasSubstr("'alpha_p' is not a list of 2 numbers"));
  const Status text = Read("apertus", [](GgufTestWriter* writer) {
                        writer->AddText("xielu.alpha_p", "large");
                      }).status();
  EXPECT_EQ(text.code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace kvlathe
