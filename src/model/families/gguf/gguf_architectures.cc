// The architectures of GGUF files whose layers are dense.
#include "model/families/gguf/gguf_readers.h"

namespace kvlathe::gguf {
namespace {

using nlohmann::json;

Status ReadLlama(const Context& c) {
  KVL_ASSIGN_OR_RETURN(const int64_t n_experts,
                       c.file.IntegerOr(c.keys.Name("expert_count"), 0, 0, kMaxSize));
  KVL_RETURN_IF_ERROR(ReadLlamaLike(c));
  KVL_RETURN_IF_ERROR(ReadRotaryFraction(c));
  KVL_RETURN_IF_ERROR(ReadWindow(c));
  // Mistral is a Llama with a window.
  (*c.config)["model_type"] = c.config->contains("sliding_window") ? "mistral" : "llama";
  return n_experts > 0 ? ReadMixtral(c) : OkStatus();
}

Status ReadQwen2(const Context& c) {
  (*c.config)["model_type"] = "qwen2";
  return ReadLlamaLike(c);
}

Status ReadQwen3(const Context& c) {
  (*c.config)["model_type"] = "qwen3";
  return ReadLlamaLike(c);
}

Status ReadGemma3(const Context& c) {
  json& config = *c.config;
  config["model_type"] = "gemma3_text";
  config["rope_theta"] = 1e6;  // some files leave it out
  KVL_RETURN_IF_ERROR(ReadLlamaLike(c));
  KVL_RETURN_IF_ERROR(ReadWindow(c));
  KVL_RETURN_IF_ERROR(
      c.keys.CopyIfThere("attention.sliding_window_pattern", "sliding_window_pattern", &config));
  if (!config.contains("sliding_window")) {  // every layer sees everything
    config["sliding_window"] = config["max_position_embeddings"];
    config["sliding_window_pattern"] = 1;
  }
  KVL_RETURN_IF_ERROR(
      c.keys.CopyNumberIfThere("rope.freq_base_swa", "rope_local_base_freq", &config));
  KVL_RETURN_IF_ERROR(
      c.keys.CopyNumberIfThere("final_logit_softcapping", "final_logit_softcapping", &config));
  // The file does not say it: only the model with 62 layers (27B) scales by another width.
  constexpr int64_t kLayersOf27B = 62;
  const int64_t n_heads = config.at("num_attention_heads").get<int64_t>();
  const int64_t shared = n_heads > 0 ? config.at("hidden_size").get<int64_t>() / n_heads : 0;
  config["query_pre_attn_scalar"] =
      config.at("num_hidden_layers") == kLayersOf27B ? shared : HeadDim(config);
  return OkStatus();
}

Status ReadPhi3(const Context& c) {
  (*c.config)["model_type"] = "phi3";
  KVL_RETURN_IF_ERROR(ReadLlamaLike(c));
  KVL_RETURN_IF_ERROR(ReadRotaryFraction(c));
  KVL_RETURN_IF_ERROR(ReadWindow(c));
  return c.keys.CopyIfThere("rope.scaling.original_context_length",
                            "original_max_position_embeddings", c.config);
}

Status ReadGpt2(const Context& c) {
  json& config = *c.config;
  config["model_type"] = "gpt2";
  config["n_layer"] = config["num_hidden_layers"];
  config["n_embd"] = config["hidden_size"];
  config["n_head"] = config["num_attention_heads"];
  config["n_positions"] = config["max_position_embeddings"];
  KVL_RETURN_IF_ERROR(c.keys.CopyIfThere("feed_forward_length", "n_inner", &config));
  return c.keys.CopyNumberIfThere("attention.layer_norm_epsilon", "layer_norm_epsilon", &config);
}

Status ReadFalcon(const Context& c) {
  json& config = *c.config;
  config["model_type"] = "falcon";
  KVL_ASSIGN_OR_RETURN(const int64_t n_kv_heads,
                       c.file.IntegerOr(c.keys.Name("attention.head_count_kv"), 1, 1, kMaxSize));
  const bool has_two_norms = c.HasTensor("blk.0.attn_norm_2.weight");
  const bool is_new = has_two_norms || n_kv_heads > 1;
  config["new_decoder_architecture"] = is_new;
  if (is_new) config["num_kv_heads"] = n_kv_heads;
  config["num_ln_in_parallel_attn"] = has_two_norms ? 2 : 1;
  config["bias"] = c.HasTensor("blk.0.attn_qkv.bias");
  KVL_RETURN_IF_ERROR(c.keys.CopyIfThere("feed_forward_length", "ffn_hidden_size", &config));
  KVL_RETURN_IF_ERROR(c.keys.CopyNumberIfThere("rope.freq_base", "rope_theta", &config));
  return c.keys.CopyNumberIfThere("attention.layer_norm_epsilon", "layer_norm_epsilon", &config);
}

}  // namespace

std::span<const Architecture> FirstFamilies() {
  static constexpr Architecture kRows[] = {
      {"llama", ReadLlama, true}, {"qwen2", ReadQwen2}, {"qwen3", ReadQwen3},
      {"gemma3", ReadGemma3},     {"phi3", ReadPhi3},   {"gpt2", ReadGpt2},
      {"falcon", ReadFalcon},
  };
  return kRows;
}

}  // namespace kvlathe::gguf
