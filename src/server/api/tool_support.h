// A ToolSupport makes a conversation into a prompt, and an answer into content and tool calls: it
// is the seam between the routes of chat and whatever knows the templates with tools and the
// grammars.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "chat/chat_template.h"
#include "chat/reading/answer_reader.h"
#include "engine/token_constraint.h"

namespace kvlathe::api {

// Keys keep the order in which the request has them, as templates print schemas.
using Json = nlohmann::ordered_json;
using kvlathe::AnswerDelta;
using kvlathe::AnswerReader;

struct ToolCall {
  std::string id;         // as the client knows it: "call_..."
  std::string name;       // of the function
  std::string arguments;  // JSON text, as the client sent it back: not checked
};

struct ChatTurn {
  std::string role;     // system (also what came as developer), user, assistant or tool
  std::string content;  // text parts are joined; empty where the message has none
  Json parts;  // the content as the request has it, if it is a list of text parts; else null
  std::string thoughts;  // of assistant: what it thought before it answered (reasoning_content)
  std::vector<ToolCall> tool_calls;  // of assistant
  std::string tool_call_id;          // of tool
  std::string name;                  // optional, of any role
};

struct ToolDefinition {
  std::string name;         // [A-Za-z0-9_-], 1 to 64 characters, unique in the request
  std::string description;  // may be empty
  Json parameters;          // JSON schema, an object; null where the function has none
  bool is_strict = false;
  Json json;  // as the request has it, {"type":"function","function":{...}}: what templates print
};

struct ToolChoice {
  enum class Kind { kNone, kAuto, kRequired, kNamed };
  Kind kind = Kind::kAuto;
  std::string name;  // kNamed: one of the tools
};

struct ResponseFormat {
  enum class Kind { kText, kJsonObject, kJsonSchema };
  Kind kind = Kind::kText;
  std::string name;  // kJsonSchema
  Json schema;       // kJsonSchema: an object
  bool is_strict = false;
};

// What a request asks of the next answer. Shapes are checked (types, roles, names, lengths);
// whether a template or a grammar can serve it is not.
struct ChatTask {
  std::vector<ChatTurn> turns;        // at least one
  std::vector<ToolDefinition> tools;  // none where tool_choice is "none"
  ToolChoice tool_choice;
  bool parallel_tool_calls = true;
  ResponseFormat response_format;
  // What a request gives in chat_template_kwargs, an object (vLLM's enable_thinking), or null.
  Json template_arguments;
  Json documents;               // a list of objects for templates that know them, or null
  bool opens_answer = true;     // add_generation_prompt
  bool continues_last = false;  // continue_final_message
};

// What a task becomes.
struct ChatPrompt {
  MarkedText text;  // to be tokenized with the special tokens that no user wrote
  // One for each answer (a request may ask for several). Null: nothing constrains tokens. Errors
  // are those of the grammar.
  std::function<StatusOr<std::shared_ptr<TokenConstraint>>()> make_constraint;
  // Likewise. Null: everything is content.
  std::function<std::unique_ptr<AnswerReader>()> make_parser;
  // Whether the parser sees special tokens as their text; otherwise they are left out.
  bool keeps_special_tokens = false;
};

// Any number of threads may use one.
class ToolSupport {
 public:
  virtual ~ToolSupport() = default;

  // The prompt for the next answer. kInvalidArgument: the conversation cannot be rendered or a
  // schema is wrong (HTTP 400); kUnimplemented: well-formed, but this template or this build does
  // not support it, by the name of the field (HTTP 400, code unsupported_parameter).
  virtual StatusOr<ChatPrompt> Render(const ChatTask& task) const = 0;
};

// The conversation of a task for a template.
ChatConversation ConversationOf(const ChatTask& task);

// Text alone, by a template. Tools, tool calls in messages and every response_format but text are
// refused by name.
class TextOnlySupport : public ToolSupport {
 public:
  // `chat_template` outlives it; null: the model has none, and everything is refused.
  explicit TextOnlySupport(const ChatTemplate* chat_template) : template_(chat_template) {}
  StatusOr<ChatPrompt> Render(const ChatTask& task) const override;

 private:
  const ChatTemplate* template_;
};

}  // namespace kvlathe::api
