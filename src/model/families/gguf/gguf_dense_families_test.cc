#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "io/gguf/gguf_test_writer.h"
#include "io/scratch_folder.h"
#include "model/families/gguf/gguf_config.h"

namespace kvlathe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class GgufFamiliesTest : public ::testing::Test {
 protected:
  using Keys = std::function<void(GgufTestWriter*)>;

  // A file of four layers with what `add` adds to the keys that every file has.
  StatusOr<ModelConfig> Read(const std::string& architecture, const Keys& add, int n_layers = 4) {
    GgufTestWriter writer;
    writer.AddText("general.architecture", architecture);
    const auto put = [&](const std::string& key, int64_t value) {
      writer.AddInteger(architecture + "." + key, value);
    };
    put("block_count", n_layers);
    put("embedding_length", 64);
    put("attention.head_count", 4);
    put("attention.head_count_kv", 2);
    put("feed_forward_length", 96);
    put("context_length", 8192);
    add(&writer);
    writer.AddF32("token_embd.weight", {80, 64}, std::vector<float>(80 * 64, 0.5f));
    const std::string path = folder_ / "model.gguf";
    writer.Write(path);
    KVL_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(path));
    return ReadGgufConfig(file);
  }
  StatusOr<ModelConfig> Read(const std::string& architecture, int n_layers = 4) {
    return Read(
        architecture, [](GgufTestWriter*) {}, n_layers);
  }
  std::string Refusal(const std::string& architecture, const Keys& add, StatusCode code) {
    const auto config = Read(architecture, add);
    EXPECT_EQ(config.status().code(), code) << config.status();
    return MessageOf(config.status());
  }
  static std::vector<bool> Turning(const ModelConfig& c) {
    std::vector<bool> turns;
    for (int l = 0; l < c.n_layers; ++l) {
      turns.push_back(c.attention.of(l).rope.scaling != RopeConfig::Scaling::kStill);
    }
    return turns;
  }

  ScratchFolder folder_;
};

TEST_F(GgufFamiliesTest, YarnHasItsAmplitudeFromTheKeys) {
  const auto rope_of = [&](const Keys& more) {
    const auto c = Read("llama", [&](GgufTestWriter* w) {
      w->AddText("llama.rope.scaling.type", "yarn");
      w->AddFloat("llama.rope.scaling.factor", 4);
      w->AddInteger("llama.rope.scaling.original_context_length", 2048);
      more(w);
    });
    EXPECT_TRUE(c.ok()) << c.status();
    return c.ok() ? c->attention.of(0).rope : RopeConfig();
  };
  const RopeConfig plain = rope_of([](GgufTestWriter*) {});
  EXPECT_EQ(plain.scaling, RopeConfig::Scaling::kYarn);
  EXPECT_EQ(plain.factor, 4);
  EXPECT_EQ(plain.original_max_position, 2048);
  EXPECT_EQ(plain.beta_fast, 32);
  EXPECT_EQ(plain.beta_slow, 1);
  EXPECT_NEAR(plain.amplitude, 1 + 0.1 * std::log(4.0), 1e-6);
  EXPECT_NEAR(rope_of([](GgufTestWriter* w) {
                w->AddFloat("llama.rope.scaling.yarn_log_multiplier", 1);
                w->AddFloat("llama.rope.scaling.yarn_ext_factor", -1);
              }).amplitude,
              1, 1e-6);
  const RopeConfig said = rope_of([](GgufTestWriter* w) {
    w->AddFloat("llama.rope.scaling.yarn_attn_factor", 1.5);
    w->AddFloat("llama.rope.scaling.attn_factor", 0.5);
    w->AddFloat("llama.rope.scaling.yarn_beta_fast", 8);
    w->AddFloat("llama.rope.scaling.yarn_beta_slow", 2);
  });
  EXPECT_NEAR(said.amplitude, 0.75, 1e-6);
  EXPECT_EQ(said.beta_fast, 8);
  EXPECT_EQ(said.beta_slow, 2);
  EXPECT_THAT(Refusal(
                  "llama",
                  [](GgufTestWriter* w) {
                    w->AddText("llama.rope.scaling.type", "yarn");
                    w->AddFloat("llama.rope.scaling.factor", 4);
                    w->AddFloat("llama.rope.scaling.yarn_ext_factor", 0.5);
                  },
                  StatusCode::kUnimplemented),
              HasSubstr("yarn_ext_factor"));
}

