#include "model/families/config_families.h"

#include <fmt/ranges.h>

#include <string_view>
#include <vector>

#include "model/families/family_readers.h"

namespace kvlathe {
namespace {

std::vector<Family> AllFamilies() {
  std::vector<Family> all;
  for (const auto of_file : {
           LlamaFamilies(),
           GemmaFamilies(),
           Phi3Families(),
           Gpt2Families(),
           FalconFamilies(),
           LayerNormFamilies(),
           RmsNormFamilies(),
           PostNormFamilies(),
           NeighbourPairFamilies(),
           ExpertFamilies(),
           LlamasByOtherNames(),
       }) {
    all.insert(all.end(), of_file.begin(), of_file.end());
  }
  return all;
}

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
  const std::vector<Family> families = AllFamilies();
  for (const Family& family : families) {
    if (family.model_type == config->model_type) return family.read(fields, config);
  }
  std::vector<std::string_view> known;
  for (const Family& family : families) known.push_back(family.model_type);
  return Error(StatusCode::kUnimplemented, "{}: model_type '{}' is not supported; supported: {}",
               fields.where(), config->model_type, fmt::join(known, ", "));
}

}  // namespace kvlathe
