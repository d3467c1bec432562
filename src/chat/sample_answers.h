// Answers of an assistant for tests: rendered by a template, cut out as a model would have
// generated them, and read again.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/call_readers.h"
#include "chat/chat_template.h"
#include "chat/text_compare.h"

namespace kvlathe {

struct SampleAnswer {
  std::string content, thoughts;
  std::vector<std::pair<std::string, nlohmann::json>> calls;  // name, arguments

  bool operator==(const SampleAnswer&) const = default;
};

// "weather" and "add".
inline nlohmann::ordered_json SampleTools() {
  using Json = nlohmann::ordered_json;
  const auto tool = [](const char* name, const Json& properties) {
    return Json{{"type", "function"},
                {"function",
                 {{"name", name},
                  {"description", "Tells something."},
                  {"parameters",
                   {{"type", "object"}, {"properties", properties}, {"required", Json::array()}}}}}};
  };
  const auto of_type = [](const char* type) { return Json{{"type", type}, {"description", "It."}}; };
  return Json::array({tool("weather", {{"city", of_type("string")},
                                       {"days", of_type("integer")},
                                       {"exact", of_type("boolean")}}),
                      tool("add_all", {{"numbers",
                                        {{"type", "array"},
                                         {"description", "Them."},
                                         {"items", {{"type", "number"}}}}},
                                       {"unit", of_type("string")},
                                       {"scale", of_type("number")},
                                       {"of",
                                        {{"type", "object"},
                                         {"description", "More."},
                                         {"properties", {{"a", of_type("string")}}}}}})});
}

inline ToolSchemas SampleSchemas() {
  ToolSchemas schemas;
  for (const nlohmann::ordered_json& tool : SampleTools()) {
    schemas[tool["function"]["name"]] = tool["function"]["parameters"];
  }
  return schemas;
}

// In pieces of n_step bytes.
inline SampleAnswer ReadSample(const AnswerFormat& format, const ToolSchemas& tools,
                               std::string_view text, size_t n_step) {
  const auto reader = MakeAnswerReader(format, tools);
  SampleAnswer read;
  std::vector<std::string> arguments;
  const auto take = [&](const AnswerDelta& delta) {
    read.content += delta.content;
    read.thoughts += delta.thoughts;
    for (const AnswerDelta::Call& call : delta.calls) {
      if (!call.name.empty()) {
        read.calls.push_back({call.name, nullptr});
        arguments.emplace_back();
      }
      arguments.at(static_cast<size_t>(call.call_idx)) += call.arguments;
    }
  };
  for (size_t pos = 0; pos < text.size(); pos += n_step) {
    take(reader->Push(text.substr(pos, n_step)));
  }
  take(reader->Finish());
  for (size_t i = 0; i < arguments.size(); ++i) {
    read.calls[i].second = nlohmann::json::parse(arguments[i], nullptr, false);
  }
  return read;
}

struct RenderedSample {
  std::string text;      // as a model generates it, without what ends it
  AnswerFormat format;   // with thoughts that are open if the prompt begins them
  SampleAnswer printed;  // what of the answer is in the text: templates leave parts out
};

// Nothing: the template refuses the conversation. `enables_thoughts` is given to it as
// enable_thinking.
inline std::optional<RenderedSample> RenderSample(const ChatTemplate& made,
                                                  const SampleAnswer& answer) {
  using Json = nlohmann::ordered_json;
  const Json question = {{"role", "user"}, {"content", "What now?"}};
  Json message = {{"role", "assistant"}, {"content", answer.content}};
  if (!answer.thoughts.empty()) message["reasoning_content"] = answer.thoughts;
  int n_calls = 0;
  for (const auto& [name, arguments] : answer.calls) {
    message["tool_calls"].push_back(
        {{"id", "callid00" + std::to_string(++n_calls)},
         {"type", "function"},
         {"function", {{"name", name}, {"arguments", arguments.dump()}}}});
  }
  const auto opened = made.Render({.messages = {question}, .tools = SampleTools()});
  const auto whole = made.Render(
      {.messages = {question, message}, .tools = SampleTools(), .opens_answer = false});
  if (!opened.ok() || !whole.ok()) return std::nullopt;
  RenderedSample sample;
  sample.format = made.answer_format(/*has_tools=*/true);
  sample.printed = answer;
  size_t begin = CommonPrefix(opened->text, whole->text);
  const bool is_whole_prompt = begin == opened->text.size();
  if (!is_whole_prompt) {
    // The prompt of an answer is not that of history; a mark is not parted.
    const size_t open = whole->text.find_last_of("<[", begin == 0 ? 0 : begin - 1);
    const char close = whole->text[open] == '<' ? '>' : ']';
    if (whole->text.substr(open, begin - open).find(close) == std::string::npos) begin = open;
  }
  sample.text = whole->text.substr(begin);
  if (sample.format.thoughts) {
    ThoughtFormat& thoughts = *sample.format.thoughts;
    const std::string_view mark = TrimBlanks(thoughts.begin);
    thoughts.is_open = !mark.empty() && TrimBlanks(opened->text).ends_with(mark);
    // A prompt that thoughts are not asked for begins them as an answer with thoughts does.
    const std::string_view before = TrimBlanks(std::string_view(whole->text).substr(0, begin));
    if (!thoughts.is_open && before.ends_with(mark)) {
      sample.text = std::string(mark) + sample.text;
    }
    // An answer whose prompt was one without thoughts.
    if (sample.text.find(TrimBlanks(thoughts.end)) == std::string::npos) thoughts.is_open = false;
  }
  for (const std::string& end : sample.format.ends) {
    sample.text.erase(std::min(sample.text.find(end), sample.text.size()));
  }
  const auto prints = [&](const std::string& text) {
    return sample.text.find(TrimBlanks(text)) != std::string::npos;
  };
  if (!prints(answer.thoughts)) sample.printed.thoughts.clear();
  if (!prints(answer.content)) sample.printed.content.clear();
  const std::optional<ThoughtFormat>& thoughts = sample.format.thoughts;
  if (thoughts && !answer.content.empty() && answer.thoughts.empty() &&
      prints(std::string(TrimBlanks(thoughts->begin)) + answer.content)) {
    std::swap(sample.printed.content, sample.printed.thoughts);
  }
  size_t from = 0;
  for (size_t i = 0; i < answer.calls.size(); ++i) {
    from = sample.text.find(answer.calls[i].first, from);
    if (from == std::string::npos) {
      sample.printed.calls.resize(i);
      break;
    }
    from = sample.text.find_first_of("}])>", from);
  }
  return sample;
}

}  // namespace kvlathe
