#include "structured/schema_check.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "structured/followed_schema.h"
#include "structured/schema_cost.h"

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

// What the grammar does not hold.
constexpr std::string_view kUnsupported[] = {"not",
                                             "if",
                                             "then",
                                             "else",
                                             "dependentRequired",
                                             "dependentSchemas",
                                             "dependencies",
                                             "uniqueItems",
                                             "contains",
                                             "minContains",
                                             "maxContains",
                                             "unevaluatedItems",
                                             "unevaluatedProperties",
                                             "$dynamicRef",
                                             "$recursiveRef"};
// What stands for a schema as a whole: what is beside them would be lost.
constexpr std::string_view kWhole[] = {"$ref", "anyOf", "oneOf", "allOf"};
constexpr std::string_view kConstraining[] = {"properties",
                                              "required",
                                              "additionalProperties",
                                              "patternProperties",
                                              "propertyNames",
                                              "minProperties",
                                              "maxProperties",
                                              "items",
                                              "prefixItems",
                                              "minItems",
                                              "maxItems",
                                              "pattern",
                                              "minLength",
                                              "maxLength",
                                              "minimum",
                                              "maximum",
                                              "exclusiveMinimum",
                                              "exclusiveMaximum",
                                              "multipleOf",
                                              "enum",
                                              "const"};
constexpr std::string_view kRepetitions[] = {"minLength", "maxLength",     "minItems",
                                             "maxItems",  "minProperties", "maxProperties"};
// Keywords whose value is a schema, a list of schemas, and an object of schemas.
constexpr std::string_view kOfSchema[] = {"items", "additionalProperties", "propertyNames",
                                          "additionalItems"};
constexpr std::string_view kOfSchemas[] = {"anyOf", "oneOf", "allOf", "prefixItems"};
constexpr std::string_view kOfNamedSchemas[] = {"properties", "patternProperties", "$defs",
                                                "definitions"};

bool Has(std::span<const std::string_view> keywords, std::string_view key) {
  return std::ranges::find(keywords, key) != keywords.end();
}

class SchemaChecker {
 public:
  SchemaChecker(const Json& root, const SchemaLimits& limits) : root_(root), limits_(limits) {}

  Status Check() {
    if (!root_.is_object()) return At("schema", "is no JSON object");
    if (const size_t n_bytes = root_.dump().size();
        n_bytes > static_cast<size_t>(limits_.max_bytes)) {
      return At("schema", fmt::format("has {} bytes, allowed are {}", n_bytes, limits_.max_bytes));
    }
    KVL_RETURN_IF_ERROR(CountValues(root_, 1));
    KVL_RETURN_IF_ERROR(CheckSchemaAt(root_, "schema", 1));
    if (const int64_t cost = SchemaCost(root_, limits_.texts_in_grammar); cost > limits_.max_cost) {
      return At("schema", fmt::format("would take too long to become a grammar (an estimated {} "
                                      "states, allowed are {}); give fewer or shorter bounds of "
                                      "lengths, patterns and multiples",
                                      cost, limits_.max_cost));
    }
    const Status followed = FollowedSchema::Make({root_}).status();
    return followed.ok() ? OkStatus() : At("schema", MessageOf(followed));
  }

 private:
  static Status At(const std::string& place, std::string_view what) {
    return Error(StatusCode::kInvalidArgument, "{}: {}", place, what);
  }

  Status CountValues(const Json& value, int depth) {
    if (depth > limits_.max_depth) {
      return At("schema", fmt::format("nests deeper than {}", limits_.max_depth));
    }
    for (const Json& inner : value) {
      if (++n_values_ > limits_.max_values) {
        return At("schema", fmt::format("has more than {} values", limits_.max_values));
      }
      if (inner.is_structured()) KVL_RETURN_IF_ERROR(CountValues(inner, depth + 1));
    }
    return OkStatus();
  }

