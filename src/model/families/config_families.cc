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
};

}  // namespace

Status ReadFamily(const ConfigFields& fields, ModelConfig* config) {
  KVL_ASSIGN_OR_RETURN(config->model_type, fields.StringOr("model_type", ""));
  if (fields.Has("quantization_config")) {
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
