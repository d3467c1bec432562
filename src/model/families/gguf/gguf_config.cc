#include "model/families/gguf/gguf_config.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "model/families/gguf/gguf_readers.h"
#include "tensor/dtype.h"

namespace kvlathe {
namespace {

using nlohmann::json;

using gguf::Architecture;

std::vector<Architecture> AllArchitectures() {
  std::vector<Architecture> all;
  for (const auto of_file :
       {gguf::FirstFamilies(), gguf::LayerNormFamilies(), gguf::RmsNormFamilies(),
        gguf::DenseFamilies(), gguf::ExpertFamilies()}) {
    all.insert(all.end(), of_file.begin(), of_file.end());
  }
  return all;
}

StatusOr<Architecture> FindArchitecture(const GgufFile& file) {
  KVL_ASSIGN_OR_RETURN(const std::string name, file.TextOr("general.architecture", ""));
  const std::vector<Architecture> architectures = AllArchitectures();
  for (const Architecture& known : architectures) {
    if (known.name == name) return known;
  }
  std::vector<std::string_view> names;
  for (const Architecture& known : architectures) names.push_back(known.name);
  return Error(StatusCode::kUnimplemented,
               "{}: the architecture '{}' is not supported; supported: {}", file.path(), name,
               fmt::join(names, ", "));
}

// Ids at which a text or a turn ends.
Status ReadEnds(const gguf::Context& c) {
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
  c->biases.head = has("output.bias");
}

}  // namespace

StatusOr<json> GgufConfigJson(const GgufFile& file) {
  KVL_ASSIGN_OR_RETURN(const Architecture architecture, FindArchitecture(file));
  const std::vector<std::string> unreadable = file.UnreadableTensors();
  if (!unreadable.empty()) {
    return Error(StatusCode::kUnimplemented,
                 "{}: {}, which is not supported; supported: F32, F16, BF16, Q4_0, Q4_1, Q5_0, "
                 "Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS, MXFP4",
                 file.path(), unreadable.front());
  }
  const gguf::ArchitectureKeys keys(file, std::string(architecture.name));
  json config = json::object();
  const gguf::Context context{file, keys, &config};
  KVL_RETURN_IF_ERROR(gguf::ReadSizes(context));
  KVL_RETURN_IF_ERROR(architecture.read(context));
  KVL_RETURN_IF_ERROR(ReadEnds(context));
  return config;
}

StatusOr<ModelConfig> ReadGgufConfig(const GgufFile& file) {
  KVL_ASSIGN_OR_RETURN(const Architecture architecture, FindArchitecture(file));
  KVL_ASSIGN_OR_RETURN(const json config, GgufConfigJson(file));
  KVL_ASSIGN_OR_RETURN(ModelConfig c, ParseModelConfig(config, file.path()));
  c.layout = WeightLayout::kGguf;
  c.has_neighbour_pairs = architecture.has_neighbour_pairs;
  ReadBiases(file, &c);
  return c;
}

}  // namespace kvlathe
