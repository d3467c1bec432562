#include "model/families/config_families.h"

#include <fmt/ranges.h>

#include <array>
#include <string_view>
#include <vector>

#include "model/families/family_readers.h"

namespace kvlathe {
namespace {

struct Family {
  std::string_view model_type;
  Status (*read)(const ConfigFields& fields, ModelConfig* config);
};

constexpr std::array kFamilies = {
    Family{"llama", ReadLlama},
    Family{"mistral", ReadMistral},
    Family{"qwen2", ReadQwen2},
    Family{"qwen3", ReadQwen3},
    Family{"gemma3_text", ReadGemma3},
    Family{"phi3", ReadPhi3},
    Family{"gpt2", ReadGpt2},
    Family{"falcon", ReadFalcon},
    Family{"starcoder2", ReadStarcoder2},
    Family{"stablelm", ReadStableLm},
    Family{"gpt_neox", ReadGptNeox},
    Family{"phi", ReadPhi},
    Family{"nemotron", ReadNemotron},
    Family{"seed_oss", ReadSeedOss},
    Family{"hunyuan_v1_dense", ReadHunyuanDense},
    Family{"ernie4_5", ReadErnie45},
    Family{"internlm2", ReadInternLm2},
    Family{"arcee", ReadArcee},
    Family{"apertus", ReadApertus},

    Family{"gemma", ReadGemma},
    Family{"gemma2", ReadGemma2},
    Family{"smollm3", ReadSmolLm3},
    Family{"granite", ReadGranite},
    Family{"olmo2", ReadOlmo2},
    Family{"olmo3", ReadOlmo3},
    Family{"exaone4", ReadExaone4},
    Family{"glm", ReadGlm},
    Family{"glm4", ReadGlm4},
    Family{"cohere", ReadCohere},
    Family{"cohere2", ReadCohere2},
    Family{"ministral", ReadMinistral},
    Family{"ministral3", ReadMinistral3},

    // With experts.
    Family{"mixtral", ReadMixtral},
    Family{"qwen2_moe", ReadQwen2Moe},
    Family{"qwen3_moe", ReadQwen3Moe},
    Family{"olmoe", ReadOlmoe},
    Family{"granitemoe", ReadGraniteMoe},
    Family{"granitemoeshared", ReadGraniteMoe},
    Family{"gpt_oss", ReadGptOss},
    Family{"glm4_moe", ReadGlm4Moe},
    Family{"ernie4_5_moe", ReadErnieMoe},
    Family{"phimoe", ReadPhiMoe},
    Family{"bailing_moe", ReadBailingMoe},
    Family{"bailing_moe_v2", ReadBailingMoe},
    Family{"jais2", ReadJais2},
    Family{"olmo", ReadOlmo},
    Family{"orion", ReadOrion},
    Family{"exaone", ReadExaone},
    Family{"internlm3", ReadInternLm3},
    Family{"xverse", ReadLlama},
    Family{"qwen", ReadQwen},
    Family{"minicpm", ReadMiniCpm},
};

// Whether experts are stored as gpt-oss has them published, in blocks of four bits.
StatusOr<bool> HasMxfp4Experts(const ConfigFields& fields) {
  if (!fields.Has("quantization_config") || !fields.at("quantization_config").is_object()) {
    return false;
  }
  const ConfigFields inner(fields.at("quantization_config"), fields.where());
  KVL_ASSIGN_OR_RETURN(const std::string method, inner.StringOr("quant_method", ""));
  KVL_ASSIGN_OR_RETURN(const std::string type, fields.StringOr("model_type", ""));
  return method == "mxfp4" && type == "gpt_oss";
}

}  // namespace

Status ReadFamily(const ConfigFields& fields, ModelConfig* config) {
  KVL_ASSIGN_OR_RETURN(config->model_type, fields.StringOr("model_type", ""));
  KVL_ASSIGN_OR_RETURN(const bool is_mxfp4, HasMxfp4Experts(fields));
  if (fields.Has("quantization_config") && !is_mxfp4) {
    return Error(StatusCode::kUnimplemented,
                 "{}: quantised weights are not supported; use the BF16, F16 or F32 model",
                 fields.where());
  }
  for (const Family& family : kFamilies) {
    if (family.model_type == config->model_type) return family.read(fields, config);
  }
  std::vector<std::string_view> known;
  for (const Family& family : kFamilies) known.push_back(family.model_type);
  return Error(StatusCode::kUnimplemented, "{}: model_type '{}' is not supported; supported: {}",
               fields.where(), config->model_type, fmt::join(known, ", "));
}

}  // namespace kvlathe
