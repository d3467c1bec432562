#include "structured/json_walk.h"

#include <algorithm>
#include <cmath>
#include <regex>
#include <vector>

namespace kvlathe {
namespace {

bool HasType(const nlohmann::json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  if (type == "boolean") return value.is_boolean();
  return type == "null" && value.is_null();
}

std::string WhyNoObject(const nlohmann::json& value, const nlohmann::json& schema,
                        const nlohmann::json& root) {
  for (const nlohmann::json& key : schema.value("required", nlohmann::json::array())) {
    if (!value.contains(key.get<std::string>())) return key.get<std::string>() + " is missing";
  }
  const nlohmann::json properties = schema.value("properties", nlohmann::json::object());
  const nlohmann::json others = schema.value("additionalProperties", nlohmann::json(true));
  for (const auto& [key, inner] : value.items()) {
    const nlohmann::json& its = properties.contains(key) ? properties[key] : others;
    const std::string why =
        its.is_boolean() ? (its.get<bool>() ? "" : "is one too many") : WhyNot(inner, its, root);
    if (!why.empty()) return key + ": " + why;
  }
  return {};
}

std::string WhyNoArray(const nlohmann::json& value, const nlohmann::json& schema,
                       const nlohmann::json& root) {
  if (value.size() < schema.value("minItems", 0U)) return "too few items";
  if (value.size() > schema.value("maxItems", 1U << 30)) return "too many items";
  for (const nlohmann::json& item : value) {
    const std::string why = WhyNot(item, schema.value("items", nlohmann::json::object()), root);
    if (!why.empty()) return "item: " + why;
  }
  return {};
}

std::string WhyNoScalar(const nlohmann::json& value, const nlohmann::json& schema) {
  if (value.is_number()) {
    if (schema.contains("minimum") && value < schema["minimum"]) return "too small";
    if (schema.contains("maximum") && value > schema["maximum"]) return "too large";
  }
  if (value.is_string()) {
    const std::string text = value.get<std::string>();
    size_t n_characters = 0;
    for (const char c : text) n_characters += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    if (n_characters < schema.value("minLength", 0U)) return "too short";
    if (n_characters > schema.value("maxLength", 1U << 30)) return "too long";
    if (schema.contains("pattern") &&
        !std::regex_search(text, std::regex(schema["pattern"].get<std::string>()))) {
      return "'" + text + "' is not of the pattern";
    }
  }
  return {};
}

}  // namespace

std::string WhyNot(const nlohmann::json& value, const nlohmann::json& schema,
                   const nlohmann::json& root) {
  if (schema.contains("$ref")) {
    const std::string at = schema["$ref"].get<std::string>().substr(1);
    return WhyNot(value, at.empty() ? root : root.at(nlohmann::json::json_pointer(at)), root);
  }
  if (schema.contains("anyOf")) {
    for (const nlohmann::json& inner : schema["anyOf"]) {
      if (WhyNot(value, inner, root).empty()) return {};
    }
    return "is none of anyOf";
  }
  if (schema.contains("const") && value != schema["const"]) return "is not the constant";
  if (schema.contains("enum")) {
    const nlohmann::json& values = schema["enum"];
    if (std::find(values.begin(), values.end(), value) == values.end()) return "is none of enum";
  }
  if (schema.contains("type")) {
    const nlohmann::json types =
        schema["type"].is_array() ? schema["type"] : nlohmann::json::array({schema["type"]});
    bool has_one = false;
    for (const nlohmann::json& type : types) has_one = has_one || HasType(value, type);
    if (!has_one) return value.dump() + " is not of type " + types.dump();
  }
  if (value.is_object()) return WhyNoObject(value, schema, root);
  if (value.is_array()) return WhyNoArray(value, schema, root);
  return WhyNoScalar(value, schema);
}

std::optional<std::string> WalkAtRandom(TokenConstraint* constraint, const Tokenizer& tokenizer,
                                        int n_logits, int32_t end_id, int max_tokens,
                                        Random* random) {
  std::vector<float> logits;
  StreamingDetokenizer detokenizer(&tokenizer, {.continues_text = true});
  std::string text;
  for (int i = 0; i < max_tokens; ++i) {
    if (constraint->is_complete()) return text + detokenizer.Finish();
    logits.assign(static_cast<size_t>(n_logits), 0);
    constraint->Mask(logits);
    std::vector<int32_t> allowed, closing;
    for (int32_t id = 0; id < n_logits; ++id) {
      if (std::isinf(logits[static_cast<size_t>(id)])) continue;
      allowed.push_back(id);
      const std::string bytes = id < tokenizer.vocab_size() ? tokenizer.TokenBytes(id) : "";
      if (id == end_id || bytes.find_first_of("\"}]") != std::string::npos) closing.push_back(id);
    }
    if (allowed.empty()) return std::nullopt;
    const bool closes = !closing.empty() && (i > max_tokens / 2 || random->Below(4) == 0);
    const std::vector<int32_t>& choices = closes ? closing : allowed;
    const int32_t id = choices[random->Below(choices.size())];
    if (id == end_id) return text + detokenizer.Finish();
    if (!constraint->Accept(id).ok()) return std::nullopt;
    text += detokenizer.Push(id);
  }
  return std::nullopt;
}

}  // namespace kvlathe