  Status CheckSchemaAt(const Json& schema, const std::string& place, int64_t repetition,
                       bool are_names = false);
  Status CheckKeyword(const std::string& key, const Json& value, const std::string& place);
  Status CheckRepetition(const Json& schema, const std::string& place, bool are_names,
                         int64_t* repetition);
  Status CheckPattern(const std::string& pattern, const std::string& place) const;
  Status CheckInner(const std::string& key, const Json& value, const std::string& place,
                    int64_t repetition);
  Status CheckReference(const Json& reference, const std::string& place);
  const Json* Referred(const Json& reference) const;
  bool ComesBack(const Json& schema);

  const Json& root_;
  const SchemaLimits& limits_;
  int n_values_ = 0;
  // Of ComesBack: schemas on the way to the one that is looked at, and those that never come back.
  std::set<const Json*> path_, ending_;
};

Status SchemaChecker::CheckSchemaAt(const Json& schema, const std::string& place,
                                    int64_t repetition, bool are_names) {
  if (schema.is_boolean()) return OkStatus();
  if (!schema.is_object()) return At(place, "is neither an object nor a boolean");
  for (const std::string_view whole : kWhole) {
    if (!schema.contains(whole)) continue;
    for (const auto& [key, value] : schema.items()) {
      if (Has(kConstraining, key) || (Has(kWhole, key) && key != whole)) {
        return At(place, fmt::format("{} beside {} is not supported", key, whole));
      }
    }
  }
  KVL_RETURN_IF_ERROR(CheckRepetition(schema, place, are_names, &repetition));
  for (const auto& [key, value] : schema.items()) {
    KVL_RETURN_IF_ERROR(CheckKeyword(key, value, place));
    // Items repeat; what else is inside a value comes once in it.
    KVL_RETURN_IF_ERROR(CheckInner(key, value, place, key == "items" ? repetition : 1));
  }
  if (ComesBack(schema)) return At(place, "refers to itself without a value between");
  return OkStatus();
}

Status SchemaChecker::CheckKeyword(const std::string& key, const Json& value,
                                   const std::string& place) {
  if (Has(kUnsupported, key) && !(key == "uniqueItems" && value == false)) {
    return At(place, fmt::format("the keyword {} is not supported", key));
  }
  if (key == "$ref") return CheckReference(value, place);
  if (key == "allOf" && value.is_array() && value.size() > 1) {
    return At(place, "allOf of more than one schema is not supported");
  }
  const int64_t n = std::ssize(value);
  if ((key == "anyOf" || key == "oneOf") && value.is_array() && n > limits_.max_alternatives) {
    return At(place,
              fmt::format("{} has {} schemas, allowed are {}", key, n, limits_.max_alternatives));
  }
  if (key == "enum" && value.is_array() && n > limits_.max_enum_values) {
    return At(place, fmt::format("enum has {} values, allowed are {}", n, limits_.max_enum_values));
  }
  return OkStatus();
}

Status SchemaChecker::CheckPattern(const std::string& pattern, const std::string& place) const {
  if (std::ssize(pattern) > limits_.max_pattern_bytes) {
    return At(place, fmt::format("a pattern has {} bytes, allowed are {}", pattern.size(),
                                 limits_.max_pattern_bytes));
  }
  if (HasNestedRepetition(pattern)) {
    return At(place, fmt::format("the pattern '{}' repeats a group in which something is repeated "
                                 "or optional; this is not supported",
                                 pattern));
  }
  return OkStatus();
}

