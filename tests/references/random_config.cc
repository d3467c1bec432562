#include "references/random_config.h"

#include <nlohmann/json.hpp>

namespace kvlathe::testing {
namespace {

nlohmann::json RopeScalingOf(const ReferenceRope& rope) {
  if (rope.scaling == "linear") return {{"type", "linear"}, {"factor", rope.factor}};
  if (rope.scaling == "llama3") {
    return {{"rope_type", "llama3"},
            {"factor", rope.factor},
            {"low_freq_factor", rope.low},
            {"high_freq_factor", rope.high},
            {"original_max_position_embeddings", rope.original}};
  }
  if (rope.scaling == "longrope") {
    return {{"type", "longrope"},
            {"short_factor", rope.short_factors},
            {"long_factor", rope.long_factors}};
  }
  return nullptr;
}

// What families with experts say of them.
void AddExperts(const RandomModelShape& s, nlohmann::json* config) {
  const ReferenceFeatures& f = s.features;
  (*config)["num_experts_per_tok"] = f.n_used_experts;
  if (s.model_type == "gpt_oss") {
    config->update({{"intermediate_size", f.expert_ffn},
                    {"num_local_experts", f.n_experts},
                    {"swiglu_alpha", 1.702},
                    {"swiglu_limit", 7.0}});
  } else if (s.model_type == "qwen3_moe") {
    config->update({{"moe_intermediate_size", f.expert_ffn},
                    {"num_experts", f.n_experts},
                    {"norm_topk_prob", true},
                    {"decoder_sparse_step", 1},
                    {"mlp_only_layers", nlohmann::json::array()}});
  } else {
    config->update({{"moe_intermediate_size", f.expert_ffn},
                    {"n_routed_experts", f.n_experts},
                    {"n_shared_experts", 1},
                    {"norm_topk_prob", true},
                    {"first_k_dense_replace", f.n_dense_layers},
                    {"n_group", 1},
                    {"topk_group", 1},
                    {"routed_scaling_factor", f.experts_scale},
                    {"use_qk_norm", true}});
  }
}

// What one family alone, or a few, say.
void AddFeatures(const RandomModelShape& s, nlohmann::json* config) {
  const ReferenceFeatures& f = s.features;
  if (f.n_experts > 0) AddExperts(s, config);
  if (s.model_type == "smollm3") {
    nlohmann::json turns;  // 1: with RoPE
    for (int l = 0; l < s.n_layers; ++l) turns.push_back((l + 1) % f.still_every == 0 ? 0 : 1);
    config->update({{"no_rope_layers", turns}, {"no_rope_layer_interval", f.still_every}});
  } else if (s.model_type == "granite") {
    config->update({{"attention_multiplier", f.score_scale},
                    {"embedding_multiplier", f.embedding_scale},
                    {"residual_multiplier", f.residual_scale},
                    {"logits_scaling", 1 / f.logit_scale}});
  } else if (s.model_type == "cohere") {
    config->update({{"logit_scale", f.logit_scale}, {"use_qk_norm", true}});
    (*config)["layer_norm_eps"] = 1e-5;
  } else if (s.model_type == "nemotron") {
    config->update({{"norm_eps", 1e-5}, {"hidden_act", "relu2"}});
  } else if (s.model_type == "gemma2") {
    config->update({{"attn_logit_softcapping", f.score_cap},
                    {"final_logit_softcapping", f.logit_cap},
                    {"hidden_activation", "gelu_pytorch_tanh"},
                    {"query_pre_attn_scalar", s.query_scalar}});
  }
  if (s.model_type != "exaone4" && s.model_type != "gpt_oss") return;
  nlohmann::json types;
  for (int l = 0; l < s.n_layers; ++l) {
    const bool is_whole = (l + 1) % s.whole_every == 0;
    types.push_back(is_whole ? "full_attention" : "sliding_attention");
  }
  (*config)["layer_types"] = types;
}

nlohmann::json LlamaLikeConfig(const RandomModelShape& s) {
  nlohmann::json config = {{"hidden_size", s.hidden},
                           {"num_hidden_layers", s.n_layers},
                           {"num_attention_heads", s.n_heads},
                           {"num_key_value_heads", s.n_kv_heads},
                           {"head_dim", s.head_dim},
                           {"intermediate_size", s.ffn},
                           {"max_position_embeddings", s.max_positions},
                           {"rms_norm_eps", 1e-5},
                           {"rope_theta", s.rope.theta},
                           {"rope_scaling", RopeScalingOf(s.rope)},
                           {"hidden_act", "silu"},
                           {"sliding_window", nullptr}};
  AddFeatures(s, &config);
  if (s.attention_bias && s.model_type != "qwen2") config["attention_bias"] = true;
  if (s.mlp_bias) config["mlp_bias"] = true;
  if (s.window > 0) config["sliding_window"] = s.window;
  if (s.model_type == "gemma3_text") {
    config.erase("hidden_act");
    config.update({{"hidden_activation", "gelu_pytorch_tanh"},
                   {"sliding_window_pattern", s.whole_every},
                   {"rope_local_base_freq", s.local_theta},
                   {"query_pre_attn_scalar", s.query_scalar}});
  }
  if (s.rotary_fraction != 1) config["partial_rotary_factor"] = s.rotary_fraction;
  if (s.dmc.has_value()) {
    config["dmc"] = {{"channel", s.dmc->is_last ? "last" : "first"},
                     {"offset", s.dmc->offset},
                     {"weight_offset", s.dmc->weight_offset},
                     {"epsilon", s.dmc->epsilon},
                     {"zero_after_rope", s.dmc->zeroes_after_rope}};
  }
  if (s.dms.has_value() && !s.dms->decides_of_itself) {
    config.update({{"dms_window_size", s.dms->window},
                   {"dms_alpha_scale", s.dms->scale},
                   {"dms_initial_alpha_offset", s.dms->offset},
                   {"dms_cr", 8}});
    if (!s.dms->query_channel.has_value()) {
      config["dms_alpha_per"] = s.dms->is_per_head ? "head" : "layer";
      config["dms_separate_alpha"] = true;
    }
  }
  if (s.rope.scaling == "longrope") {
    config["original_max_position_embeddings"] = static_cast<int>(s.rope.original);
  }
  return config;
}

nlohmann::json Gpt2Config(const RandomModelShape& s) {
  return {{"n_embd", s.hidden},
          {"n_layer", s.n_layers},
          {"n_head", s.n_heads},
          {"n_inner", s.ffn == 4 * s.hidden ? nlohmann::json() : nlohmann::json(s.ffn)},
          {"n_positions", s.max_positions},
          {"n_ctx", s.max_positions},
          {"layer_norm_epsilon", 1e-5},
          {"activation_function", s.activation}};
}

nlohmann::json FalconConfig(const RandomModelShape& s) {
  nlohmann::json config = {{"hidden_size", s.hidden},
                           {"num_hidden_layers", s.n_layers},
                           {"num_attention_heads", s.n_heads},
                           {"num_kv_heads", s.new_architecture ? s.n_kv_heads : 71},
                           {"multi_query", s.n_kv_heads == 1},
                           {"new_decoder_architecture", s.new_architecture},
                           {"parallel_attn", s.parallel},
                           {"bias", s.attention_bias},
                           {"alibi", false},
                           {"ffn_hidden_size", s.ffn},
                           {"rope_theta", s.rope.theta},
                           {"max_position_embeddings", s.max_positions},
                           {"layer_norm_epsilon", 1e-5}};
  if (s.new_architecture && s.n_norms == 1) config["num_ln_in_parallel_attn"] = 1;
  return config;
}

}  // namespace

nlohmann::json RandomConfig(const RandomModelShape& s) {
  nlohmann::json config = s.model_type == "gpt2"     ? Gpt2Config(s)
                          : s.model_type == "falcon" ? FalconConfig(s)
                                                     : LlamaLikeConfig(s);
  config.update({{"model_type", s.model_type},
                 {"vocab_size", s.vocab},
                 {"tie_word_embeddings", s.tied},
                 {"bos_token_id", 1},
                 {"eos_token_id", 2}});
  return config;
}

}  // namespace kvlathe::testing
