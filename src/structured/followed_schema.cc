#include "structured/followed_schema.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "structured/text_formats.h"

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kTextKeywords[] = {"pattern", "format", "minLength", "maxLength"};

bool HasTextRule(const Json& schema) {
  const auto format = schema.find("format");
  return schema.contains("pattern") || schema.contains("minLength") ||
         schema.contains("maxLength") ||
         (format != schema.end() && format->is_string() &&
          PatternOfFormat(format->get_ref<const std::string&>()));
}

// Of the rules of one schema: about half a second.
constexpr int64_t kMostSteps = 200'000'000;

StatusOr<TextRule> RuleOf(const Json& schema, int64_t* n_steps_left) {
  std::optional<PatternNode> pattern;
  const bool has_pattern = schema.contains("pattern");
  if (has_pattern) {
    KVL_ASSIGN_OR_RETURN(pattern, ParsePattern(schema["pattern"].get<std::string>()));
  }
  if (const auto format = schema.find("format"); format != schema.end() && format->is_string()) {
    const auto its = PatternOfFormat(format->get_ref<const std::string&>());
    if (its && has_pattern) {
      return Error(StatusCode::kInvalidArgument,
                   "format {} beside a pattern is not supported; leave one of them out",
                   format->dump());
    }
    if (its) {
      KVL_ASSIGN_OR_RETURN(pattern, ParsePattern(*its));
    }
  }
  const auto bound = [&](const char* key, int64_t without) {
    const auto entry = schema.find(key);
    if (entry == schema.end()) return without;
    const uint64_t number = entry->get<uint64_t>();
    return static_cast<int64_t>(std::min<uint64_t>(number, TextRule::kAnyLength));
  };
  return TextRule::Make(pattern, bound("minLength", 0), bound("maxLength", TextRule::kAnyLength),
                        n_steps_left);
}

int TypeBit(std::string_view type) {
  if (type == "object") return FollowedSchema::kObject;
  if (type == "array") return FollowedSchema::kArray;
  if (type == "string") return FollowedSchema::kText;
  if (type == "number" || type == "integer") return FollowedSchema::kNumber;
  if (type == "boolean") return FollowedSchema::kBoolean;
  return type == "null" ? FollowedSchema::kNull : 0;
}

int TypeBitOf(const Json& value) {
  return TypeBit(value.is_number() ? "number" : value.type_name());
}

Json ListedValues(const Json& schema) {
  if (schema.contains("const")) return Json::array({schema["const"]});
  return schema.contains("enum") && schema["enum"].is_array() ? schema["enum"] : Json::array();
}

// Keywords whose values are no schemas.
bool IsData(std::string_view key) {
  return key == "enum" || key == "const" || key == "default" || key == "examples" ||
         key == "required";
}
bool NamesSchemas(std::string_view key) {
  return key == "properties" || key == "patternProperties" || key == "$defs" ||
         key == "definitions";
}

}  // namespace

// Makes the shapes of the values of one schema.
class SchemaFollowing {
 public:
  SchemaFollowing(const Json& root, int64_t* n_steps_left, FollowedSchema* made)
      : root_(root), n_steps_left_(n_steps_left), made_(*made) {}

  // The number of a value by `schema`; alternatives are found by Finish.
  StatusOr<int> Add(const Json& schema) {
    if (schema.is_boolean() && schema.get<bool>()) return FollowedSchema::kAny;
    const auto [known, is_new] =
        numbers_.try_emplace(&schema, static_cast<int>(made_.alternatives_.size()));
    const int number = known->second;
    if (!is_new) return number;
    made_.alternatives_.emplace_back();
    if (schema.is_boolean()) return number;
    if (schema.contains("$ref")) {
      leads_to_[number] = {};
      KVL_ASSIGN_OR_RETURN(const int to, Add(*Referred(schema["$ref"].get<std::string>())));
      leads_to_[number].push_back(to);
      return number;
    }
    for (const char* const key : {"anyOf", "oneOf", "allOf"}) {
      if (!schema.contains(key)) continue;
      leads_to_[number] = {};
      for (const Json& inner : schema[key]) {
        KVL_ASSIGN_OR_RETURN(const int to, Add(inner));
        leads_to_[number].push_back(to);
      }
      return number;
    }
    KVL_ASSIGN_OR_RETURN(FollowedSchema::Shape shape, ShapeOf(schema));
    made_.alternatives_[static_cast<size_t>(number)] = {static_cast<int>(made_.shapes_.size())};
    made_.shapes_.push_back(std::move(shape));
    return number;
  }

