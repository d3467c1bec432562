#include "structured/answer_structure.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "chat/reading/call_readers.h"
#include "chat/reading/marked_arguments.h"
#include "chat/reading/text_compare.h"
#include "structured/call_grammar.h"
#include "structured/schema_cost.h"
#include "structured/schema_format.h"

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;

Json ObjectSchema() { return {{"type", "object"}}; }

Json Structure(Json format) { return {{"type", "structural_tag"}, {"format", std::move(format)}}; }

}  // namespace

StatusOr<Json> JsonBySchema(const Json& schema, const SchemaLimits& limits) {
  KVL_RETURN_IF_ERROR(CheckSchema(schema, limits));
  KVL_ASSIGN_OR_RETURN(Json format, FormatOfSchema(schema, TextRules::kFollowed));
  Json structure = Structure(std::move(format));
  structure[kFollowedKey] = {
      {"thoughts_end", ""}, {"fronts", Json::array()}, {"schemas", Json::array({schema})}};
  return structure;
}

Json AnyJsonObject() { return Structure(*FormatOfSchema(ObjectSchema(), TextRules::kFollowed)); }

namespace {

// Where arguments stand whose texts are followed. None: the grammar holds them.
Json FollowedCalls(const CallFormat& format, std::span<const CallableTool> tools,
                   const CallRules& rules) {
  Json followed = {
      {"thoughts_end", rules.thoughts_end}, {"fronts", Json::array()}, {"schemas", Json::array()}};
  for (const CallableTool& tool : tools) {
    const std::optional<std::string> front = FrontOfArguments(format, tool.name);
    if (!front || tool.parameters.is_null()) continue;
    followed["fronts"].push_back(*front);
    followed["schemas"].push_back(tool.parameters);
  }
  return followed;
}

StatusOr<Json> CallTags(const CallFormat& format, std::span<const CallableTool> tools, bool is_one,
                        SchemaLimits limits) {
  limits.texts_in_grammar = !tools.empty() && !FrontOfArguments(format, tools[0].name);
  Json tags = Json::array();
  int64_t cost = 0;
  for (const CallableTool& tool : tools) {
    if (!tool.parameters.is_null()) {
      Status status = CheckSchema(tool.parameters, limits);
      if (!status.ok()) {
        return Error(StatusCode::kInvalidArgument, "the parameters of the tool {}: {}", tool.name,
                     MessageOf(status));
      }
      cost += SchemaCost(tool.parameters, limits.texts_in_grammar);
    }
    if (cost > limits.max_cost) {
      return Error(
          StatusCode::kInvalidArgument,
          "the parameters of the tools up to {} would take too long to become a grammar "
          "(an estimated {} states, allowed are {}); give fewer tools, or fewer or shorter "
          "bounds of lengths, patterns and multiples",
          tool.name, cost, limits.max_cost);
    }
    StatusOr<Json> tag = CallTag(format, tool.name, tool.parameters, is_one);
    if (!tag.ok()) {
      return Error(tag.status().code(), "the parameters of the tool {}: {}", tool.name,
                   MessageOf(tag.status()));
    }
    tags.push_back(*std::move(tag));
  }
  return tags;
}

}  // namespace

namespace {

StatusOr<Json> CallsInText(CallFormat format, std::span<const CallableTool> tools,
                           const CallRules& rules, const SchemaLimits& limits) {
  const bool is_bare = IsBareJson(format);
  const bool is_one = !rules.has_many_calls || format.is_one_call;
  const bool has_section = !TrimBlanks(format.section_begin).empty();
  KVL_ASSIGN_OR_RETURN(Json tags, CallTags(format, tools, is_one, limits));
  if (!rules.must_call && !is_bare && !has_section && format.call_begin.empty()) {
    return Error(StatusCode::kUnimplemented,
                 "this model writes no mark in front of a call, so that a grammar of answers that "
                 "may call cannot tell calls from text; leave strict and parallel_tool_calls to "
                 "the model, or set tool_choice to \"required\"");
  }
  if (!rules.must_call && !is_bare && !has_section) {
    return Structure({{"type", "triggered_tags"},
                      {"triggers", {FirstMark(format.call_begin)}},
                      {"tags", std::move(tags)},
                      {"at_least_one", false},
                      {"stop_after_first", is_one}});
  }
  Json calls = {{"type", "tags_with_separator"},
                {"tags", std::move(tags)},
                {"separator", format.between},
                {"at_least_one", true},
                {"stop_after_first", is_one}};
  if (has_section && !rules.must_call && !is_bare) {
    // Behind calls that nothing ends no other may stand beside text.
    if (format.section_end.empty()) calls["stop_after_first"] = true;
    Json section = {{"type", "tag"},
                    {"begin", format.section_begin},
                    {"content", std::move(calls)},
                    {"end", EndsOfCalls(format.section_end)}};
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
    parts.push_back({{"type", "regex"}, {"pattern", "[ \\n]{0,4}"}});
  }
  if (!format.section_begin.empty()) parts.push_back(ConstText(format.section_begin));
  parts.push_back(std::move(calls));
  if (!format.section_end.empty()) {
    const Json ends = EndsOfCalls(format.section_end);
    parts.push_back(ends.is_array() ? Json{{"type", "or"},
                                           {"elements", {ConstText(ends[0]), ConstText(ends[1])}}}
                                    : ConstText(ends));
  }
  Json all = SequenceOf(std::move(parts));
  if (rules.must_call) return Structure(std::move(all));
  // All of an answer is calls, or it is text: which, its first character says.
  Json text = {{"type", "regex"}, {"pattern", "([^{\\[\\s`][\\s\\S]*)?"}};
  return Structure({{"type", "or"}, {"elements", {std::move(all), std::move(text)}}});
}

}  // namespace

StatusOr<Json> ToolCalls(const CallFormat& found, std::span<const CallableTool> tools,
                         const CallRules& rules, const SchemaLimits& limits) {
  CallFormat format = found;
  if (!rules.must_call && !IsBareJson(format)) {  // what text may go over to begins with a mark
    std::string& opening =
        TrimBlanks(format.section_begin).empty() ? format.call_begin : format.section_begin;
    opening.erase(0, std::min(opening.find_first_not_of(" \t\r\n"), opening.size()));
  }
  KVL_ASSIGN_OR_RETURN(Json structure, CallsInText(format, tools, rules, limits));
  Json followed = FollowedCalls(format, tools, rules);
  if (!followed["fronts"].empty()) structure[kFollowedKey] = std::move(followed);
  return structure;
}

}  // namespace kvlathe
