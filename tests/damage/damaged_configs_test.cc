// Configurations that no model has: each gives one error that names the file and the field. The
// models are the golden ones, with one field of config.json or one key of a GGUF file changed.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "damage/damaged_models.h"
#include "io/scratch_folder.h"

namespace kvlathe::testing {
namespace {

using nlohmann::json;

struct DamagedConfig {
  const char* model;
  const char* change;  // a JSON merge patch
  const char* needle;  // of the message
};

const DamagedConfig kExpertCounts[] = {
    {"mixtral", R"({"num_local_experts": 0})", "num_local_experts"},
    {"mixtral", R"({"num_local_experts": 65536})", "num_local_experts"},
    {"mixtral", R"({"num_local_experts": -1})", "num_local_experts"},
    {"mixtral", R"({"num_local_experts": "eight"})", "num_local_experts"},
    {"mixtral", R"({"num_local_experts": null})", "num_local_experts"},
    {"mixtral", R"({"num_experts_per_tok": 0})", "num_experts_per_tok"},
    {"mixtral", R"({"num_experts_per_tok": 9})", "num_experts_per_tok"},
    {"qwen2_moe", R"({"num_experts": 0})", "num_experts"},
    {"qwen2_moe", R"({"num_experts": 65536})", "num_experts"},
    {"qwen2_moe", R"({"num_experts_per_tok": 7})", "num_experts_per_tok"},
    {"qwen2_moe", R"({"moe_intermediate_size": 0})", "moe_intermediate_size"},
    {"qwen2_moe", R"({"shared_expert_intermediate_size": -1})", "shared_expert_intermediate_size"},
    {"qwen2_moe", R"({"decoder_sparse_step": 0})", "decoder_sparse_step"},
    {"qwen2_moe", R"({"mlp_only_layers": [2]})", "mlp_only_layers"},
    {"qwen2_moe", R"({"mlp_only_layers": "first"})", "mlp_only_layers"},
    {"qwen3_moe", R"({"num_local_experts": 0, "num_experts": 0})", "experts"},
    {"qwen3_moe", R"({"num_local_experts": 65536, "num_experts": 65536})", "experts"},
    {"qwen3_moe", R"({"num_experts_per_tok": 0})", "num_experts_per_tok"},
    {"qwen3_moe", R"({"moe_intermediate_size": 2147483648})", "moe_intermediate_size"},
    {"olmoe", R"({"num_experts": 0})", "num_experts"},
    {"olmoe", R"({"num_experts": 65536})", "num_experts"},
    {"olmoe", R"({"num_experts_per_tok": 9})", "num_experts_per_tok"},
    {"granitemoe", R"({"num_local_experts": 65536})", "num_local_experts"},
    {"granitemoe", R"({"num_experts_per_tok": 9})", "num_experts_per_tok"},
    {"granitemoeshared", R"({"shared_intermediate_size": -24})", "shared_intermediate_size"},
    {"gpt_oss", R"({"num_local_experts": 0})", "num_local_experts"},
    {"gpt_oss", R"({"num_local_experts": 65536})", "num_local_experts"},
    {"gpt_oss", R"({"num_experts_per_tok": 0})", "num_experts_per_tok"},
    {"gpt_oss", R"({"num_experts_per_tok": 9})", "num_experts_per_tok"},
    {"glm4_moe", R"({"n_routed_experts": 0})", "n_routed_experts"},
    {"glm4_moe", R"({"n_routed_experts": 65536})", "n_routed_experts"},
    {"glm4_moe", R"({"num_experts_per_tok": 9})", "num_experts_per_tok"},
    {"glm4_moe", R"({"n_shared_experts": -1})", "n_shared_experts"},
    {"glm4_moe", R"({"first_k_dense_replace": -1})", "first_k_dense_replace"},
    {"glm4_moe", R"({"routed_scaling_factor": "large"})", "routed_scaling_factor"},
    {"glm4_moe", R"({"routed_scaling_factor": -1})", "routed_scaling_factor"},
    {"glm4_moe", R"({"routed_scaling_factor": 0})", "routed_scaling_factor"},
    {"glm4_moe_groups", R"({"n_group": 3})", "3 groups"},
    {"glm4_moe_groups", R"({"n_group": 0})", "n_group"},
    {"glm4_moe_groups", R"({"topk_group": 5})", "topk_group"},
    {"glm4_moe_groups", R"({"topk_group": 0})", "topk_group"},
    // Two experts of one group cannot be three.
    {"glm4_moe_groups", R"({"topk_group": 1})", "groups"},
    {"ernie4_5_moe", R"({"moe_num_experts": 0})", "moe_num_experts"},
    {"ernie4_5_moe", R"({"moe_num_experts": 65536})", "moe_num_experts"},
    {"ernie4_5_moe", R"({"moe_k": 9})", "moe_k"},
    {"ernie4_5_moe", R"({"moe_layer_interval": 0})", "moe_layer_interval"},
    {"ernie4_5_moe", R"({"moe_num_shared_experts": -1})", "moe_num_shared_experts"},
    {"phimoe", R"({"num_local_experts": 65536})", "num_local_experts"},
    {"phimoe", R"({"num_experts_per_tok": 3})", "num_experts_per_tok"},
    {"bailing_moe_v2", R"({"num_experts": 0})", "num_experts"},
    {"bailing_moe_v2", R"({"num_experts": 65536})", "num_experts"},
    {"bailing_moe_v2", R"({"num_experts_per_tok": 9})", "num_experts_per_tok"},
    {"bailing_moe_v2", R"({"score_function": "argmax"})", "score_function"},
};

const DamagedConfig kAttention[] = {
    {"gemma2", R"({"attn_logit_softcapping": -5.0})", "attn_logit_softcapping"},
    {"gemma2", R"({"attn_logit_softcapping": "NaN"})", "attn_logit_softcapping"},
    {"gemma2", R"({"final_logit_softcapping": -10.0})", "final_logit_softcapping"},
    {"gemma2", R"({"query_pre_attn_scalar": 0})", "query_pre_attn_scalar"},
    {"gemma2", R"({"sliding_window": -1})", "sliding_window"},
    {"gemma2", R"({"sliding_window": 0})", "sliding_window"},
    {"smollm3", R"({"no_rope_layers": [1, 1, 1]})", "no_rope_layers"},
    {"smollm3", R"({"no_rope_layers": [1, 1, 1, 2]})", "no_rope_layers"},
    {"smollm3", R"({"no_rope_layers": "last"})", "no_rope_layers"},
    {"olmo3", R"({"layer_types": ["full_attention"]})", "layer_types"},
    {"olmo3", R"({"layer_types": ["a", "b", "c", "d"]})", "layer type \"a\""},
    {"gpt_oss", R"({"layer_types": ["sliding_attention"]})", "layer_types"},
    {"gpt_oss", R"({"sliding_window": -21})", "sliding_window"},
    {"cohere2", R"({"sliding_window_pattern": 0})", "sliding_window_pattern"},
    {"cohere2", R"({"sliding_window_pattern": -4})", "sliding_window_pattern"},
    {"cohere2", R"({"logit_scale": "loud"})", "logit_scale"},
    {"exaone4", R"({"layer_types": null, "sliding_window_pattern": "LLXG"})",
     "sliding_window_pattern"},
    {"qwen2_window", R"({"max_window_layers": -1})", "max_window_layers"},
    {"qwen2_window", R"({"sliding_window": 0})", "sliding_window"},
    {"granite", R"({"attention_multiplier": -0.17})", "attention_multiplier"},
    {"granite", R"({"residual_multiplier": "small"})", "residual_multiplier"},
    {"granite", R"({"residual_multiplier": 0})", "residual_multiplier"},
    {"granite", R"({"logits_scaling": 0})", "logits_scaling"},
    {"granite", R"({"embedding_multiplier": "NaN"})", "embedding_multiplier"},
};

const DamagedConfig kScalings[] = {
    {"llama_yarn", R"({"rope_scaling": {"factor": 0}})", "factor"},
    {"llama_yarn", R"({"rope_scaling": {"factor": -4.0}})", "factor"},
    {"llama_yarn", R"({"rope_scaling": {"factor": "NaN"}})", "factor"},
    {"llama_yarn", R"({"rope_scaling": {"original_max_position_embeddings": 0}})",
     "original_max_position_embeddings"},
    {"llama_yarn", R"({"rope_scaling": {"beta_fast": -1}})", "beta_fast"},
    {"llama_yarn", R"({"rope_scaling": {"beta_fast": 1, "beta_slow": 2}})", "beta_slow"},
    {"llama_yarn_factor", R"({"rope_scaling": {"attention_factor": -1.3}})", "attention_factor"},
    {"llama_yarn_factor", R"({"rope_scaling": {"attention_factor": 0}})", "attention_factor"},
    {"llama_yarn_mscale", R"({"rope_parameters": {"mscale": -1}})", "mscale"},
    {"llama_yarn_untruncated", R"({"rope_scaling": {"truncate": "no"}})", "truncate"},
    {"llama_dynamic", R"({"rope_scaling": {"factor": 0}})", "factor"},
    {"llama_longrope", R"({"rope_scaling": {"long_factor": [1, 2]}})", "long_factor"},
    {"hunyuan_v1_dense", R"({"rope_scaling": {"alpha": -1}})", "alpha"},
    {"hunyuan_v1_dense", R"({"rope_scaling": {"alpha": "NaN"}})", "alpha"},
    {"ministral3", R"({"text_config": {"rope_parameters": {"llama_4_scaling_beta": -0.1}}})",
     "llama_4_scaling_beta"},
    {"ministral3", R"({"text_config": "none"})", "text_config"},
    {"phimoe", R"({"rope_scaling": {"short_mscale": "NaN"}})", "short_mscale"},
    {"phimoe", R"({"rope_scaling": {"long_mscale": 2}})", "long_mscale"},
    {"gpt_oss", R"({"rope_scaling": {"factor": 0}})", "factor"},
};

// They fail before any weight is looked for, so the folder has none.
template <size_t n>
void ExpectErrors(const DamagedConfig (&configs)[n]) {
  ScratchFolder scratch;
  for (const DamagedConfig& c : configs) {
    SCOPED_TRACE(std::string(c.model) + " " + c.change);
    const std::string folder = scratch / "model";
    CopyConfig(c.model, folder, json::parse(c.change));
    const Status status = OpenModel(folder);
    ExpectOneClearError(status, c.needle);
    ExpectOneClearError(status, folder + "/config.json");
  }
}

TEST(DamagedConfigs, CountsOfExpertsAreBounded) { ExpectErrors(kExpertCounts); }
TEST(DamagedConfigs, CapsScalesAndWindowsAreBounded) { ExpectErrors(kAttention); }
TEST(DamagedConfigs, ScalingsOfPositionsAreBounded) { ExpectErrors(kScalings); }

struct DamagedKey {
  const char* model;
  const char* key;
  GgufValue value;
};

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
using Integers = std::vector<int64_t>;

const DamagedKey kKeys[] = {
    {"mixtral", "llama.expert_count", int64_t{65536}},
    {"mixtral", "llama.expert_used_count", int64_t{0}},
    {"mixtral", "llama.expert_used_count", int64_t{9}},
    {"qwen2_moe", "qwen2moe.expert_count", int64_t{0}},
    {"qwen2_moe", "qwen2moe.expert_used_count", int64_t{7}},
    {"qwen2_moe", "qwen2moe.expert_feed_forward_length", int64_t{0}},
    {"qwen3_moe_mxfp4", "qwen3moe.expert_count", int64_t{0}},
    {"qwen3_moe_mxfp4", "qwen3moe.expert_count", int64_t{65536}},
    {"qwen3_moe_mxfp4", "qwen3moe.expert_used_count", int64_t{0}},
    {"olmoe", "olmoe.expert_count", int64_t{0}},
    {"olmoe", "olmoe.expert_used_count", int64_t{9}},
    {"granitemoeshared", "granitemoe.expert_count", int64_t{65536}},
    {"gpt_oss", "gpt-oss.expert_count", int64_t{0}},
    {"gpt_oss", "gpt-oss.expert_used_count", int64_t{9}},
    {"gpt_oss", "gpt-oss.rope.scaling.factor", 0.0},
    {"gpt_oss", "gpt-oss.rope.scaling.factor", kNan},
    {"gpt_oss", "gpt-oss.rope.scaling.factor", -4.0},
    {"gpt_oss", "gpt-oss.rope.scaling.original_context_length", int64_t{0}},
    {"gpt_oss", "gpt-oss.attention.sliding_window", int64_t{4000000000}},
    {"glm4_moe", "glm4moe.expert_count", int64_t{65536}},
    {"glm4_moe", "glm4moe.expert_used_count", int64_t{0}},
    {"glm4_moe", "glm4moe.expert_weights_scale", kNan},
    {"glm4_moe", "glm4moe.expert_weights_scale", -1.0},
    {"glm4_moe", "glm4moe.expert_gating_func", int64_t{9}},
    {"glm4_moe", "glm4moe.nextn_predict_layers", int64_t{3}},
    {"bailing_moe_v2", "bailingmoe2.expert_group_count", int64_t{3}},
    {"bailing_moe_v2", "bailingmoe2.expert_group_used_count", int64_t{5}},
    {"ernie4_5_moe", "ernie4_5-moe.expert_count", int64_t{0}},
    {"ernie4_5_moe", "ernie4_5-moe.interleave_moe_layer_step", int64_t{0}},
    {"bailing_moe_v2", "bailingmoe2.expert_used_count", int64_t{9}},
    {"phimoe", "phimoe.expert_used_count", int64_t{3}},
    {"gemma2", "gemma2.attn_logit_softcapping", -5.0},
    {"gemma2", "gemma2.attn_logit_softcapping", kNan},
    {"gemma2", "gemma2.final_logit_softcapping", kInfinity},
    {"gemma2", "gemma2.final_logit_softcapping", -1.0},
    {"granite", "granite.attention.scale", kNan},
    {"granite", "granite.residual_scale", kNan},
    {"granite", "granite.logit_scale", -1.0},
    {"granite", "granite.embedding_scale", kInfinity},
    {"cohere", "command-r.logit_scale", kNan},
    {"olmo3", "olmo2.attention.sliding_window_pattern", Integers{1, 1, 1}},
    {"exaone4", "exaone4.attention.sliding_window_pattern", Integers{1, 1, 1, 0, 1}},
    {"llama_yarn", "llama.rope.scaling.factor", kNan},
    {"llama_yarn", "llama.rope.scaling.type", std::string_view("spiral")},
    {"ministral3", "mistral3.attention.temperature_scale", kNan},
    {"apertus", "xielu.alpha_p", std::vector<double>{1}},
    {"apertus", "xielu.beta", std::vector<double>{0.5, kNan}},
};

TEST(DamagedConfigs, KeysOfGgufFilesAreBounded) {
  ScratchFolder scratch;
  const std::string path = scratch / "model.gguf";
  for (const DamagedKey& c : kKeys) {
    SCOPED_TRACE(std::string(c.model) + " " + c.key);
    CopyGguf(c.model, path, {{c.key, c.value}});
    const Status status = OpenModel(path);
    ExpectOneClearError(status, path);
  }
}

}  // namespace
}  // namespace kvlathe::testing
