// The architectures of GGUF files that differ from Llama by their biases, by the norms of queries
// and keys, and by what stands between the products of the MLP.
#include "model/families/gguf_readers.h"

namespace kvlathe::gguf {
namespace {

using nlohmann::json;

// What Llama has, where llama.cpp's defaults are not those of transformers.
Status ReadAsLlama(const Context& c, const char* model_type) {
  json& config = *c.config;
  config["model_type"] = model_type;
  config["num_key_value_heads"] = config["num_attention_heads"];
  config["head_dim"] = HeadDim(config);
  return ReadLlamaLike(c);
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

}  // namespace

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

}  // namespace kvlathe::gguf