TEST_F(GgufFamiliesTest, Gemma2HasItsCapsAndWindowsWhereTheFileSaysNothing) {
  auto c = Read("gemma2");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->score_cap, 50);
  EXPECT_EQ(c->logit_cap, 30);
  EXPECT_THAT(c->attention.Windows(4), ElementsAre(4096, 0, 4096, 0));
  EXPECT_FLOAT_EQ(c->score_scale, 1 / std::sqrt(16.0f));
  EXPECT_TRUE(c->tie_word_embeddings);
  c = Read(
      "gemma2",
      [](GgufTestWriter* w) {
        w->AddInteger("gemma2.attention.key_length", 32);
        w->AddInteger("gemma2.attention.sliding_window", 64);
        w->AddFloat("gemma2.attn_logit_softcapping", 0);
      },
      46);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_FLOAT_EQ(c->score_scale, 1 / std::sqrt(16.0f));  // 27B shares its width out
  EXPECT_EQ(c->score_cap, 0);
  EXPECT_EQ(c->attention.of(0).window, 64);
  EXPECT_FLOAT_EQ(Read("gemma")->embedding_scale, 8);
}

TEST_F(GgufFamiliesTest, Olmo2WithAWindowIsOlmo3) {
  EXPECT_EQ(Read("olmo2")->model_type, "olmo2");
  const Keys yarn = [](GgufTestWriter* w) {
    w->AddInteger("olmo2.attention.sliding_window", 64);
    w->AddIntegers("olmo2.attention.sliding_window_pattern", {0, 1, 1, 1});
    w->AddText("olmo2.rope.scaling.type", "yarn");
    w->AddFloat("olmo2.rope.scaling.factor", 8);
  };
  const auto c = Read("olmo2", yarn);
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->model_type, "olmo3");
  EXPECT_THAT(c->attention.Windows(4), ElementsAre(0, 64, 64, 64));
  EXPECT_EQ(c->attention.of(0).rope.scaling, RopeConfig::Scaling::kYarn);
  EXPECT_EQ(c->attention.of(1).rope.scaling, RopeConfig::Scaling::kNone);
  EXPECT_EQ(c->attention.of(1).rope.theta, 1e4);
  EXPECT_THAT(Refusal(
                  "olmo2",
                  [](GgufTestWriter* w) {
                    w->AddInteger("olmo2.attention.sliding_window", 64);
                    w->AddIntegers("olmo2.attention.sliding_window_pattern", {0, 1});
                  },
                  StatusCode::kDataLoss),
              HasSubstr("layer_types"));
}

TEST_F(GgufFamiliesTest, LayersWithoutPositionsFollowTheRuleOfTheArchitecture) {
  EXPECT_THAT(Turning(*Read("smollm3")), ElementsAre(true, true, true, false));
  const auto cohere2 = Read("cohere2", [](GgufTestWriter* w) {
    w->AddInteger("cohere2.attention.sliding_window", 64);
    w->AddFloat("cohere2.logit_scale", 0.25);
    w->AddFloat("cohere2.attention.layer_norm_epsilon", 0.25);
  });
  ASSERT_TRUE(cohere2.ok()) << cohere2.status();
  EXPECT_THAT(Turning(*cohere2), ElementsAre(true, true, true, false));
  EXPECT_THAT(cohere2->attention.Windows(4), ElementsAre(64, 64, 64, 0));
  EXPECT_EQ(cohere2->norms.eps, 0.25f);
  EXPECT_EQ(cohere2->logit_scale, 0.25f);
  EXPECT_EQ(Read("command-r")->logit_scale, 1);
  EXPECT_FALSE(Read("command-r")->norms.of_qk.has_value());
}

