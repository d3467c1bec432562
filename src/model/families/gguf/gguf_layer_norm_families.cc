// The architectures of GGUF files whose norms take the mean off.
#include "model/families/gguf/gguf_readers.h"

namespace kvlathe::gguf {
namespace {

using nlohmann::json;

// The sizes, where llama.cpp's defaults are not those of transformers, and what Llama has of it.
Status ReadLayerNormed(const Context& c, const char* model_type, const char* eps_field) {
  json& config = *c.config;
  config["model_type"] = model_type;
  config["num_key_value_heads"] = config["num_attention_heads"];
  KVL_RETURN_IF_ERROR(ReadLlamaLike(c));
  return c.keys.CopyNumberIfThere("attention.layer_norm_epsilon", eps_field, &config);
}

Status ReadParallelResidual(const Context& c) {
  KVL_ASSIGN_OR_RETURN((*c.config)["use_parallel_residual"],
                       c.file.BoolOr(c.keys.Name("use_parallel_residual"), true));
  return OkStatus();
}

// As ReadRotaryFraction where the family has a share of its own by default.
Status ReadRotaryShare(const Context& c, const char* field) {
  KVL_RETURN_IF_ERROR(ReadRotaryFraction(c));
  const double share = c.config->value("partial_rotary_factor", 1.0);
  c.config->erase("partial_rotary_factor");
  (*c.config)[field] = share;
  return OkStatus();
}

// llama.cpp's converter leaves the window out.
Status ReadStarcoder2(const Context& c) {
  KVL_RETURN_IF_ERROR(ReadLayerNormed(c, "starcoder2", "norm_epsilon"));
  KVL_RETURN_IF_ERROR(ReadWindow(c));
  return RequireWholeRotary(c);
}

Status ReadStableLm(const Context& c) {
  KVL_RETURN_IF_ERROR(ReadLayerNormed(c, "stablelm", "layer_norm_eps"));
  (*c.config)["use_parallel_residual"] = !c.HasTensor("blk.0.ffn_norm.weight");
  (*c.config)["qk_layernorm"] = c.HasTensor("blk.0.attn_q_norm.weight");
  return ReadRotaryShare(c, "partial_rotary_factor");
}

Status ReadGptNeox(const Context& c) {
  KVL_RETURN_IF_ERROR(ReadLayerNormed(c, "gpt_neox", "layer_norm_eps"));
  KVL_RETURN_IF_ERROR(ReadParallelResidual(c));
  KVL_RETURN_IF_ERROR(c.keys.CopyNumberIfThere("rope.freq_base", "rotary_emb_base", c.config));
  return ReadRotaryShare(c, "rotary_pct");
}

Status ReadPhi2(const Context& c) {
  KVL_RETURN_IF_ERROR(ReadLayerNormed(c, "phi", "layer_norm_eps"));
  return ReadRotaryShare(c, "partial_rotary_factor");
}

Status ReadNemotron(const Context& c) {
  KVL_RETURN_IF_ERROR(ReadLayerNormed(c, "nemotron", "norm_eps"));
  return ReadRotaryShare(c, "partial_rotary_factor");
}

Status ReadJais2(const Context& c) {
  KVL_RETURN_IF_ERROR(ReadLayerNormed(c, "jais2", "layer_norm_eps"));
  return RequireWholeRotary(c);
}

Status ReadOlmo(const Context& c) {
  KVL_RETURN_IF_ERROR(ReadLayerNormed(c, "olmo", "layer_norm_eps"));
  KVL_RETURN_IF_ERROR(c.keys.CopyNumberIfThere("attention.clamp_kqv", "clip_qkv", c.config));
  return RequireWholeRotary(c);
}

Status ReadOrion(const Context& c) {
  KVL_RETURN_IF_ERROR(ReadLayerNormed(c, "orion", "rms_norm_eps"));
  return RequireWholeRotary(c);
}

}  // namespace

std::span<const Architecture> LayerNormFamilies() {
  static constexpr Architecture kRows[] = {
      {"starcoder2", ReadStarcoder2}, {"stablelm", ReadStableLm},
      {"gptneox", ReadGptNeox},       {"phi2", ReadPhi2},
      {"nemotron", ReadNemotron},     {"jais2", ReadJais2},
      {"olmo", ReadOlmo, true},       {"orion", ReadOrion},
  };
  return kRows;
}

}  // namespace kvlathe::gguf
