#include "model/families/gguf/gguf_readers.h"

#include <algorithm>
#include <cmath>

namespace kvlathe::gguf {
namespace {

using nlohmann::json;

// A small F32 tensor of factors of the rotations; empty if it is not there.
StatusOr<std::vector<double>> Factors(const Context& c, std::string_view name) {
  const GgufFile& file = c.file;
  const GgufTensor* tensor = file.FindTensor(name);
  if (tensor == nullptr) return std::vector<double>();
  KVL_ASSIGN_OR_RETURN(const int64_t n_rotating, file.IntegerOr(c.keys.Name("rope.dimension_count"),
                                                                HeadDim(*c.config), 0, kMaxSize));
  if (tensor->type != GgmlType::kF32 || tensor->n_elements() != n_rotating / 2) {
    return Error(StatusCode::kDataLoss,
                 "{}: tensor '{}' is not a list of {} F32 factors, one of each pair of channels",
                 file.path(), name, n_rotating / 2);
  }
  std::vector<float> factors(tensor->n_elements());
  ConvertToFloat(DType::kF32, tensor->data, std::ssize(factors), factors.data());
  if (!std::ranges::all_of(factors, [](float x) { return std::isfinite(x) && x > 0; })) {
    return Error(StatusCode::kDataLoss, "{}: tensor '{}' holds a factor that is not above 0",
                 file.path(), name);
  }
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

// What llama.cpp's converter writes of YaRN. yarn_log_multiplier is mscale_all_dim of a model whose
// mscale is 1.
Status ReadYarn(const Context& c, double factor, int64_t original_context) {
  const auto name = [&](const char* key) {
    return c.keys.Name(fmt::format("rope.scaling.{}", key));
  };
  json yarn = {
      {"type", "yarn"}, {"factor", factor}, {"original_max_position_embeddings", original_context}};
  KVL_ASSIGN_OR_RETURN(const double share, c.file.NumberOr(name("yarn_ext_factor"), 1, -1e6, 1e6));
  if (share >= 0 && share != 1) {  // less than 0 says that the file does not know
    return Error(StatusCode::kUnimplemented, "{}: '{}' is {}; supported: 1", c.file.path(),
                 name("yarn_ext_factor"), share);
  }
  KVL_ASSIGN_OR_RETURN(yarn["beta_fast"], c.file.NumberOr(name("yarn_beta_fast"), 32, 0, 1e6));
  KVL_ASSIGN_OR_RETURN(yarn["beta_slow"], c.file.NumberOr(name("yarn_beta_slow"), 1, 0, 1e6));
  const auto stretched = [&](double weight) { return 1 + 0.1 * weight * std::log(factor); };
  KVL_ASSIGN_OR_RETURN(const double of_all,
                       c.file.NumberOr(name("yarn_log_multiplier"), 0, 0, 1e3));
  const double own = of_all == 0 ? stretched(1) : stretched(1) / stretched(of_all);
  KVL_ASSIGN_OR_RETURN(const double amplitude,
                       c.file.NumberOr(name("yarn_attn_factor"), own, 1e-3, 1e3));
  KVL_ASSIGN_OR_RETURN(const double more, c.file.NumberOr(name("attn_factor"), 1, 1e-3, 1e3));
  yarn["attention_factor"] = amplitude * more;
  (*c.config)["rope_scaling"] = yarn;
  return OkStatus();
}

}  // namespace

Status ReadRopeScaling(const Context& c) {
  const int64_t context = c.config->at("max_position_embeddings").get<int64_t>();
  KVL_ASSIGN_OR_RETURN(
      const int64_t original,
      c.file.IntegerOr(c.keys.Name("rope.scaling.original_context_length"), context, 1, kMaxSize));
  KVL_ASSIGN_OR_RETURN(const auto of_freqs, Factors(c, "rope_freqs.weight"));
  if (!of_freqs.empty()) {  // Llama 3.1's
    (*c.config)["rope_scaling"] = FactorScaling(of_freqs, of_freqs, static_cast<double>(context));
    (*c.config)["rope_scaling"]["attention_factor"] = 1;
    return OkStatus();
  }
  KVL_ASSIGN_OR_RETURN(const auto of_short, Factors(c, "rope_factors_short.weight"));
  KVL_ASSIGN_OR_RETURN(const auto of_long, Factors(c, "rope_factors_long.weight"));
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
  if (type == "yarn" && factor == 0) {
    return Error(StatusCode::kDataLoss, "{}: key '{}' is 0, but must be at least 1", c.file.path(),
                 c.keys.Name("rope.scaling.factor"));
  }
  if ((type == "none" && !is_old) || factor == 1 || factor == 0) return OkStatus();
  if (type == "yarn" && factor > 1) return ReadYarn(c, factor, original);
  (*c.config)["rope_scaling"] = {{"type", is_old ? "linear" : type}, {"factor", factor}};
  return OkStatus();
}

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

Status RequireWholeRotary(const Context& c) {
  const int64_t head_dim = HeadDim(*c.config);
  const std::string key = c.keys.Name("rope.dimension_count");
  KVL_ASSIGN_OR_RETURN(const int64_t n_rotating, c.file.IntegerOr(key, head_dim, 0, kMaxSize));
  if (n_rotating == head_dim) return OkStatus();
  return Error(StatusCode::kUnimplemented,
               "{}: '{}' is {}: of this architecture all {} channels of a head rotate",
               c.file.path(), key, n_rotating, head_dim);
}

Status ReadWindow(const Context& c) {
  KVL_ASSIGN_OR_RETURN(const int64_t window,
                       c.file.IntegerOr(c.keys.Name("attention.sliding_window"), 0, 0, kMaxSize));
  if (window > 0) (*c.config)["sliding_window"] = window;
  return OkStatus();
}

Status ReadWindowPattern(const Context& c, int64_t default_window, int64_t default_period) {
  json& config = *c.config;
  KVL_ASSIGN_OR_RETURN(
      config["sliding_window"],
      c.file.IntegerOr(c.keys.Name("attention.sliding_window"), default_window, 1, kMaxSize));
  const std::string key = c.keys.Name("attention.sliding_window_pattern");
  const GgufValue* const pattern = c.file.FindValue(key);
  if (pattern == nullptr || !std::holds_alternative<std::vector<int64_t>>(*pattern)) {
    KVL_ASSIGN_OR_RETURN(config["sliding_window_pattern"],
                         c.file.IntegerOr(key, default_period, 1, kMaxSize));
    return OkStatus();
  }
  json types = json::array();
  for (const int64_t slides : std::get<std::vector<int64_t>>(*pattern)) {
    types.push_back(slides != 0 ? "sliding_attention" : "full_attention");
  }
  config["layer_types"] = std::move(types);
  return OkStatus();
}

Status DropNextLayers(const Context& c) {
  const auto n_layers = c.config->at("num_hidden_layers").get<int64_t>();
  KVL_ASSIGN_OR_RETURN(const int64_t n_next,
                       c.file.IntegerOr(c.keys.Name("nextn_predict_layers"), 0, 0, n_layers));
  (*c.config)["num_hidden_layers"] = n_layers - n_next;
  return OkStatus();
}

Status RefuseExperts(const Context& c) {
  KVL_ASSIGN_OR_RETURN(const int64_t n_experts,
                       c.file.IntegerOr(c.keys.Name("expert_count"), 0, 0, kMaxSize));
  if (n_experts == 0) return OkStatus();
  return Error(StatusCode::kUnimplemented, "{}: mixtures of experts are not supported",
               c.file.path());
}

}  // namespace kvlathe::gguf
