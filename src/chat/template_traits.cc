#include "chat/template_traits.h"

#include <string_view>
#include <utility>
#include <vector>

#include "chat/reading/text_compare.h"

namespace kvlathe {
namespace {

using Json = nlohmann::ordered_json;
using NoContent = TemplateTraits::NoContent;

constexpr const char* kSystem = "kvl-system";
constexpr const char* kProbeThoughts = "kvl-thoughts";
constexpr const char* kProbeAnswer = "kvl-answer";
constexpr const char* kToolName = "kvl_first";
constexpr const char* kCity = "kvl-city";

bool Has(const std::optional<std::string>& text, std::string_view part) {
  return text && text->find(part) != std::string::npos;
}

Json Parts(const char* text) { return Json::array({{{"type", "text"}, {"text", text}}}); }

// Whether the call is printed, with arguments that are JSON or in marks of their own. Python's form
// of an object is how a template prints one that expects text.
bool PrintsCall(const std::optional<std::string>& text) {
  return Has(text, kCity) && !Has(text, "{'city'") && !Has(text, "{\\\"city");
}

void FindCallTraits(const TemplateProber& prober, TemplateTraits* traits) {
  const Json tools = Json::array({ProbeTool(kToolName)});
  for (const bool holds_names : {false, true}) {
    for (const bool are_objects : {true, false}) {
      for (const NoContent no_content : {NoContent::kNull, NoContent::kEmpty, NoContent::kAbsent}) {
        TemplateTraits tried = *traits;
        tried.arguments_are_objects = are_objects;
        tried.no_content = no_content;
        tried.ids_hold_names = holds_names;
        const ProbeCall call = {
            kToolName,
            {{"city", kCity}, {"days", 3}},
            holds_names ? std::string("functions.") + kToolName + ":0" : kProbeCallId};
        const auto text = prober.Render(
            {.messages = Json::array({ProbeQuestion(*traits), ProbeAnswer(tried, {call})}),
             .tools = tools});
        const auto without =
            prober.Render({.messages = Json::array({ProbeQuestion(*traits)}), .tools = tools});
        if (!text) continue;
        const std::string added = text->substr(without ? CommonPrefix(*text, *without) : 0);
        if (!PrintsCall(added) || !Has(added, kToolName)) continue;
        *traits = tried;
        traits->takes_calls = true;
        return;
      }
    }
  }
}

std::string FindThoughtsField(const TemplateProber& prober, const TemplateTraits& traits) {
  for (const char* const field : {"reasoning_content", "reasoning", "thinking", "thoughts"}) {
    Json answer = {{"role", "assistant"},
                   {"content", ProbeContent(traits, kProbeAnswer)},
                   {field, kProbeThoughts}};
    for (const Json& arguments : {Json(nullptr), Json{{"enable_thinking", true}}}) {
      if (Has(prober.Render({.messages = Json::array({ProbeQuestion(traits), answer}),
                             .arguments = arguments}),
              kProbeThoughts)) {
        return field;
      }
    }
    if (!traits.takes_calls) continue;
    answer = ProbeAnswer(
        traits,
        {{kToolName,
          {{"city", kCity}},
          traits.ids_hold_names ? std::string("functions.") + kToolName + ":0" : kProbeCallId}});
    answer[field] = kProbeThoughts;
    if (Has(prober.Render({.messages = Json::array({ProbeQuestion(traits), answer}),
                           .tools = Json::array({ProbeTool(kToolName)})}),
            kProbeThoughts)) {
      return field;
    }
  }
  return "";
}

}  // namespace

std::optional<std::string> TemplateProber::Render(const Probe& probe) const {
  Json globals = probe.arguments.is_object() ? probe.arguments : Json::object();
  globals["messages"] = probe.messages;
  globals["tools"] = probe.tools;
  globals["documents"] = nullptr;
  Json trusted = tokens_;
  trusted["add_generation_prompt"] = probe.opens_answer;
  auto rendered = program_.Render(globals, trusted);
  if (!rendered.ok()) return std::nullopt;
  return std::move(rendered->text);
}

Json ProbeTool(const std::string& name) {
  return {{"type", "function"},
          {"function",
           {{"name", name},
            {"description", "Tells the weather."},
            {"parameters",
             {{"type", "object"},
              {"properties",
               {{"city", {{"type", "string"}, {"description", "A place."}}},
                {"days", {{"type", "integer"}, {"description", "How many."}}}}},
              {"required", Json::array({"city"})}}}}}};
}

Json ProbeAnswer(const TemplateTraits& traits, const std::vector<ProbeCall>& calls) {
  Json message = {{"role", "assistant"}};
  if (traits.no_content == NoContent::kNull) message["content"] = nullptr;
  if (traits.no_content == NoContent::kEmpty) message["content"] = "";
  Json list = Json::array();
  for (const ProbeCall& call : calls) {
    const Json arguments =
        traits.arguments_are_objects ? call.arguments : Json(call.arguments.dump());
    list.push_back({{"id", call.id},
                    {"type", "function"},
                    {"function", {{"name", call.name}, {"arguments", arguments}}}});
  }
  message["tool_calls"] = std::move(list);
  return message;
}

Json ProbeContent(const TemplateTraits& traits, const char* text) {
  return traits.takes_text ? Json(text) : Parts(text);
}

Json ProbeQuestion(const TemplateTraits& traits) {
  return {{"role", "user"}, {"content", ProbeContent(traits, kProbeQuestionText)}};
}

TemplateTraits FindTraits(const TemplateProber& prober) {
  TemplateTraits traits, in_parts;
  in_parts.takes_text = false;
  const auto ask = [&](const TemplateTraits& how) {
    return prober.Render({.messages = Json::array({ProbeQuestion(how)}), .opens_answer = true});
  };
  const auto parts = ask(in_parts);
  traits.takes_text = Has(ask(traits), kProbeQuestionText);
  traits.takes_parts =
      Has(parts, kProbeQuestionText) && !Has(parts, "'type'") && !Has(parts, "\"type\"");
  if (!traits.takes_parts) traits.takes_text = true;  // whatever it makes of it
  const Json system = {{"role", "system"}, {"content", ProbeContent(traits, kSystem)}};
  for (const Json& tools : {Json(nullptr), Json::array({ProbeTool(kToolName)})}) {
    const auto with_system =
        prober.Render({.messages = Json::array({system, ProbeQuestion(traits)}),
                       .tools = tools,
                       .opens_answer = true});
    traits.takes_system = Has(with_system, kSystem);
    if (traits.takes_system) break;
  }
  traits.takes_tools = Has(prober.Render({.messages = Json::array({ProbeQuestion(traits)}),
                                          .tools = Json::array({ProbeTool(kToolName)}),
                                          .opens_answer = true}),
                           kToolName);
  FindCallTraits(prober, &traits);
  traits.thoughts_field = FindThoughtsField(prober, traits);
  return traits;
}

}  // namespace kvlathe