TEST_F(GgufFamiliesTest, Exaone4HasWindowsWhereTheFileSaysSoOrIsOf32B) {
  EXPECT_THAT(Read("exaone4")->attention.Windows(4), IsEmpty());
  EXPECT_THAT(Turning(*Read("exaone4")), ElementsAre(true, true, true, true));
  const auto large = Read("exaone4", 64);
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_EQ(large->attention.of(0).window, 4096);
  EXPECT_EQ(large->attention.of(3).window, 0);
  const auto hybrid = Read(
      "exaone4",
      [](GgufTestWriter* w) {
        w->AddInteger("exaone4.attention.sliding_window", 64);
        w->AddInteger("exaone4.nextn_predict_layers", 1);
      },
      5);
  ASSERT_TRUE(hybrid.ok()) << hybrid.status();
  EXPECT_EQ(hybrid->n_layers, 4);
  EXPECT_THAT(Turning(*hybrid), ElementsAre(true, true, true, false));
}

TEST_F(GgufFamiliesTest, GraniteUsesWhatTheFileMultipliesBy) {
  auto c = Read("granite");
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_FLOAT_EQ(c->score_scale, 0.25f);
  EXPECT_EQ(c->logit_scale, 1);
  c = Read("granite", [](GgufTestWriter* w) {
    w->AddFloat("granite.attention.scale", 0.5);
    w->AddFloat("granite.embedding_scale", 12);
    w->AddFloat("granite.residual_scale", 0.5);
    w->AddFloat("granite.logit_scale", 8);
  });
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_FLOAT_EQ(c->score_scale, 0.5f);
  EXPECT_FLOAT_EQ(c->embedding_scale, 24);
  EXPECT_FLOAT_EQ(c->logit_scale, 0.125f);
  EXPECT_THAT(
      Refusal(
          "granite", [](GgufTestWriter* w) { w->AddBool("granite.rope.scaling.finetuned", false); },
          StatusCode::kUnimplemented),
      HasSubstr("finetuned"));
}

TEST_F(GgufFamiliesTest, QueriesOfMistral3GrowWhereTheFileSaysSo) {
  EXPECT_EQ(Read("mistral3")->model_type, "mistral");
  EXPECT_EQ(Read("mistral3")->attention.of(0).query_growth, 0);
  const auto c = Read("mistral3", [](GgufTestWriter* w) {
    w->AddFloat("mistral3.attention.temperature_scale", 0.125);
    w->AddInteger("mistral3.rope.scaling.original_context_length", 1024);
  });
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->model_type, "ministral3");
  EXPECT_EQ(c->attention.of(0).query_growth, 0.125);
  EXPECT_EQ(c->attention.of(0).growth_context, 1024);
  EXPECT_EQ(c->attention.of(0).rope.scaling, RopeConfig::Scaling::kNone);
  EXPECT_THAT(Refusal(
                  "mistral3", [](GgufTestWriter* w) { w->AddInteger("mistral3.expert_count", 8); },
                  StatusCode::kUnimplemented),
              HasSubstr("mixtures of experts"));
}

TEST_F(GgufFamiliesTest, Glm4TurnsAsManyChannelsAsTheFileSays) {
  const auto c = Read("glm4", [](GgufTestWriter* w) {
    w->AddInteger("glm4.rope.dimension_count", 8);
    w->AddInteger("glm4.nextn_predict_layers", 1);
  });
  ASSERT_TRUE(c.ok()) << c.status();
  EXPECT_EQ(c->rope_dim(), 8);
  EXPECT_EQ(c->n_layers, 3);
  EXPECT_TRUE(c->has_neighbour_pairs);
  EXPECT_TRUE(c->norms.of_outputs);
  EXPECT_FALSE(Read("chatglm")->norms.of_outputs);
  EXPECT_EQ(Read("chatglm")->rope_dim(), 16);
}

}  // namespace
}  // namespace kvlathe
