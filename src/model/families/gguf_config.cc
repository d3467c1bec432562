#include "model/families/gguf_config.h"

#include <fmt/ranges.h>

#include <array>
#include <nlohmann/json.hpp>

#include "tensor/dtype.h"

namespace kvlathe {
namespace {

using nlohmann::json;

constexpr int64_t kMaxSize = int64_t{1} << 26;

// The keys of one architecture: "block_count" is "llama.block_count" there.
class ArchitectureKeys {
 public:
  ArchitectureKeys(const GgufFile& file, std::string architecture)
      : file_(file), architecture_(std::move(architecture)) {}

  std::string Name(std::string_view key) const { return fmt::format("{}.{}", architecture_, key); }
  bool Has(std::string_view key) const { return file_.FindValue(Name(key)) != nullptr; }

  // Copies an integer that must be there to a field of config.json.
  Status Copy(std::string_view key, const char* field, json* config) const {
    if (!Has(key)) {
      return Error(StatusCode::kDataLoss, "{}: the key '{}' is missing", file_.path(), Name(key));
    }
    return CopyIfThere(key, field, config);
  }
  Status CopyIfThere(std::string_view key, const char* field, json* config) const {
    if (!Has(key)) return OkStatus();
    KVL_RETURN_IF_ERROR(RefuseList(key));
    KVL_ASSIGN_OR_RETURN((*config)[field], file_.IntegerOr(Name(key), 0, 0, kMaxSize));
    return OkStatus();
  }
  Status CopyNumberIfThere(std::string_view key, const char* field, json* config) const {
    if (!Has(key)) return OkStatus();
    KVL_ASSIGN_OR_RETURN((*config)[field], file_.NumberOr(Name(key), 0, 0, 1e12));
    return OkStatus();
  }

 private:
  // Some models have a number for each layer.
  Status RefuseList(std::string_view key) const {
    const GgufValue* value = file_.FindValue(Name(key));
    if (!std::holds_alternative<std::vector<int64_t>>(*value)) return OkStatus();
    return Error(StatusCode::kUnimplemented,
                 "{}: '{}' differs from layer to layer; this build runs models whose layers are "
                 "alike",
                 file_.path(), Name(key));
  }

