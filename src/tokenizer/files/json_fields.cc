#include "tokenizer/files/json_fields.h"

namespace kvlathe {

using nlohmann::json;

const json& FieldOrNull(const json& object, const char* key) {
  static const json kNull;
  if (!object.is_object()) return kNull;
  const auto value = object.find(key);
  return value == object.end() ? kNull : *value;
}

StatusOr<std::string> StringField(const json& object, const char* key, std::string fallback) {
  const json& value = FieldOrNull(object, key);
  if (value.is_null()) return fallback;
  if (!value.is_string()) return Error(StatusCode::kDataLoss, "\"{}\" is not a string", key);
  return value.get<std::string>();
}

StatusOr<bool> BoolField(const json& object, const char* key, bool fallback) {
  const json& value = FieldOrNull(object, key);
  if (value.is_null()) return fallback;
  if (!value.is_boolean()) return Error(StatusCode::kDataLoss, "\"{}\" is not true or false", key);
  return value.get<bool>();
}

}  // namespace kvlathe