  void Finish() {
    for (const auto& [number, to] : leads_to_) {
      std::set<int> seen, shapes;
      std::vector<int> open = to;
      while (!open.empty()) {
        const int value = open.back();
        open.pop_back();
        if (!seen.insert(value).second) continue;
        const auto further = leads_to_.find(value);
        if (further != leads_to_.end()) {
          open.insert(open.end(), further->second.begin(), further->second.end());
        } else {
          const std::vector<int>& its = made_.AlternativesOf(value);
          shapes.insert(its.begin(), its.end());
        }
      }
      made_.alternatives_[static_cast<size_t>(number)].assign(shapes.begin(), shapes.end());
    }
  }

 private:
  const Json* Referred(const std::string& reference) const {
    const Json* found = &root_;
    for (size_t begin = 2; begin <= reference.size();) {
      const size_t end = std::min(reference.find('/', begin), reference.size());
      found = &found->at(reference.substr(begin, end - begin));
      begin = end + 1;
    }
    return found;
  }

  StatusOr<int> AddRule(const Json& schema) {
    KVL_ASSIGN_OR_RETURN(TextRule rule, RuleOf(schema, n_steps_left_));
    made_.rules_.push_back(std::move(rule));
    return static_cast<int>(made_.rules_.size()) - 1;
  }

  StatusOr<FollowedSchema::Shape> ShapeOf(const Json& schema);
  Status AddProperties(const Json& schema, FollowedSchema::Shape* shape);
  Status AddItems(const Json& schema, FollowedSchema::Shape* shape);

  const Json& root_;
  int64_t* n_steps_left_;
  FollowedSchema& made_;
  std::map<const Json*, int> numbers_;
  std::map<int, std::vector<int>> leads_to_;  // of references and alternatives
};

StatusOr<FollowedSchema::Shape> SchemaFollowing::ShapeOf(const Json& schema) {
  FollowedSchema::Shape shape;
  if (const auto type = schema.find("type"); type != schema.end()) {
    shape.types = type->is_string() ? TypeBit(type->get<std::string>()) : 0;
    if (type->is_array()) {
      for (const Json& one : *type) {
        shape.types |= one.is_string() ? TypeBit(one.get<std::string>()) : 0;
      }
    }
  }
  if (schema.contains("const") || schema.contains("enum")) {
    int types = 0;
    shape.is_listed = true;
    for (const Json& value : ListedValues(schema)) {
      types |= TypeBitOf(value);
      if (value.is_string()) shape.texts.insert(value.get<std::string>());
    }
    shape.types &= types;
    return shape;
  }
  if (HasTextRule(schema)) {
    KVL_ASSIGN_OR_RETURN(shape.rule, AddRule(schema));
    made_.has_text_rules_ = true;
  }
  KVL_RETURN_IF_ERROR(AddProperties(schema, &shape));
  KVL_RETURN_IF_ERROR(AddItems(schema, &shape));
  return shape;
}

Status SchemaFollowing::AddProperties(const Json& schema, FollowedSchema::Shape* shape) {
  if (const auto properties = schema.find("properties"); properties != schema.end()) {
    for (const auto& [key, inner] : properties->items()) {
      KVL_ASSIGN_OR_RETURN(shape->properties[key], Add(inner));
    }
    shape->other_properties = FollowedSchema::kNone;
  }
  if (const auto named = schema.find("patternProperties"); named != schema.end()) {
    for (const auto& [pattern, inner] : named->items()) {
      KVL_ASSIGN_OR_RETURN(const int rule, AddRule({{"pattern", pattern}}));
      KVL_ASSIGN_OR_RETURN(const int value, Add(inner));
      shape->pattern_properties.emplace_back(rule, value);
    }
    shape->other_properties = FollowedSchema::kNone;
  }
  if (const auto others = schema.find("additionalProperties"); others != schema.end()) {
    shape->other_properties = FollowedSchema::kNone;
    if (*others != false) {
      KVL_ASSIGN_OR_RETURN(shape->other_properties, Add(*others));
    }
  }
  if (const auto required = schema.find("required");
      required != schema.end() && required->is_array()) {
    for (const Json& key : *required) {
      if (key.is_string()) shape->required.insert(key.get<std::string>());
    }
  }
  return OkStatus();
}

Status SchemaFollowing::AddItems(const Json& schema, FollowedSchema::Shape* shape) {
  if (const auto first = schema.find("prefixItems"); first != schema.end()) {
    for (const Json& inner : *first) {
      KVL_ASSIGN_OR_RETURN(const int value, Add(inner));
      shape->first_items.push_back(value);
    }
  }
  for (const char* const key : {"items", "additionalItems"}) {
    const auto items = schema.find(key);
    if (items == schema.end() || (!items->is_object() && !items->is_boolean())) continue;
    KVL_ASSIGN_OR_RETURN(shape->other_items, Add(*items));
    break;
  }
  return OkStatus();
}

