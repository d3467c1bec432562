#include "model/stored/weight_tables.h"

namespace kvlathe {
namespace {

bool HasTwoParallelNorms(const ModelConfig& config) {
  return config.parallel_block && !config.shared_norm;
}

WeightTable LlamaTable(const ModelConfig& config) {
  WeightTable t = {.outside = "model.",
                   .layers = "model.layers.",
                   .embedding = "embed_tokens",
                   .final_norm = "norm",
                   .attn_norm = "input_layernorm",
                   .ffn_norm = "post_attention_layernorm",
                   .q_norm = "self_attn.q_norm",
                   .k_norm = "self_attn.k_norm",
                   .sinks = "self_attn.sinks",
                   .q = "self_attn.q_proj",
                   .k = "self_attn.k_proj",
                   .v = "self_attn.v_proj",
                   .o = "self_attn.o_proj",
                   .gate = config.has_gate() ? "mlp.gate_proj" : "",
                   .up = "mlp.up_proj",
                   .down = "mlp.down_proj"};
  if (config.norms.of_outputs) {
    t.attn_out_norm = "post_attention_layernorm";
    t.ffn_norm = "pre_feedforward_layernorm";
    t.ffn_out_norm = "post_feedforward_layernorm";
  }
  return t;
}

// The first layer with experts; -1: there is none.
int FirstExpertLayer(const ModelConfig& config) {
  for (int l = 0; l < config.n_layers; ++l) {
    if (config.has_experts(l)) return l;
  }
  return -1;
}

// Whether a model of transformers has a tensor in its first layer with experts.
bool HasInLayers(const ModelConfig& config, const TensorSource& source, const char* name) {
  return source.Has(fmt::format("model.layers.{}.{}", FirstExpertLayer(config), name));
}

// Experts one by one, or as transformers has them in memory.
ExpertTable ExpertsOfLlama(const ModelConfig& config, const TensorSource& source) {
  ExpertTable t;
  t.choice_bias = "mlp.gate.e_score_correction_bias";
  if (config.experts.has_value() && !config.experts->has_shared_gate) {
    t.shared_gate = "mlp.shared_experts.gate_proj";
    t.shared_up = "mlp.shared_experts.up_proj";
    t.shared_down = "mlp.shared_experts.down_proj";
  }
  const bool is_apart = HasInLayers(config, source, "mlp.experts.0.down_proj.weight");
  if (is_apart || !HasInLayers(config, source, "mlp.experts.gate_up_proj")) return t;
  t.gate = "";
  t.up = "mlp.experts.gate_up_proj";
  t.down = "mlp.experts.down_proj";
  t.has_bare_names = true;
  return t;
}

WeightTable MixtralTable(const ModelConfig& config, const TensorSource& source) {
  WeightTable t = LlamaTable(config);
  t.experts = ExpertsOfLlama(config, source);
  if (HasInLayers(config, source, "mlp.gate.weight") &&
      !HasInLayers(config, source, "block_sparse_moe.gate.weight")) {
    return t;
  }
  t.experts.router = "block_sparse_moe.gate";
  t.experts.gate = "block_sparse_moe.experts.{}.w1";
  t.experts.up = "block_sparse_moe.experts.{}.w3";
  t.experts.down = "block_sparse_moe.experts.{}.w2";
  return t;
}

WeightTable GraniteMoeTable(const ModelConfig& config) {
  WeightTable t = LlamaTable(config);
  t.experts.router = "block_sparse_moe.router.layer";
  t.experts.gate = "";
  t.experts.up = "block_sparse_moe.input_linear";
  t.experts.down = "block_sparse_moe.output_linear";
  t.experts.shared_gate = "";
  t.experts.shared_up = "shared_mlp.input_linear";
  t.experts.shared_down = "shared_mlp.output_linear";
  return t;
}

WeightTable GptOssTable(const ModelConfig& config, const TensorSource& source) {
  WeightTable t = LlamaTable(config);
  t.experts.router = "mlp.router";
  t.experts.gate = "";
  t.experts.up = "mlp.experts.gate_up_proj";
  t.experts.down = "mlp.experts.down_proj";
  t.experts.takes_turns = true;
  t.experts.has_bare_names = true;
  // Blocks stand row by row.
  const std::string first =
      fmt::format("model.layers.{}.{}", FirstExpertLayer(config), t.experts.up);
  t.experts.is_transposed = !source.BlocksOf(first).has_value();
  return t;
}

WeightTable ErnieMoeTable(const ModelConfig& config, const TensorSource& source) {
  WeightTable t = LlamaTable(config);
  t.experts = ExpertsOfLlama(config, source);
  t.experts.choice_bias = "mlp.moe_statics.e_score_correction_bias";
  return t;
}

WeightTable BailingMoeTable(const ModelConfig& config, const TensorSource& source) {
  WeightTable t = LlamaTable(config);
  t.embedding = "word_embeddings";
  t.qkv = "attention.query_key_value";
  t.o = "attention.dense";
  t.q_norm = "attention.query_layernorm";
  t.k_norm = "attention.key_layernorm";
  t.experts = ExpertsOfLlama(config, source);
  t.experts.choice_bias = "mlp.gate.expert_bias";
  return t;
}

ExpertTable ExpertsOfGguf(const ModelConfig& config, const TensorSource& source) {
  const auto has = [&](const char* name) {
    return source.Has(fmt::format("blk.{}.{}", FirstExpertLayer(config), name));
  };
  ExpertTable t = {.router = "ffn_gate_inp",
                   .choice_bias = "exp_probs_b.bias",
                   .gate = "ffn_gate_exps",
                   .up = "ffn_up_exps",
                   .down = "ffn_down_exps",
                   .shared_gate = "ffn_gate_shexp",
                   .shared_up = "ffn_up_shexp",
                   .shared_down = "ffn_down_shexp",
                   .shared_router = "ffn_gate_inp_shexp"};
  if (has("ffn_gate_up_exps.weight")) {
    t.gate = "";
    t.up = "ffn_gate_up_exps";
  } else if (has("ffn_gate.0.weight")) {  // files of before 2024-04
    t.gate = "ffn_gate.{}";
    t.up = "ffn_up.{}";
    t.down = "ffn_down.{}";
  }
  return t;
}

WeightTable Phi3Table(const ModelConfig& config) {
  WeightTable t = LlamaTable(config);
  t.qkv = "self_attn.qkv_proj";
  t.gate = "";
  t.up = "mlp.gate_up_proj";
  return t;
}

WeightTable GemmaTable(const ModelConfig& config) {
  WeightTable t = LlamaTable(config);
  t.norm_offset = 1;
  return t;
}

WeightTable GlmTable(const ModelConfig& config) {
  WeightTable t = LlamaTable(config);
  t.gate = "";
  t.up = "mlp.gate_up_proj";
  t.ffn_norm = "post_attention_layernorm";
  t.attn_out_norm = "post_self_attn_layernorm";
  t.ffn_out_norm = "post_mlp_layernorm";
  return t;
}

WeightTable Starcoder2Table(const ModelConfig& config) {
  WeightTable t = LlamaTable(config);
  t.up = "mlp.c_fc";
  t.down = "mlp.c_proj";
  return t;
}

WeightTable StableLmTable(const ModelConfig& config) {
  WeightTable t = LlamaTable(config);
  t.q_norm = "self_attn.q_layernorm";
  t.k_norm = "self_attn.k_layernorm";
  t.has_norm_of_each_head = true;
  return t;
}

WeightTable GptNeoxTable() {
  return {.outside = "gpt_neox.",
          .layers = "gpt_neox.layers.",
          .embedding = "embed_in",
          .head = "embed_out",
          .final_norm = "final_layer_norm",
          .attn_norm = "input_layernorm",
          .ffn_norm = "post_attention_layernorm",
          .qkv = "attention.query_key_value",
          .o = "attention.dense",
          .up = "mlp.dense_h_to_4h",
          .down = "mlp.dense_4h_to_h",
          .fused = WeightTable::Fused::kByKvHead};
}

WeightTable PhiTable(const ModelConfig& config) {
  WeightTable t = LlamaTable(config);
  t.final_norm = "final_layernorm";
  t.q_norm = "self_attn.q_layernorm";
  t.k_norm = "self_attn.k_layernorm";
  t.o = "self_attn.dense";
  t.up = "mlp.fc1";
  t.down = "mlp.fc2";
  return t;
}

WeightTable HunyuanTable(const ModelConfig& config) {
  WeightTable t = LlamaTable(config);
  t.q_norm = "self_attn.query_layernorm";
  t.k_norm = "self_attn.key_layernorm";
  return t;
}

WeightTable InternLm2Table() {
  return {.outside = "model.",
          .layers = "model.layers.",
          .embedding = "tok_embeddings",
          .head = "output",
          .final_norm = "norm",
          .attn_norm = "attention_norm",
          .ffn_norm = "ffn_norm",
          .qkv = "attention.wqkv",
          .o = "attention.wo",
          .gate = "feed_forward.w1",
          .up = "feed_forward.w3",
          .down = "feed_forward.w2",
          .fused = WeightTable::Fused::kByKvHead};
}

WeightTable ApertusTable(const ModelConfig& config) {
  WeightTable t = LlamaTable(config);
  t.attn_norm = "attention_layernorm";
  t.ffn_norm = "feedforward_layernorm";
  t.xielu = "mlp.act_fn";
  return t;
}

WeightTable ExaoneTable() {
  return {.outside = "transformer.",
          .layers = "transformer.h.",
          .embedding = "wte",
          .final_norm = "ln_f",
          .attn_norm = "ln_1",
          .ffn_norm = "ln_2",
          .q = "attn.attention.q_proj",
          .k = "attn.attention.k_proj",
          .v = "attn.attention.v_proj",
          .o = "attn.attention.out_proj",
          .gate = "mlp.c_fc_0",
          .up = "mlp.c_fc_1",
          .down = "mlp.c_proj"};
}

WeightTable QwenTable() {
  return {.outside = "transformer.",
          .layers = "transformer.h.",
          .embedding = "wte",
          .final_norm = "ln_f",
          .attn_norm = "ln_1",
          .ffn_norm = "ln_2",
          .qkv = "attn.c_attn",
          .o = "attn.c_proj",
          .gate = "mlp.w2",
          .up = "mlp.w1",
          .down = "mlp.c_proj"};
}

WeightTable FalconTable(const ModelConfig& config) {
  const bool has_two_norms = HasTwoParallelNorms(config);
  return {.outside = "transformer.",
          .layers = "transformer.h.",
          .embedding = "word_embeddings",
          .final_norm = "ln_f",
          .attn_norm = has_two_norms ? "ln_attn" : "input_layernorm",
          .ffn_norm = has_two_norms ? "ln_mlp" : "post_attention_layernorm",
          .qkv = "self_attention.query_key_value",
          .o = "self_attention.dense",
          .up = "mlp.dense_h_to_4h",
          .down = "mlp.dense_4h_to_h",
          .fused = WeightTable::Fused::kByKvHead};
}

WeightTable Gpt2Table(const TensorSource& source) {
  const bool has_prefix = !source.Has("wte.weight");
  return {.outside = has_prefix ? "transformer." : "",
          .layers = has_prefix ? "transformer.h." : "h.",
          .embedding = "wte",
          .positions = "wpe",
          .final_norm = "ln_f",
          .attn_norm = "ln_1",
          .ffn_norm = "ln_2",
          .qkv = "attn.c_attn",
          .o = "attn.c_proj",
          .up = "mlp.c_fc",
          .down = "mlp.c_proj",
          .is_transposed = true};
}

WeightTable GgufTable(const ModelConfig& config, const TensorSource& source) {
  // Of Falcon's two norms the file calls that of the MLP attn_norm, and some families' norm before
  // the MLP is called by its place behind attention.
  const bool has_second_norm = source.Has("blk.0.attn_norm_2.weight");
  const bool is_post_attention =
      !config.norms.of_outputs && source.Has("blk.0.post_attention_norm.weight");
  return {.layers = "blk.",
          .embedding = "token_embd",
          .head = "output",
          .positions = "position_embd",
          .final_norm = "output_norm",
          .attn_norm = has_second_norm ? "attn_norm_2" : "attn_norm",
          .ffn_norm = has_second_norm     ? "attn_norm"
                      : is_post_attention ? "post_attention_norm"
                                          : "ffn_norm",
          .q_norm = "attn_q_norm",
          .k_norm = "attn_k_norm",
          .attn_out_norm = "post_attention_norm",
          .ffn_out_norm = "post_ffw_norm",
          .sinks = "attn_sinks.weight",
          .qkv = source.Has("blk.0.attn_qkv.weight") ? "attn_qkv" : "",
          .q = "attn_q",
          .k = "attn_k",
          .v = "attn_v",
          .o = "attn_output",
          .gate = source.Has("blk.0.ffn_gate.weight") ? "ffn_gate" : "",
          .up = "ffn_up",
          .down = "ffn_down",
          .experts = ExpertsOfGguf(config, source)};
}

}  // namespace

WeightTable TableOf(const ModelConfig& config, const TensorSource& source) {
  switch (config.layout) {
    case WeightLayout::kLlama: {
      WeightTable t = LlamaTable(config);
      if (config.experts.has_value()) t.experts = ExpertsOfLlama(config, source);
      return t;
    }
    case WeightLayout::kMixtral:
      return MixtralTable(config, source);
    case WeightLayout::kGraniteMoe:
      return GraniteMoeTable(config);
    case WeightLayout::kGptOss:
      return GptOssTable(config, source);
    case WeightLayout::kErnieMoe:
      return ErnieMoeTable(config, source);
    case WeightLayout::kBailingMoe:
      return BailingMoeTable(config, source);
    case WeightLayout::kPhi3:
      return Phi3Table(config);
    case WeightLayout::kGemma:
      return GemmaTable(config);
    case WeightLayout::kGlm:
      return GlmTable(config);
    case WeightLayout::kFalcon:
      return FalconTable(config);
    case WeightLayout::kGpt2:
      return Gpt2Table(source);
    case WeightLayout::kStarcoder2:
      return Starcoder2Table(config);
    case WeightLayout::kStableLm:
      return StableLmTable(config);
    case WeightLayout::kGptNeox:
      return GptNeoxTable();
    case WeightLayout::kPhi:
      return PhiTable(config);
    case WeightLayout::kHunyuan:
      return HunyuanTable(config);
    case WeightLayout::kInternLm2:
      return InternLm2Table();
    case WeightLayout::kApertus:
      return ApertusTable(config);
    case WeightLayout::kExaone:
      return ExaoneTable();
    case WeightLayout::kQwen:
      return QwenTable();
    case WeightLayout::kGguf:
      break;
  }
  return GgufTable(config, source);
}

}  // namespace kvlathe
