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

#include "chat/call_place.h"
#include "chat/chat_template.h"
#include "chat/reading/call_readers.h"
#include "chat/reading/text_compare.h"

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
    return Json{
        {"type", "function"},
        {"function",
         {{"name", name},
          {"description", "Tells something."},
          {"parameters",
           {{"type", "object"}, {"properties", properties}, {"required", Json::array()}}}}}};
  };
  const auto of_type = [](const char* type) {
    return Json{{"type", type}, {"description", "It."}};
  };
  return Json::array(
      {tool("weather", {{"city", of_type("string")},
                        {"days", of_type("integer")},
                        {"exact", of_type("boolean")}}),
       tool("add_all",
            {{"numbers",
              {{"type", "array"}, {"description", "Them."}, {"items", {{"type", "number"}}}}},
             {"of",
              {{"type", "object"},
               {"description", "More."},
               {"properties", {{"a", of_type("string")}}}}},
             {"scale", of_type("number")},
             {"unit", of_type("string")}})});
}

// One call, two, text and thoughts in front of them, and values that are hard to write.
inline const std::vector<std::pair<std::string, SampleAnswer>>& SampleAnswers() {
  static const auto& answers = *new std::vector<std::pair<std::string, SampleAnswer>>{
      {"one", {.calls = {{"weather", {{"city", "Oslo"}, {"days", 3}, {"exact", true}}}}}},
      {"text", {.content = "I look.", .calls = {{"weather", {{"city", "Oslo"}, {"days", 12}}}}}},
      {"thoughts",
       {.thoughts = "A question.", .calls = {{"weather", {{"city", "Oslo"}, {"days", 12}}}}}},
      {"two",
       {.calls = {{"weather", {{"city", "Oslo"}, {"days", 12}}},
                  {"add_all", {{"numbers", {1, 2.5, -3}}, {"unit", "7"}, {"scale", -0.5}}}}}},
      {"same twice",
       {.calls = {{"weather", {{"city", "Oslo"}, {"days", 12}}},
                  {"weather", {{"city", "Rome"}, {"days", 1}}}}}},
      {"odd",
       {.calls = {{"weather",
                   {{"city", "a \"b\"\n\tc\\d é <x>, {y}: 'z' [1] a=b"}, {"days", 0}}}}}},
      {"nested",
       {.calls =
            {{"add_all",
              {{"numbers", nlohmann::json::array()}, {"unit", "true"}, {"of", {{"a", "b, c"}}}}}}}},
      {"empty", {.calls = {{"weather", nlohmann::json::object()}}}},
      {"no text", {.calls = {{"weather", {{"city", ""}, {"exact", false}}}}}},
      {"all",
       {.content = "I look.",
        .thoughts = "A question.",
        .calls = {{"add_all", {{"unit", "m"}, {"numbers", {1}}}},
                  {"weather", {{"city", "Oslo"}}}}}},
  };
  return answers;
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

// Nothing: the template refuses the conversation, or prints none of the calls.
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
  const auto whole =
      made.Render({.messages = {question, message}, .tools = SampleTools(), .opens_answer = false});
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
  // What ends every answer is no part of one, whether it is known as an end or not.
  const Json plain = {{"role", "assistant"}, {"content", "Plain."}};
  const auto other =
      made.Render({.messages = {question, plain}, .tools = SampleTools(), .opens_answer = false});
  if (other.ok() && whole->text.ends_with(sample.text)) {
    const size_t n = CommonSuffix(sample.text, other->text);
    sample.text.erase(sample.text.size() - WholeSuffix(sample.text, n));
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
  // Text behind calls belongs to no answer that ends with them.
  const size_t at_text = sample.text.find(answer.content),
               at_call = sample.text.find(answer.calls[0].first);
  if (!sample.printed.content.empty() && at_text > at_call) {
    sample.text.erase(at_text);
    sample.printed.content.clear();
  }
  size_t from = 0;
  for (size_t i = 0; i < answer.calls.size(); ++i) {
    from = sample.text.find(answer.calls[i].first, from);
    if (from == std::string::npos) {
      if (i == 0) return std::nullopt;
      sample.printed.calls.resize(i);
      break;
    }
    from = sample.text.find_first_of("}])>", from);
  }
  return sample;
}

// The kinds of calls, each with thoughts or without.
struct CallKind {
  const char* name;
  const char* calls;              // of `m`, a message of the assistant
  bool is_bare = false;           // JSON without marks, so that an answer is text or calls
  bool begins_with_name = false;  // a mark stands in front of further calls alone
};

inline constexpr CallKind kCallKinds[] = {
    {"objects in marks",
     "{% for c in m.tool_calls %}<call>{{ {'name': c.function.name, 'arguments': "
     "c.function.arguments} | tojson }}</call>\n{% endfor %}"},
    {"a list in a section",
     "[CALLS][{% for c in m.tool_calls %}{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ "
     "c.function.arguments | tojson }}, \"id\": \"{{ c.id }}\"}{{ ', ' if not loop.last }}"
     "{% endfor %}]"},
    {"other keys in another order",
     "{% for c in m.tool_calls %}<act>{\"parameters\": {{ c.function.arguments | tojson }}, "
     "\"tool\": \"{{ c.function.name }}\"}</act>{% endfor %}"},
    {"an object in an object",
     "{% for c in m.tool_calls %}<call>{\"type\": \"function\", \"function\": {\"name\": \"{{ "
     "c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}}</call>{% endfor "
     "%}"},
    {"a name and JSON",
     "<calls>{% for c in m.tool_calls %}<call>{{ c.function.name }}<sep>\n```json\n{{ "
     "c.function.arguments | tojson }}\n```<end>{% endfor %}</calls>"},
    {"ids between",
     "{% for c in m.tool_calls %}[CALL]{{ c.function.name }}[ID]{{ c.id }}[ARGS]{{ "
     "c.function.arguments | tojson }}{% endfor %}"},
    {"names within ids",
     "<all>{% for c in m.tool_calls %}<begin>{{ c.id }}<args>{{ c.function.arguments | tojson }}"
     "<end>{% endfor %}</all>"},
    {"parameters in marks",
     "{% for c in m.tool_calls %}<call>\n<function={{ c.function.name }}>\n{% for k, v in "
     "c.function.arguments | items %}<parameter={{ k }}>\n{{ v if v is string else v | tojson }}\n"
     "</parameter>\n{% endfor %}</function>\n</call>{% endfor %}"},
    {"keys and values",
     "{% for c in m.tool_calls %}<call>{{ c.function.name }}\n{% for k, v in c.function.arguments "
     "| "
     "items %}<key>{{ k }}</key>\n<value>{{ v if v is string else v | tojson }}</value>\n"
     "{% endfor %}</call>{% endfor %}"},
    {"marked texts",
     "<calls>{% for c in m.tool_calls %}<invoke name=\"{{ c.function.name }}\">{% for k, v in "
     "c.function.arguments | items %}<p name=\"{{ k }}\" string=\"{{ 'true' if v is string else "
     "'false' }}\">{{ v if v is string else v | tojson }}</p>{% endfor %}</invoke>{% endfor %}"
     "</calls>"},
    {"Python",
     "<py>[{% for c in m.tool_calls %}{{ c.function.name }}({% for k, v in c.function.arguments | "
     "items %}{{ k }}={{ v | tojson }}{{ ', ' if not loop.last }}{% endfor %}){{ ', ' if not "
     "loop.last }}{% endfor %}]</py>"},
    {"keys without quotes",
     "{%- macro value(x) -%}{%- if x is string -%}<|\"|>{{ x }}<|\"|>{%- elif x is mapping -%}"
     "{{ '{' }}{%- for k, v in x | items -%}{{ k }}:{{ value(v) }}{{ ',' if not loop.last }}"
     "{%- endfor -%}{{ '}' }}{%- elif x is sequence -%}[{%- for v in x -%}{{ value(v) }}"
     "{{ ',' if not loop.last }}{%- endfor -%}]{%- else -%}{{ x | tojson }}{%- endif -%}"
     "{%- endmacro -%}{% for c in m.tool_calls %}<|call>{{ c.function.name }}"
     "{{ value(c.function.arguments) }}<call|>{% endfor %}"},
    {"names within marks",
     "{% for c in m.tool_calls %}{{ '<|next|>assistant' if not loop.first }} to={{ "
     "c.function.name }}<|message|><invoke name=\"{{ c.function.name }}\">{% for k, v in "
     "c.function.arguments | items %}<p name=\"{{ k }}\">{{ v if v is string else v | tojson }}"
     "</p>{% endfor %}</invoke>{% endfor %}"},
    {"types beside keys",
     "<|open|>tools<|sep|>{% for c in m.tool_calls %}<|open|>call tool=\"{{ c.function.name }}\" "
     "index=\"{{ loop.index }}\"<|sep|>{% for k, v in c.function.arguments | items %}<|open|>"
     "argument key=\"{{ k }}\" type=\"{{ 'string' if v is string else 'boolean' if v is boolean "
     "else 'number' if v is number else 'object' if v is mapping else 'array' }}\"<|sep|>{{ v if v "
     "is string else v | tojson }}<|close|>argument<|sep|>{% endfor %}<|close|>call<|sep|>"
     "{% endfor %}<|close|>tools<|sep|>"},
    {"names in front",
     "{% for c in m.tool_calls %}{{ '>>>' if m.content or not loop.first }}"
     "{{ c.function.name }}\n{{ c.function.arguments | tojson }}{% endfor %}",
     false, true},
    {"bare JSON",
     "{% for c in m.tool_calls %}{\"name\": \"{{ c.function.name }}\", \"parameters\": {{ "
     "c.function.arguments | tojson }}}{% endfor %}",
     true}};

inline std::string TemplateOf(const CallKind& kind, bool thinks) {
  return std::string("{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}") +
         "{% for m in messages %}<|{{ m.role }}|>" +
         (thinks ? "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
                 : "") +
         "{{ m.content or '' }}{% if m.tool_calls %}" + kind.calls +
         "{% endif %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";
}

}  // namespace kvlathe
