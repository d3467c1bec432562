// How the templates of a family write tools, calls of them and their answers, as data: every family
// whose templates have tools is one ToolFormat.
#pragma once

#include <string>
#include <string_view>

namespace kvlathe {

// A call of a function as a model writes it, and as a template repeats it in later turns.
enum class ToolCallSyntax {
  kTagged,  // <tool_call>\n{"name": NAME, "arguments": {...}}\n</tool_call>, any number of them
  kJson,    // {"name": NAME, "parameters": {...}}, all of the answer
};

struct ToolFormat {
  struct Around {
    std::string prefix;
    std::string suffix;
  };
  enum class Place {
    kSystem,     // behind the system message, in its turn, which is there for them if need be
    kOwnSystem,  // a system turn of its own, in front of all messages
    kFirstUser,  // in front of the first message of the user, in its turn
  };
  enum class Definition {
    kJson,          // as the request has it, on one line
    kJsonIndented,  // the same, indented by 4
    kSignature,     // with a Python signature in its description (Hermes)
    kFunctionList,  // all of them in one JSON array of their functions, indented by 2
  };
  enum class Answer {
    kText,        // as it is
    kJsonString,  // quoted and escaped
    kNamed,       // {"name": NAME, "response": TEXT}
  };

  std::string name;  // for messages: "qwen"
  ToolCallSyntax syntax = ToolCallSyntax::kTagged;

  Place place = Place::kSystem;
  std::string after_system;  // kSystem: between a system message and the list
  std::string environment;   // in front of the system message where there are tools
  Around list;               // around all definitions
  Around definition;         // around each
  std::string between_definitions;
  Definition definition_style = Definition::kJson;

  Around call;              // around name and arguments of each; calls stand on lines of their own
  std::string call_middle;  // between them
  bool has_one_call = false;            // a message with more is refused, as the template does
  bool drops_content_of_calls = false;  // of a message with calls only these are printed

  Around answers;                     // the turn of a tool's answer
  bool joins_answers = true;          // answers in a row share one turn, each on lines of its own
  bool ends_line_of_answers = false;  // a line feed behind the last answer of a turn, unless it is
                                      // the conversation's last message
  Around answer;                      // around each
  Answer answer_style = Answer::kText;
  bool needs_tools = false;  // the template with tools is another one than that without
};

// Qwen2.5 and Qwen3.
ToolFormat QwenTools();
// The "tool_use" template of Hermes 2 Pro and Hermes 3.
ToolFormat HermesTools();
// Llama 3.1 to 3.3.
ToolFormat Llama31Tools();
// What Google documents for Gemma 3 (docs/decisions/gemma-tools-in-the-user-turn.md).
ToolFormat Gemma3Tools();

}  // namespace kvlathe
