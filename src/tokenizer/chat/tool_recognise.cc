#include "tokenizer/chat/tool_recognise.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

namespace kvlathe {
namespace {

using Strings = std::vector<std::string>;

bool HasString(const Strings& strings, std::string_view text) {
  return std::ranges::find(strings, text) != strings.end();
}

// All of `needed` are printed, and nothing but these and `others`.
bool PrintsJust(const ScannedTemplate& t, const Strings& needed, const Strings& others) {
  return std::ranges::all_of(needed, [&](const auto& s) { return HasString(t.strings, s); }) &&
         std::ranges::all_of(t.strings, [&](const auto& s) {
           return HasString(needed, s) || HasString(others, s);
         });
}

// What the templates of Qwen2.5 and Qwen3 both print.
Strings QwenStrings() {
  const ToolFormat f = QwenTools();
  return {"<|im_start|>system\n",
          "\n",
          f.list.suffix + "<|im_end|>\n",
          "<|im_end|>\n",
          "<|im_start|>",
          f.call_middle,
          f.call.suffix,
          "<|im_start|>user",
          "\n" + f.answer.prefix,
          f.answer.suffix,
          "<|im_start|>assistant\n"};
}

constexpr std::string_view kQwenDefinitions = "{%fortoolintools%}{{'\n'}}{{tool|tojson}}{%endfor%}";

}  // namespace

std::optional<ToolFormat> RecogniseQwenTools(const ScannedTemplate& t, const ChatFormat& format) {
  const ToolFormat f = QwenTools();
  Strings needed = QwenStrings();
  needed.push_back(f.after_system + f.list.prefix);
  needed.push_back("\n" + f.call.prefix);
  if (format.always_has_system) {
    needed.push_back(format.default_system);
    needed.push_back(format.system.prefix + format.default_system + format.system.suffix);
  }
  if (!PrintsJust(t, needed, {}) || !t.Has(kQwenDefinitions)) return std::nullopt;
  return f;
}

bool IsQwen3(const ScannedTemplate& t) {
  const ToolFormat f = QwenTools();
  Strings needed = QwenStrings();
  for (const std::string& text :
       {f.list.prefix, f.after_system, f.call.prefix, std::string("</think>"),
        std::string("<think>"), std::string("\n<think>\n"), std::string("\n</think>\n\n"),
        std::string("<think>\n\n</think>\n\n")}) {
    needed.push_back(text);
  }
  const std::initializer_list<std::string_view> parts = {
      kQwenDefinitions,
      "{%setcontent=message['content'].split('</think>')[-1].lstrip('\n')%}",
      "=message['content'].split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n')%}",
      "{%ifloop.index0>ns.last_query_index%}{%ifloop.lastor(notloop.lastandreasoning_content)%}",
      "+'\n<think>\n'+reasoning_content.strip('\n')+'\n</think>\n\n'+content.lstrip('\n')}}",
      "enable_thinkingisfalse%}{{'<think>\n\n</think>\n\n'}}",
      "'<|im_start|>'+message['role']+'\n'+message['content']+'<|im_end|>\n'"};
  return PrintsJust(t, needed, {}) &&
         std::ranges::all_of(parts, [&](std::string_view part) { return t.Has(part); });
}

std::optional<ToolFormat> RecogniseLlama31Tools(const ScannedTemplate& t) {
  const ToolFormat f = Llama31Tools();
  const Strings needed = {
      f.environment,
      "Given the following functions, please respond with a JSON for a function call ",
      "with its proper arguments that best answers the given prompt.\n\n",
      "Respond in the format {\"name\": function name, \"parameters\": dictionary of argument name "
      "and its value}.",
      "Do not use variables.\n\n",
      "\n\n",
      f.call.prefix,
      "\", ",
      "\"parameters\": ",
      f.call.suffix,
      f.answers.prefix,
      "<|eot_id|>",
      "<|start_header_id|>user<|end_header_id|>\n\n",
      "<|start_header_id|>assistant<|end_header_id|>\n\n",
      "<|start_header_id|>system<|end_header_id|>\n\n",
      "<|start_header_id|>",
      "<|end_header_id|>\n\n",
      "Cutting Knowledge Date: December 2023\n",
      "Today Date: "};
  // Dates, and what is printed only under names (builtin_tools, tools_in_user_message) that no
  // request sets.
  const Strings others = {
      "26 Jul 2024",
      "26 July 2024",
      "%d %b %Y",
      "Tools: ",
      "equalto",
      "code_interpreter",
      ", ",
      "You have access to the following functions. To call a function, please respond with JSON "
      "for a function call.",
      "<|python_tag|>",
      ".call(",
      "=\"",
      "\"",
      ")",
      "<|eom_id|>"};
  const bool is_known = PrintsJust(t, needed, others) && t.Has("|tojson(indent=4)}}") &&
                        t.Has("settools_in_user_message=true%}") &&
                        t.Has("{{message['content']|tojson}}");
  if (!is_known) return std::nullopt;
  return f;
}

std::optional<ToolFormat> RecogniseHermesTools(const ScannedTemplate& t) {
  const ToolFormat f = HermesTools();
  const Strings needed = {
      "string",
      "str",
      "number",
      "float",
      "integer",
      "int",
      "boolean",
      "bool",
      "list[",
      "]",
      "dict[str, ",
      "dict",
      "Union[",
      "type",
      ",",
      "Any",
      "<|im_start|>system\n",
      f.list.prefix,
      "{\"type\": \"function\", \"function\": ",
      "{\"name\": \"",
      "\", ",
      "\"description\": \"",
      "(",
      ": ",
      ", ",
      ")",
      " -> ",
      " - ",
      "\n\n",
      "    Args:\n",
      "        ",
      "): ",
      "\n    Returns:\n        ",
      "\"",
      ", \"parameters\": ",
      "{}",
      "}",
      "\n",
      " </tools>",
      "Use the following pydantic model json schema for each tool call you will make: "
      "{\"properties\": {\"name\": {\"title\": \"Name\", \"type\": \"string\"}, \"arguments\": "
      "{\"title\": \"Arguments\", \"type\": \"object\"}}, \"required\": [\"name\", \"arguments\"], "
      "\"title\": \"FunctionCall\", \"type\": \"object\"}}\n",
      "For each function call return a json object with function name and arguments within "
      "<tool_call></tool_call> XML tags as follows:\n",
      "<tool_call>\n",
      "{\"name\": <function-name>, \"arguments\": <args-dict>}\n",
      "</tool_call><|im_end|>\n",
      "<|im_start|>",
      "<|im_end|>\n",
      "\n<tool_call>\n",
      "{",
      "\"name\": \"",
      "\"arguments\": ",
      "\n</tool_call>",
      "<|im_start|>tool\n",
      f.answer.prefix,
      "\n</tool_response>\n",
      f.answer.suffix,
      "<|im_end|>",
      "<|im_start|>assistant\n"};
  const bool is_known = PrintsJust(t, needed, {}) && t.Has("{{bos_token}}") &&
                        t.Has("json_to_python_type(json_spec|items)") &&
                        t.Has("loop.previtem['role']!='tool'") &&
                        t.Has("loop.nextitem['role']!='tool'");
  if (!is_known) return std::nullopt;
  return f;
}

}  // namespace kvlathe
