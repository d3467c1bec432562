// These functions read JSON fields of a type; a wrong type is kDataLoss and names the field.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "base/status.h"

namespace kvlathe {

// Null and absent are the same: the fallback. Objects other than JSON objects have no fields.
StatusOr<std::string> StringField(const nlohmann::json& object, const char* key,
                                  std::string fallback = {});
StatusOr<bool> BoolField(const nlohmann::json& object, const char* key, bool fallback);

// The field, or null if it is absent.
const nlohmann::json& FieldOrNull(const nlohmann::json& object, const char* key);

}  // namespace kvlathe
