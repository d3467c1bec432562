// Models that read images or sound beside text hold the config of their language model in an object
// of config.json.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/status.h"

namespace kvlathe {

// What config.json says of the language model: text_config with what transformers assumes where it
// says nothing, or `config` itself where there is none. kDataLoss for one that is no object,
// kUnimplemented for a model that reads its text in another way.
StatusOr<nlohmann::json> TextPart(const nlohmann::json& config, const std::string& where);

}  // namespace kvlathe
