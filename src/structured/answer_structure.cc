#include "structured/answer_structure.h"

#include <utility>

#include "structured/schema_cost.h"

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

// White space in a row that generated JSON may have: indentation, but no loop.
constexpr int kMaxSpaces = 24;

// Strings of bounded length by a pattern: XGrammar's own bounds of length let control characters
// pass, which JSON does not have in strings, and its patterns do not. Surrogates are no characters:
// a client would see three for each.
void BoundByPattern(Json* schema, bool names_schemas = false) {
  if (schema->is_array()) {
    for (Json& inner : *schema) BoundByPattern(&inner);
  }
  if (!schema->is_object()) return;
  const auto is_number = [&](const char* key) {
    return schema->contains(key) && (*schema)[key].is_number();
  };
  const bool is_bounded = is_number("minLength") || is_number("maxLength");
  if (!names_schemas && is_bounded && !schema->contains("pattern") && !schema->contains("format")) {
    const std::string least = is_number("minLength") ? (*schema)["minLength"].dump() : "0";
    const std::string most = is_number("maxLength") ? (*schema)["maxLength"].dump() : "";
    schema->erase("minLength");
    schema->erase("maxLength");
    (*schema)["pattern"] = "^[^\\uD800-\\uDFFF]{" + least + "," + most + "}$";
  }
  for (auto& [key, inner] : schema->items()) {
    const bool is_value = key == "enum" || key == "const" || key == "default" || key == "examples";
    if (is_value && !names_schemas) continue;
    const bool are_named =
        key == "properties" || key == "patternProperties" || key == "$defs" || key == "definitions";
    BoundByPattern(&inner, are_named && !names_schemas);
  }
}

Json ByCheckedSchema(Json schema) {
  BoundByPattern(&schema);
  return {{"type", "json_schema"},
          {"json_schema", std::move(schema)},
          {"max_whitespace_cnt", kMaxSpaces}};
}

Json ObjectSchema() { return {{"type", "object"}}; }

Json Structure(Json format) { return {{"type", "structural_tag"}, {"format", std::move(format)}}; }

}  // namespace

StatusOr<Json> JsonBySchema(const Json& schema, const SchemaLimits& limits) {
  KVL_RETURN_IF_ERROR(CheckSchema(schema, limits));
  return Structure(ByCheckedSchema(schema));
}

Json AnyJsonObject() { return Structure(ByCheckedSchema(ObjectSchema())); }

StatusOr<Json> ToolCalls(const ToolFormat& format, std::span<const CallableTool> tools,
                         const CallRules& rules, const SchemaLimits& limits) {
  Json tags = Json::array();
  int64_t cost = 0;
  for (const CallableTool& tool : tools) {
    if (!tool.parameters.is_null()) {
      Status status = CheckSchema(tool.parameters, limits);
      if (!status.ok()) {
        return Error(StatusCode::kInvalidArgument, "the parameters of the tool {}: {}", tool.name,
                     MessageOf(status));
      }
      cost += SchemaCost(tool.parameters);
    }
    if (cost > limits.max_cost) {
      return Error(
          StatusCode::kInvalidArgument,
          "the parameters of the tools up to {} would take too long to become a grammar "
          "(an estimated {} states, allowed are {}); give fewer tools, or fewer or shorter "
          "bounds of lengths, patterns and multiples",
          tool.name, cost, limits.max_cost);
    }
    tags.push_back(
        {{"type", "tag"},
         {"begin", format.call.prefix + tool.name + format.call_middle},
         {"content", ByCheckedSchema(tool.parameters.is_null() ? ObjectSchema() : tool.parameters)},
         {"end", format.call.suffix}});
  }
  const bool is_one = !rules.has_many_calls || format.has_one_call;
  if (!rules.must_call && format.syntax == ToolCallSyntax::kTagged) {
    return Structure({{"type", "triggered_tags"},
                      {"triggers", {"<tool_call>"}},
                      {"tags", std::move(tags)},
                      {"at_least_one", false},
                      {"stop_after_first", is_one}});
  }
  Json calls = {{"type", "tags_with_separator"},
                {"tags", std::move(tags)},
                {"separator", "\n"},
                {"at_least_one", true},
                {"stop_after_first", is_one}};
  if (rules.must_call) return Structure(std::move(calls));
  // All of an answer is calls, or it is text: which, its first character says.
  Json text = {{"type", "regex"}, {"pattern", "([^{\\[\\s`][\\s\\S]*)?"}};
  return Structure({{"type", "or"}, {"elements", {std::move(calls), std::move(text)}}});
}

}  // namespace kvlathe
