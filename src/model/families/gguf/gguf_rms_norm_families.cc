// The architectures of GGUF files that differ from Llama by their biases, by the norms of queries
// and keys, and by what stands between the products of the MLP.
#include <cmath>

#include "model/families/gguf/gguf_readers.h"

namespace kvlathe::gguf {
namespace {

using nlohmann::json;

// What Llama has, where llama.cpp's defaults are not those of transformers.
Status ReadAsLlama(const Context& c, const char* model_type) {
  json& config = *c.config;
  config["model_type"] = model_type;
  config["num_key_value_heads"] = config["num_attention_heads"];
  config["head_dim"] = HeadDim(config);
  KVL_RETURN_IF_ERROR(ReadLlamaLike(c));
  return RequireWholeRotary(c);
}

// One number of xIELU of each layer, or one for all layers.
StatusOr<json> XieluNumber(const GgufFile& file, const std::string& key, int64_t n_layers) {
  const GgufValue* const value = file.FindValue(key);
  if (value == nullptr) {
    return Error(StatusCode::kDataLoss, "{}: the key '{}' is missing", file.path(), key);
  }
  if (const auto* const list = std::get_if<std::vector<double>>(value)) return json(*list);
  KVL_ASSIGN_OR_RETURN(const double of_all, file.NumberOr(key, 0, -1e6, 1e6));
  return json(std::vector<double>(n_layers, of_all));
}

Status ReadSeedOss(const Context& c) { return ReadAsLlama(c, "seed_oss"); }

// Files have the larger theta that a config.json means by "dynamic".
Status ReadHunyuanDense(const Context& c) { return ReadAsLlama(c, "hunyuan_v1_dense"); }

Status ReadErnie45(const Context& c) {
  // llama.cpp's default, where a file has none.
  (*c.config)["rope_theta"] = 10000;
  return ReadAsLlama(c, "ernie4_5");
}

Status ReadInternLm2(const Context& c) { return ReadAsLlama(c, "internlm2"); }

Status ReadArcee(const Context& c) { return ReadAsLlama(c, "arcee"); }

Status ReadApertus(const Context& c) {
  json& config = *c.config;
  config["rope_theta"] = 10000;
  config["rope_scaling"] = {{"type", "default"}};
  KVL_RETURN_IF_ERROR(ReadAsLlama(c, "apertus"));
  const int64_t n_layers = config.at("num_hidden_layers").get<int64_t>();
  if (n_layers > 1024) return OkStatus();  // which is refused as what it is
  for (const char* number : {"alpha_p", "alpha_n", "beta", "eps"}) {
    KVL_ASSIGN_OR_RETURN(config["xielu"][number],
                         XieluNumber(c.file, std::string("xielu.") + number, n_layers));
  }
  return OkStatus();
}

Status ReadExaone(const Context& c) {
  (*c.config)["rope_theta"] = 10000;
  return ReadAsLlama(c, "exaone");
}

Status ReadXverse(const Context& c) { return ReadAsLlama(c, "xverse"); }

// feed_forward_length counts gate and up together, as config.json does.
Status ReadQwen(const Context& c) {
  KVL_RETURN_IF_ERROR(ReadAsLlama(c, "qwen"));
  json& config = *c.config;
  config["kv_channels"] = config["head_dim"];
  config["seq_length"] = config["max_position_embeddings"];
  // Converters call it by either name.
  KVL_RETURN_IF_ERROR(
      c.keys.CopyNumberIfThere("attention.layer_norm_epsilon", "layer_norm_epsilon", &config));
  if (config.contains("rms_norm_eps")) config["layer_norm_epsilon"] = config["rms_norm_eps"];
  config["rotary_emb_base"] = config.value("rope_theta", 1e4);
  return OkStatus();
}

// A Granite, with the multipliers of MiniCPM 2B where the file has none.
Status ReadMiniCpm(const Context& c) {
  KVL_RETURN_IF_ERROR(RefuseExperts(c));
  KVL_RETURN_IF_ERROR(ReadAsLlama(c, "granite"));
  json& config = *c.config;
  const auto n_layers = config.at("num_hidden_layers").get<double>();
  const auto hidden = config.at("hidden_size").get<double>();
  const auto head_dim = config.at("head_dim").get<double>();
  if (n_layers == 0 || hidden == 0 || head_dim == 0) return OkStatus();  // refused as what it is
  const auto read = [&](const char* key, double fallback, const char* field) -> Status {
    KVL_ASSIGN_OR_RETURN(config[field], c.file.NumberOr(c.keys.Name(key), fallback, 1e-6, 1e6));
    return OkStatus();
  };
  KVL_RETURN_IF_ERROR(read("embedding_scale", 12, "embedding_multiplier"));
  KVL_RETURN_IF_ERROR(read("residual_scale", 1.4 / std::sqrt(n_layers), "residual_multiplier"));
  KVL_RETURN_IF_ERROR(read("logit_scale", hidden / 256, "logits_scaling"));
  config["attention_multiplier"] = 1 / std::sqrt(head_dim);
  return OkStatus();
}

}  // namespace

std::span<const Architecture> RmsNormFamilies() {
  static constexpr Architecture kRows[] = {
      {"seed_oss", ReadSeedOss},
      {"hunyuan-dense", ReadHunyuanDense},
      {"ernie4_5", ReadErnie45, true},
      {"internlm2", ReadInternLm2, true},
      {"arcee", ReadArcee, true},
      {"apertus", ReadApertus},
      {"exaone", ReadExaone},
      {"xverse", ReadXverse, true},
      {"qwen", ReadQwen},
      {"minicpm", ReadMiniCpm, true},
  };
  return kRows;
}

}  // namespace kvlathe::gguf