StatusOr<FollowedSchema> FollowedSchema::Make(const std::vector<Json>& roots) {
  FollowedSchema made;
  made.shapes_.emplace_back();
  made.alternatives_ = {{0}};
  int64_t n_steps_left = kMostSteps;
  for (const Json& root : roots) {
    SchemaFollowing following(root, &n_steps_left, &made);
    KVL_ASSIGN_OR_RETURN(const int number, following.Add(root));
    following.Finish();
    made.roots_.push_back(number);
  }
  return made;
}

int64_t FollowedSchema::n_bytes() const {
  int64_t n_bytes = std::ssize(shapes_) * static_cast<int64_t>(sizeof(Shape));
  for (const TextRule& rule : rules_) n_bytes += rule.n_bytes();
  return n_bytes;
}

namespace {

// A pattern as XGrammar takes it.
StatusOr<std::string> PatternForGrammar(std::string_view pattern) {
  KVL_ASSIGN_OR_RETURN(const PatternNode node, ParsePattern(pattern));
  const std::optional<std::string> plain = WithoutEscapedCharacters(node);
  if (plain) return "^(?:" + *plain + ")$";
  return Error(
      StatusCode::kInvalidArgument,
      "every text of the pattern '{}' has a quote, a backslash or a control character, "
      "which is not supported for property names, nor for values in calls that are no JSON",
      pattern);
}

Status KeepListedByRule(Json* schema) {
  int64_t n_steps_left = kMostSteps;
  KVL_ASSIGN_OR_RETURN(const TextRule rule, RuleOf(*schema, &n_steps_left));
  Json kept = Json::array();
  for (const Json& value : ListedValues(*schema)) {
    if (!value.is_string() || rule.Takes(value.get<std::string>())) kept.push_back(value);
  }
  if (kept.empty()) {
    return Error(StatusCode::kInvalidArgument,
                 "no value of enum or const is of the pattern and the lengths beside it");
  }
  if (schema->contains("enum")) (*schema)["enum"] = std::move(kept);
  return OkStatus();
}

// What a text may be, as one pattern.
Status PutRuleInPattern(Json* schema) {
  if (!schema->is_object() || !HasTextRule(*schema)) return OkStatus();
  int64_t n_steps_left = kMostSteps;
  KVL_RETURN_IF_ERROR(RuleOf(*schema, &n_steps_left).status());
  const bool has_lengths = schema->contains("minLength") || schema->contains("maxLength");
  std::string pattern;
  if (schema->contains("pattern")) {
    pattern = (*schema)["pattern"].get<std::string>();
  } else if (const auto format = schema->find("format"); format != schema->end()) {
    pattern = PatternOfFormat(format->get<std::string>()).value_or("");
  }
  if (has_lengths && !pattern.empty()) {
    return Error(StatusCode::kInvalidArgument,
                 "lengths beside a pattern or format are not supported for property names, nor for "
                 "values in calls that are no JSON");
  }
  if (has_lengths) {
    const auto bound = [&](const char* key, const char* without) {
      return schema->contains(key) ? (*schema)[key].dump() : std::string(without);
    };
    pattern = "[^]{" + bound("minLength", "0") + "," + bound("maxLength", "") + "}";
  }
  KVL_ASSIGN_OR_RETURN(pattern, PatternForGrammar(pattern));
  for (const char* const key : kTextKeywords) schema->erase(key);
  (*schema)["pattern"] = std::move(pattern);
  return OkStatus();
}

}  // namespace

StatusOr<Json> SchemaForGrammar(const Json& schema, TextRules rules) {
  if (!schema.is_object()) return schema;
  Json rest = schema;
  const bool is_listed = schema.contains("enum") || schema.contains("const");
  if (is_listed && HasTextRule(schema)) KVL_RETURN_IF_ERROR(KeepListedByRule(&rest));
  if (!is_listed && rules == TextRules::kInGrammar) {
    KVL_RETURN_IF_ERROR(PutRuleInPattern(&rest));
  } else {
    for (const char* const key : kTextKeywords) rest.erase(key);
  }
  for (auto& [key, value] : rest.items()) {
    if (IsData(key)) continue;
    if (key == "propertyNames") {
      KVL_RETURN_IF_ERROR(PutRuleInPattern(&value));
    } else if (NamesSchemas(key) && value.is_object()) {
      Json inner = Json::object();
      for (const auto& [name, of] : value.items()) {
        std::string its_name = name;
        if (key == "patternProperties") {
          KVL_ASSIGN_OR_RETURN(its_name, PatternForGrammar(name));
        }
        KVL_ASSIGN_OR_RETURN(inner[its_name], SchemaForGrammar(of, rules));
      }
      value = std::move(inner);
    } else if (value.is_array()) {
      for (Json& inner : value) {
        KVL_ASSIGN_OR_RETURN(inner, SchemaForGrammar(inner, rules));
      }
    } else {
      KVL_ASSIGN_OR_RETURN(value, SchemaForGrammar(value, rules));
    }
  }
  return rest;
}

}  // namespace kvlathe