  const GgufFile& file_;
  std::string architecture_;
};

struct Context {
  const GgufFile& file;
  const ArchitectureKeys& keys;
  json* config;
  bool HasTensor(std::string_view name) const { return file.FindTensor(name) != nullptr; }
};

// A small F32 tensor of factors of the rotations; empty if it is not there.
StatusOr<std::vector<double>> Factors(const GgufFile& file, std::string_view name) {
  const GgufTensor* tensor = file.FindTensor(name);
  if (tensor == nullptr) return std::vector<double>();
  if (tensor->type != GgmlType::kF32 || tensor->n_elements() > (1 << 16)) {
    return Error(StatusCode::kDataLoss, "{}: tensor '{}' is not a short list of F32", file.path(),
                 name);
  }
  std::vector<float> factors(tensor->n_elements());
  ConvertToFloat(DType::kF32, tensor->data, std::ssize(factors), factors.data());
  return std::vector<double>(factors.begin(), factors.end());
}

// Factors of each pair of channels take the form of LongRope, whatever formula they come from.
json FactorScaling(const std::vector<double>& short_factors,
                   const std::vector<double>& long_factors, double original_context) {
  return {{"type", "longrope"},
          {"short_factor", short_factors},
          {"long_factor", long_factors},
          {"original_max_position_embeddings", original_context}};
}

Status ReadRopeScaling(const Context& c) {
  const int64_t context = c.config->at("max_position_embeddings").get<int64_t>();
  KVL_ASSIGN_OR_RETURN(
      const int64_t original,
      c.file.IntegerOr(c.keys.Name("rope.scaling.original_context_length"), context, 1, kMaxSize));
  KVL_ASSIGN_OR_RETURN(const auto of_freqs, Factors(c.file, "rope_freqs.weight"));
  if (!of_freqs.empty()) {  // Llama 3.1's
    (*c.config)["rope_scaling"] = FactorScaling(of_freqs, of_freqs, static_cast<double>(context));
    (*c.config)["rope_scaling"]["attention_factor"] = 1;
    return OkStatus();
  }
  KVL_ASSIGN_OR_RETURN(const auto of_short, Factors(c.file, "rope_factors_short.weight"));
  KVL_ASSIGN_OR_RETURN(const auto of_long, Factors(c.file, "rope_factors_long.weight"));
  if (!of_short.empty() || !of_long.empty()) {
    (*c.config)["rope_scaling"] = FactorScaling(of_short, of_long, static_cast<double>(original));
    const std::string attention = c.keys.Name("rope.scaling.attn_factor");
    if (c.file.FindValue(attention) != nullptr) {
      KVL_ASSIGN_OR_RETURN((*c.config)["rope_scaling"]["attention_factor"],
                           c.file.NumberOr(attention, 1, 1e-3, 1e3));
    }
    return OkStatus();
  }
  KVL_ASSIGN_OR_RETURN(const std::string type,
                       c.file.TextOr(c.keys.Name("rope.scaling.type"), "none"));
  // Files of before 2023-11 have the factor alone, which was linear then.
  KVL_ASSIGN_OR_RETURN(const double old_factor,
                       c.file.NumberOr(c.keys.Name("rope.scale_linear"), 1, 0, 1e6));
  KVL_ASSIGN_OR_RETURN(const double factor,
                       c.file.NumberOr(c.keys.Name("rope.scaling.factor"), old_factor, 0, 1e6));
  const bool is_old = c.file.FindValue(c.keys.Name("rope.scaling.type")) == nullptr;
  if ((type == "none" && !is_old) || factor == 1 || factor == 0) return OkStatus();
  (*c.config)["rope_scaling"] = {{"type", is_old ? "linear" : type}, {"factor", factor}};
  return OkStatus();
}

// What all architectures have.
Status ReadSizes(const Context& c) {
  KVL_RETURN_IF_ERROR(c.keys.Copy("block_count", "num_hidden_layers", c.config));
  KVL_RETURN_IF_ERROR(c.keys.Copy("embedding_length", "hidden_size", c.config));
  KVL_RETURN_IF_ERROR(c.keys.Copy("attention.head_count", "num_attention_heads", c.config));
  KVL_RETURN_IF_ERROR(c.keys.Copy("context_length", "max_position_embeddings", c.config));
  // The vocabulary is as long as the embedding, which padding may make longer than the tokenizer's.
  const GgufTensor* embedding = c.file.FindTensor("token_embd.weight");
  if (embedding == nullptr || embedding->shape.empty()) {
    return Error(StatusCode::kDataLoss,
                 "{}: tensor 'token_embd.weight' is missing, or of a type that is not supported",
                 c.file.path());
  }
  (*c.config)["vocab_size"] = embedding->shape.front();
  (*c.config)["tie_word_embeddings"] = !c.HasTensor("output.weight");
  return OkStatus();
}

// What Llama, Qwen2 and Phi-3 share.
Status ReadLlamaLike(const Context& c) {
  KVL_RETURN_IF_ERROR(
      c.keys.CopyIfThere("attention.head_count_kv", "num_key_value_heads", c.config));
  KVL_RETURN_IF_ERROR(c.keys.CopyIfThere("attention.key_length", "head_dim", c.config));
  KVL_RETURN_IF_ERROR(c.keys.Copy("feed_forward_length", "intermediate_size", c.config));
  KVL_RETURN_IF_ERROR(
      c.keys.CopyNumberIfThere("attention.layer_norm_rms_epsilon", "rms_norm_eps", c.config));
  KVL_RETURN_IF_ERROR(c.keys.CopyNumberIfThere("rope.freq_base", "rope_theta", c.config));
  return ReadRopeScaling(c);
}

int64_t HeadDim(const json& config) {
  const int64_t n_heads = config.at("num_attention_heads").get<int64_t>();
  const int64_t shared = n_heads > 0 ? config.at("hidden_size").get<int64_t>() / n_heads : 0;
  return config.value("head_dim", shared);
}

// The share of channels that rotate.
Status ReadRotaryFraction(const Context& c) {
  const int64_t head_dim = HeadDim(*c.config);
  KVL_ASSIGN_OR_RETURN(
      const int64_t n_rotating,
      c.file.IntegerOr(c.keys.Name("rope.dimension_count"), head_dim, 0, kMaxSize));
  if (n_rotating == head_dim || head_dim == 0) return OkStatus();
  (*c.config)["partial_rotary_factor"] =
      static_cast<double>(n_rotating) / static_cast<double>(head_dim);
  return OkStatus();
}

Status ReadWindow(const Context& c) {
  KVL_ASSIGN_OR_RETURN(const int64_t window,
                       c.file.IntegerOr(c.keys.Name("attention.sliding_window"), 0, 0, kMaxSize));
  if (window > 0) (*c.config)["sliding_window"] = window;
  return OkStatus();
}

Status ReadLlama(const Context& c) {
  KVL_ASSIGN_OR_RETURN(const int64_t n_experts,
                       c.file.IntegerOr(c.keys.Name("expert_count"), 0, 0, kMaxSize));
  if (n_experts > 0) {
    return Error(StatusCode::kUnimplemented, "{}: mixtures of experts are not supported",
                 c.file.path());
  }
  KVL_RETURN_IF_ERROR(ReadLlamaLike(c));
  KVL_RETURN_IF_ERROR(ReadRotaryFraction(c));
  KVL_RETURN_IF_ERROR(ReadWindow(c));
  // Mistral is a Llama with a window.
  (*c.config)["model_type"] = c.config->contains("sliding_window") ? "mistral" : "llama";
  return OkStatus();
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

struct Architecture {
  std::string_view name;
  Status (*read)(const Context& context);
  WeightLayout layout;
};

constexpr std::array kArchitectures = {
    Architecture{"llama", ReadLlama, WeightLayout::kGgufPairs},
    Architecture{"qwen2", ReadQwen2, WeightLayout::kGguf},
    Architecture{"qwen3", ReadQwen3, WeightLayout::kGguf},
    Architecture{"gemma3", ReadGemma3, WeightLayout::kGguf},
    Architecture{"phi3", ReadPhi3, WeightLayout::kGguf},
    Architecture{"gpt2", ReadGpt2, WeightLayout::kGguf},
    Architecture{"falcon", ReadFalcon, WeightLayout::kGguf},
};

StatusOr<const Architecture*> FindArchitecture(const GgufFile& file) {
  KVL_ASSIGN_OR_RETURN(const std::string name, file.TextOr("general.architecture", ""));
  for (const Architecture& known : kArchitectures) {
    if (known.name == name) return &known;
  }
  std::vector<std::string_view> names;
  for (const Architecture& known : kArchitectures) names.push_back(known.name);
  return Error(StatusCode::kUnimplemented,
               "{}: the architecture '{}' is not supported; supported: {}", file.path(), name,
               fmt::join(names, ", "));
}

// Ids at which a text or a turn ends.
Status ReadEnds(const Context& c) {
  const int64_t vocab_size = c.config->at("vocab_size").get<int64_t>();
  json ends = json::array();
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.eom_token_id"}) {
    if (c.file.FindValue(key) == nullptr) continue;
    KVL_ASSIGN_OR_RETURN(const int64_t id, c.file.IntegerOr(key, 0, 0, vocab_size - 1));
    ends.push_back(id);
  }
  if (!ends.empty()) (*c.config)["eos_token_id"] = ends;
  const char* bos = "tokenizer.ggml.bos_token_id";
  if (c.file.FindValue(bos) == nullptr) return OkStatus();
  KVL_ASSIGN_OR_RETURN((*c.config)["bos_token_id"], c.file.IntegerOr(bos, 0, 0, vocab_size - 1));
  return OkStatus();
}

// What a tensor of the first layer says of all: biases that the family alone does not tell.
void ReadBiases(const GgufFile& file, ModelConfig* c) {
  const auto has = [&](std::string_view name) { return file.FindTensor(name) != nullptr; };
  c->biases.qkv = has("blk.0.attn_qkv.bias") || has("blk.0.attn_q.bias");
  c->biases.o = has("blk.0.attn_output.bias");
  c->biases.mlp = has("blk.0.ffn_up.bias");
}

}  // namespace

StatusOr<json> GgufConfigJson(const GgufFile& file) {
  KVL_ASSIGN_OR_RETURN(const Architecture* architecture, FindArchitecture(file));
  const std::vector<std::string> unreadable = file.UnreadableTensors();
  if (!unreadable.empty()) {
    return Error(StatusCode::kUnimplemented,
                 "{}: {}, which is not supported; supported: F32, F16, BF16, Q4_0, Q4_1, Q5_0, "
                 "Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS, MXFP4",
                 file.path(), unreadable.front());
  }
  const ArchitectureKeys keys(file, std::string(architecture->name));
  json config = json::object();
  const Context context{file, keys, &config};
  KVL_RETURN_IF_ERROR(ReadSizes(context));
  KVL_RETURN_IF_ERROR(architecture->read(context));
  KVL_RETURN_IF_ERROR(ReadEnds(context));
  return config;
}

StatusOr<ModelConfig> ReadGgufConfig(const GgufFile& file) {
  KVL_ASSIGN_OR_RETURN(const Architecture* architecture, FindArchitecture(file));
  KVL_ASSIGN_OR_RETURN(const json config, GgufConfigJson(file));
  KVL_ASSIGN_OR_RETURN(ModelConfig c, ParseModelConfig(config, file.path()));
  c.layout = architecture->layout;
  ReadBiases(file, &c);
  return c;
}

}  // namespace kvlathe
