// The architectures of GGUF files with features of their own: windows, norms behind blocks, layers
// without RoPE, multipliers.
#include <cmath>

#include "model/families/gguf/gguf_readers.h"

namespace kvlathe::gguf {
namespace {

using nlohmann::json;

// Gemma's files leave it out where it is as usual.
Status ReadCap(const Context& c, const char* key, double fallback) {
  KVL_ASSIGN_OR_RETURN((*c.config)[key], c.file.NumberOr(c.keys.Name(key), fallback, 0, 1e6));
  return OkStatus();
}

Status ReadCohereLike(const Context& c) {
  KVL_RETURN_IF_ERROR(ReadLlamaLike(c));
  KVL_RETURN_IF_ERROR(
      c.keys.CopyNumberIfThere("attention.layer_norm_epsilon", "layer_norm_eps", c.config));
  KVL_ASSIGN_OR_RETURN((*c.config)["logit_scale"],
                       c.file.NumberOr(c.keys.Name("logit_scale"), 1, 0, 1e6));
  return OkStatus();
}

Status ReadGemma(const Context& c) {
  (*c.config)["model_type"] = "gemma";
  (*c.config)["head_dim"] = HeadDim(*c.config);
  return ReadLlamaLike(c);
}

Status ReadGemma2(const Context& c) {
  json& config = *c.config;
  config["model_type"] = "gemma2";
  config["head_dim"] = HeadDim(config);
  KVL_RETURN_IF_ERROR(ReadLlamaLike(c));
  KVL_RETURN_IF_ERROR(ReadWindowPattern(c, 4096, 2));
  KVL_RETURN_IF_ERROR(ReadCap(c, "attn_logit_softcapping", 50));
  KVL_RETURN_IF_ERROR(ReadCap(c, "final_logit_softcapping", 30));
  // The file does not say it: only the model with 46 layers (27B) scales by another width.
  constexpr int64_t kLayersOf27B = 46;
  const auto n_heads = config.at("num_attention_heads").get<int64_t>();
  const int64_t shared = n_heads > 0 ? config.at("hidden_size").get<int64_t>() / n_heads : 0;
  config["query_pre_attn_scalar"] =
      config.at("num_hidden_layers") == kLayersOf27B ? shared : HeadDim(config);
  return OkStatus();
}

Status ReadSmolLm3(const Context& c) {
  (*c.config)["model_type"] = "smollm3";
  (*c.config)["no_rope_layer_interval"] = 4;  // llama.cpp knows no other
  return ReadLlamaLike(c);
}

Status ReadOlmo2(const Context& c) {
  json& config = *c.config;
  KVL_RETURN_IF_ERROR(ReadLlamaLike(c));
  KVL_ASSIGN_OR_RETURN(const int64_t window,
                       c.file.IntegerOr(c.keys.Name("attention.sliding_window"), 0, 0, kMaxSize));
  config["model_type"] = window > 0 ? "olmo3" : "olmo2";
  if (window == 0) return OkStatus();
  if (!config.contains("rope_theta")) config["rope_theta"] = 1e4;
  return ReadWindowPattern(c, window, 4);
}

Status ReadGranite(const Context& c) {
  (*c.config)["model_type"] = "granite";
  KVL_RETURN_IF_ERROR(RefuseExperts(c));
  return ReadGraniteLike(c);
}

// Whole heads turn unless the file says how much of them does.
Status ReadGlmHeads(const Context& c) {
  (*c.config)["head_dim"] = HeadDim(*c.config);
  (*c.config)["partial_rotary_factor"] = 1;
  return ReadRotaryFraction(c);
}

}  // namespace

Status ReadGraniteLike(const Context& c) {
  KVL_RETURN_IF_ERROR(ReadLlamaLike(c));
  const std::string turns = c.keys.Name("rope.scaling.finetuned");
  KVL_ASSIGN_OR_RETURN(const bool has_rope, c.file.BoolOr(turns, true));
  if (!has_rope) {
    return Error(StatusCode::kUnimplemented,
                 "{}: '{}' is false: a Granite without RoPE is not supported", c.file.path(),
                 turns);
  }
  const std::pair<const char*, const char*> multipliers[] = {
      {"attention.scale", "attention_multiplier"},
      {"embedding_scale", "embedding_multiplier"},
      {"residual_scale", "residual_multiplier"},
      {"logit_scale", "logits_scaling"}};
  for (const auto& [key, field] : multipliers) {
    KVL_RETURN_IF_ERROR(c.keys.CopyNumberIfThere(key, field, c.config));
    // A number that is 0 is not used.
    if (c.config->contains(field) && c.config->at(field) == 0) c.config->erase(field);
  }
  if (c.config->contains("attention_multiplier")) return OkStatus();
  const int64_t head_dim = HeadDim(*c.config);
  if (head_dim > 0) (*c.config)["attention_multiplier"] = 1 / std::sqrt(double(head_dim));
  return OkStatus();
}

namespace {

Status ReadGlm4(const Context& c) {
  (*c.config)["model_type"] = "glm4";
  KVL_RETURN_IF_ERROR(DropNextLayers(c));
  KVL_RETURN_IF_ERROR(ReadLlamaLike(c));
  return ReadGlmHeads(c);
}

Status ReadChatGlm(const Context& c) {
  (*c.config)["model_type"] = "glm";
  KVL_RETURN_IF_ERROR(ReadLlamaLike(c));
  return ReadGlmHeads(c);
}

Status ReadCommandR(const Context& c) {
  (*c.config)["model_type"] = "cohere";
  KVL_RETURN_IF_ERROR(ReadCohereLike(c));
  (*c.config)["use_qk_norm"] = c.HasTensor("blk.0.attn_q_norm.weight");
  if (!c.config->contains("rope_theta")) (*c.config)["rope_theta"] = 1e4;
  return OkStatus();
}

Status ReadCohere2(const Context& c) {
  (*c.config)["model_type"] = "cohere2";
  KVL_RETURN_IF_ERROR(ReadCohereLike(c));
  return ReadWindowPattern(c, 4096, 4);
}

Status ReadExaone4(const Context& c) {
  json& config = *c.config;
  config["model_type"] = "exaone4";
  KVL_RETURN_IF_ERROR(DropNextLayers(c));
  KVL_RETURN_IF_ERROR(ReadLlamaLike(c));
  // The files of 32B came before the key.
  constexpr int64_t kLayersOf32B = 64;
  if (c.keys.Has("attention.sliding_window") || config.at("num_hidden_layers") == kLayersOf32B) {
    return ReadWindowPattern(c, 4096, 4);
  }
  config["sliding_window"] = nullptr;
  return OkStatus();
}

Status ReadMistral3(const Context& c) {
  json& config = *c.config;
  KVL_RETURN_IF_ERROR(RefuseExperts(c));
  KVL_RETURN_IF_ERROR(ReadLlamaLike(c));
  KVL_RETURN_IF_ERROR(ReadRotaryFraction(c));
  KVL_ASSIGN_OR_RETURN(const double growth,
                       c.file.NumberOr(c.keys.Name("attention.temperature_scale"), 0, 0, 1e3));
  config["model_type"] = growth > 0 ? "ministral3" : "mistral";
  if (growth == 0) return OkStatus();
  if (!config.contains("rope_scaling")) config["rope_scaling"] = {{"type", "default"}};
  config["rope_scaling"]["llama_4_scaling_beta"] = growth;
  KVL_ASSIGN_OR_RETURN(
      config["rope_scaling"]["original_max_position_embeddings"],
      c.file.IntegerOr(c.keys.Name("rope.scaling.original_context_length"),
                       config.at("max_position_embeddings").get<int64_t>(), 1, kMaxSize));
  return OkStatus();
}

Status ReadGraniteSwa(const Context& c) {
  KVL_RETURN_IF_ERROR(RefuseExperts(c));
  KVL_RETURN_IF_ERROR(ReadGraniteLike(c));
  json& config = *c.config;
  config["model_type"] = "granite_swa";
  KVL_RETURN_IF_ERROR(ReadWindowPattern(c, 128, 4));
  const std::string key = c.keys.Name("attention.rope_pattern");
  const GgufValue* const pattern = c.file.FindValue(key);
  if (pattern == nullptr) return OkStatus();
  if (!std::holds_alternative<std::vector<int64_t>>(*pattern)) {
    return Error(StatusCode::kDataLoss, "{}: '{}' is not a list", c.file.path(), key);
  }
  json thetas = json::array();
  for (const int64_t turns : std::get<std::vector<int64_t>>(*pattern)) {
    thetas.push_back(turns != 0 ? config.value("rope_theta", 10000.0) : 0.0);
  }
  config["layer_rope_theta"] = std::move(thetas);
  return OkStatus();
}

}  // namespace

std::span<const Architecture> DenseFamilies() {
  static constexpr Architecture kRows[] = {
      {"gemma", ReadGemma},
      {"gemma2", ReadGemma2},
      {"smollm3", ReadSmolLm3, true},
      {"olmo2", ReadOlmo2},
      {"granite", ReadGranite, true},
      {"granite_swa", ReadGraniteSwa, true},
      {"glm4", ReadGlm4, true},
      {"chatglm", ReadChatGlm, true},
      {"command-r", ReadCommandR, true},
      {"cohere2", ReadCohere2, true},
      {"exaone4", ReadExaone4},
      {"mistral3", ReadMistral3, true},
  };
  return kRows;
}

}  // namespace kvlathe::gguf
