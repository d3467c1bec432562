#include "tokenizer/chat/tool_format.h"

namespace kvlathe {

ToolFormat QwenTools() {
  ToolFormat f;
  f.name = "qwen";
  f.after_system = "\n\n";
  f.list = {
      "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
      "You are provided with function signatures within <tools></tools> XML tags:\n<tools>",
      "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
      "within <tool_call></tool_call> XML tags:\n<tool_call>\n"
      "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>"};
  f.definition = {"\n", ""};
  f.call = {"<tool_call>\n{\"name\": \"", "}\n</tool_call>"};
  f.call_middle = "\", \"arguments\": ";
  f.answers = {"<|im_start|>user\n", "<|im_end|>\n"};
  f.answer = {"<tool_response>\n", "\n</tool_response>"};
  return f;
}

ToolFormat HermesTools() {
  ToolFormat f;
  f.name = "hermes";
  f.place = ToolFormat::Place::kOwnSystem;
  f.list = {
      "You are a function calling AI model. You are provided with function signatures within "
      "<tools></tools> XML tags. You may call one or more functions to assist with the user query. "
      "Don't make assumptions about what values to plug into functions. Here are the available "
      "tools: <tools> ",
      " </tools>Use the following pydantic model json schema for each tool call you will make: "
      "{\"properties\": {\"name\": {\"title\": \"Name\", \"type\": \"string\"}, \"arguments\": "
      "{\"title\": \"Arguments\", \"type\": \"object\"}}, \"required\": [\"name\", \"arguments\"], "
      "\"title\": \"FunctionCall\", \"type\": \"object\"}}\nFor each function call return a json "
      "object with function name and arguments within <tool_call></tool_call> XML tags as follows:"
      "\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-dict>}\n</tool_call>"};
  f.between_definitions = "\n";
  f.definition_style = ToolFormat::Definition::kSignature;
  f.call = QwenTools().call;
  f.call_middle = QwenTools().call_middle;
  f.drops_content_of_calls = true;
  f.answers = {"<|im_start|>tool\n", "<|im_end|>"};
  f.ends_line_of_answers = true;
  f.answer = QwenTools().answer;
  f.needs_tools = true;
  return f;
}

ToolFormat Llama31Tools() {
  ToolFormat f;
  f.name = "llama3.1";
  f.syntax = ToolCallSyntax::kJson;
  f.place = ToolFormat::Place::kFirstUser;
  f.environment = "Environment: ipython\n";
  f.list = {
      "Given the following functions, please respond with a JSON for a function call with its "
      "proper arguments that best answers the given prompt.\n\nRespond in the format {\"name\": "
      "function name, \"parameters\": dictionary of argument name and its value}.Do not use "
      "variables.\n\n",
      ""};
  f.definition = {"", "\n\n"};
  f.definition_style = ToolFormat::Definition::kJsonIndented;
  f.call = {"{\"name\": \"", "}"};
  f.call_middle = "\", \"parameters\": ";
  f.has_one_call = true;
  f.drops_content_of_calls = true;
  f.answers = {"<|start_header_id|>ipython<|end_header_id|>\n\n", "<|eot_id|>"};
  f.joins_answers = false;
  f.answer_style = ToolFormat::Answer::kJsonString;
  return f;
}

ToolFormat Gemma3Tools() {
  ToolFormat f;
  f.name = "gemma3";
  f.syntax = ToolCallSyntax::kJson;
  f.place = ToolFormat::Place::kFirstUser;
  f.list = {
      "You have access to functions. If you decide to invoke any of the function(s),\n"
      "you MUST put it in the format of\n"
      "{\"name\": function name, \"parameters\": dictionary of argument name and its value}\n\n"
      "You SHOULD NOT include any other text in the response if you call a function\n",
      "\n\n"};
  f.definition_style = ToolFormat::Definition::kFunctionList;
  f.call = {"{\"name\": \"", "}"};
  f.call_middle = "\", \"parameters\": ";
  f.answers = {"<start_of_turn>user\n", "<end_of_turn>\n"};
  f.answer_style = ToolFormat::Answer::kNamed;
  return f;
}

}  // namespace kvlathe