Status SchemaChecker::CheckRepetition(const Json& schema, const std::string& place, bool are_names,
                                      int64_t* repetition) {
  const bool has_texts = limits_.texts_in_grammar || are_names;
  int64_t largest = 1;
  for (const std::string_view key : kRepetitions) {
    const auto entry = schema.find(key);
    if (entry == schema.end()) continue;
    const bool is_negative = !entry->is_number_unsigned() && *entry < 0;
    if (!entry->is_number_integer() || is_negative) {
      return At(place, fmt::format("{} is no whole number from 0 on", key));
    }
    if (!has_texts && (key == "minLength" || key == "maxLength")) continue;
    largest = std::max(largest,
                       static_cast<int64_t>(std::min<uint64_t>(entry->get<uint64_t>(), INT32_MAX)));
  }
  std::vector<std::string> patterns;
  if (schema.contains("pattern")) {
    if (!schema["pattern"].is_string()) return At(place, "pattern is no string");
    if (has_texts) patterns.push_back(schema["pattern"]);
  }
  if (schema.contains("patternProperties") && schema["patternProperties"].is_object()) {
    for (const auto& [pattern, inner] : schema["patternProperties"].items()) {
      patterns.push_back(pattern);
    }
  }
  for (const std::string& pattern : patterns) {
    KVL_RETURN_IF_ERROR(CheckPattern(pattern, place));
    largest = std::max(largest, PatternRepetition(pattern, limits_.max_repetition));
  }
  *repetition *= largest;
  if (*repetition > limits_.max_repetition) {
    return At(place, fmt::format("repeats more than {} times (lengths, counts and {{m,n}} of "
                                 "patterns, multiplied with those of what is around it)",
                                 limits_.max_repetition));
  }
  return OkStatus();
}

Status SchemaChecker::CheckInner(const std::string& key, const Json& value,
                                 const std::string& place, int64_t repetition) {
  const std::string inner = place + "/" + key;
  if (Has(kOfSchema, key)) return CheckSchemaAt(value, inner, repetition, key == "propertyNames");
  if (Has(kOfSchemas, key)) {
    if (!value.is_array() || value.empty()) return At(place, fmt::format("{} is no list", key));
    for (size_t i = 0; i < value.size(); ++i) {
      KVL_RETURN_IF_ERROR(CheckSchemaAt(value[i], fmt::format("{}/{}", inner, i), repetition));
    }
  }
  if (Has(kOfNamedSchemas, key)) {
    if (!value.is_object()) return At(place, fmt::format("{} is no object", key));
    for (const auto& [name, schema] : value.items()) {
      KVL_RETURN_IF_ERROR(CheckSchemaAt(schema, inner + "/" + name, repetition));
    }
  }
  return OkStatus();
}

const Json* SchemaChecker::Referred(const Json& reference) const {
  const std::string text = reference.get<std::string>();
  if (text == "#") return &root_;
  if (!text.starts_with("#/") || text.find('%') != std::string::npos) return nullptr;
  const Json* found = &root_;
  for (size_t begin = 2; begin <= text.size();) {
    const size_t end = std::min(text.find('/', begin), text.size());
    const std::string key = text.substr(begin, end - begin);
    if (!found->is_object() || !found->contains(key)) return nullptr;
    found = &(*found)[key];
    begin = end + 1;
  }
  return found;
}

Status SchemaChecker::CheckReference(const Json& reference, const std::string& place) {
  if (!reference.is_string()) return At(place, "$ref is no string");
  if (Referred(reference) == nullptr) {
    return At(place, fmt::format("$ref '{}' is not found; it is '#' or '#/' and keys of objects in "
                                 "this schema",
                                 reference.get<std::string>().substr(0, 100)));
  }
  return OkStatus();
}

// Whether a value of the schema begins with a value of the same schema: through $ref and
// alternatives alone.
bool SchemaChecker::ComesBack(const Json& schema) {
  if (!schema.is_object() || ending_.contains(&schema)) return false;
  if (!path_.insert(&schema).second) return true;
  bool comes_back = false;
  if (const auto reference = schema.find("$ref");
      reference != schema.end() && reference->is_string()) {
    const Json* referred = Referred(*reference);
    comes_back = referred != nullptr && ComesBack(*referred);
  }
  for (const char* key : {"anyOf", "oneOf", "allOf"}) {
    const auto list = schema.find(key);
    if (list == schema.end() || !list->is_array()) continue;
    for (const Json& inner : *list) comes_back = comes_back || ComesBack(inner);
  }
  path_.erase(&schema);
  if (!comes_back) ending_.insert(&schema);
  return comes_back;
}

}  // namespace

Status CheckSchema(const Json& schema, const SchemaLimits& limits) {
  return SchemaChecker(schema, limits).Check();
}

}  // namespace kvlathe
