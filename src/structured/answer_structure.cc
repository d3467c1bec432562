#include "structured/answer_structure.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "chat/call_readers.h"
#include "chat/marked_arguments.h"
#include "chat/text_compare.h"
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

namespace {

// How XGrammar names what stands between a call's name and its end; empty: it cannot write that.
std::string StyleOf(const CallFormat& format) {
  if (format.arguments == CallFormat::Arguments::kJson) return "json";
  if (format.arguments == CallFormat::Arguments::kPython) return "";
  const std::string_view key = TrimBlanks(format.key_begin);
  if (key == "<parameter=") return "qwen_xml";
  if (key == "<parameter name=\"") return "minimax_xml";
  if (key == "<arg_key>") return "glm_xml";
  return "";
}

Json Text(const std::string& text) { return {{"type", "const_string"}, {"value", text}}; }

// In front of the arguments of a call of a tool, and behind them.
std::pair<std::string, std::string> AroundArguments(const CallFormat& format,
                                                    const std::string& name) {
  if (!format.is_object || !format.name_end.empty()) {
    const std::string written = format.ids_hold_names ? "functions." + name + ":0" : name;
    return {format.call_begin + written + format.name_end, format.call_end};
  }
  // An object that the template writes in another order.
  return {format.call_begin.substr(0, format.call_begin.find('{')) + "{\"" + format.name_key +
              "\": \"" + name + "\", \"" + format.arguments_key + "\": ",
          "}" + format.call_end};
}

StatusOr<Json> CallTags(const CallFormat& format, std::span<const CallableTool> tools,
                        const SchemaLimits& limits) {
  const std::string style = StyleOf(format);
  if (style.empty()) {
    return Error(StatusCode::kUnimplemented,
                 "this model writes calls in a form that no grammar here describes; leave "
                 "tool_choice, strict and parallel_tool_calls to the model");
  }
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
    const auto [begin, end] = AroundArguments(format, tool.name);
    Json content = ByCheckedSchema(tool.parameters.is_null() ? ObjectSchema() : tool.parameters);
    if (style != "json") content["style"] = style;
    tags.push_back(
        {{"type", "tag"}, {"begin", begin}, {"content", std::move(content)}, {"end", end}});
  }
  return tags;
}

}  // namespace

StatusOr<Json> ToolCalls(const CallFormat& found, std::span<const CallableTool> tools,
                         const CallRules& rules, const SchemaLimits& limits) {
  // Where the model would make up an id, the grammar writes one that nobody reads.
  CallFormat format = found;
  for (std::string* const text : {&format.section_begin, &format.section_end, &format.call_begin,
                                  &format.name_end, &format.call_end, &format.between}) {
    std::ranges::replace(*text, kAnyWord, '0');
  }
  KVL_ASSIGN_OR_RETURN(Json tags, CallTags(format, tools, limits));
  const bool is_one = !rules.has_many_calls || format.is_one_call;
  const bool has_section = !TrimBlanks(format.section_begin).empty();
  const bool is_bare = IsBareJson(format);
  if (!rules.must_call && !is_bare && !has_section) {
    return Structure({{"type", "triggered_tags"},
                      {"triggers", {FirstMark(format.call_begin)}},
                      {"tags", std::move(tags)},
                      {"at_least_one", false},
                      {"stop_after_first", is_one}});
  }
  Json calls = {{"type", "tags_with_separator"},
                {"tags", std::move(tags)},
                {"separator", format.between.empty() ? "\n" : format.between},
                {"at_least_one", true},
                {"stop_after_first", is_one}};
  if (has_section && !rules.must_call && !is_bare) {
    Json section = {{"type", "tag"},
                    {"begin", TrimBlanks(format.section_begin)},
                    {"content", std::move(calls)},
                    {"end", format.section_end}};
    return Structure({{"type", "triggered_tags"},
                      {"triggers", {FirstMark(format.section_begin)}},
                      {"tags", Json::array({std::move(section)})},
                      {"at_least_one", false},
                      {"stop_after_first", true}});
  }
  Json parts = Json::array();
  if (!rules.thoughts_end.empty()) {
    parts.push_back({{"type", "tag"},
                     {"begin", ""},
                     {"content", {{"type", "any_text"}}},
                     {"end", rules.thoughts_end}});
  }
  if (has_section) parts.push_back(Text(format.section_begin));
  parts.push_back(std::move(calls));
  if (!format.section_end.empty()) parts.push_back(Text(format.section_end));
  Json all = parts.size() == 1 ? parts[0] : Json{{"type", "sequence"}, {"elements", parts}};
  if (rules.must_call) return Structure(std::move(all));
  // All of an answer is calls, or it is text: which, its first character says.
  Json text = {{"type", "regex"}, {"pattern", "([^{\\[\\s`][\\s\\S]*)?"}};
  return Structure({{"type", "or"}, {"elements", {std::move(all), std::move(text)}}});
}

}  // namespace kvlathe
