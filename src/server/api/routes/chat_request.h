// A chat has these fields: messages, tools and the form of the answer.
#pragma once

#include "server/api/request_fields.h"
#include "server/api/service_state.h"

namespace kvlathe::api {

// Reads what /v1/chat/completions (and /tokenize, /apply-template) has of a conversation: messages,
// tools, tool_choice, parallel_tool_calls, response_format, documents, add_generation_prompt,
// continue_final_message and chat_template_kwargs.
StatusOr<ChatTask> ReadChatTask(const ServiceState& state, RequestFields* fields);

// A text, or a list of parts {"type": one of `types`, "text"}, which are put together. Null: "".
// kInvalidArgument for everything else, kUnimplemented for parts of other types, by name.
StatusOr<std::string> ReadContent(const Json* content, const std::string& path,
                                  std::span<const std::string_view> types);

// One function: name, description, parameters and strict. `path` is of `function`.
StatusOr<ToolDefinition> ReadFunction(const Json& function, const std::string& path);
// The field "tools" of a request, each {"type": "function"} with what describes the function in
// `function` (chat) or beside the type (responses).
enum class ToolShape { kNested, kFlat };
Status ReadToolList(const ServiceState& state, ToolShape shape, RequestFields* fields,
                    ChatTask* task);
// "none", "auto" or "required"; `named` is the name in an object, if it was one. Checks that it
// goes with the tools, and drops them for "none".
Status SetToolChoice(const Json* choice, std::optional<std::string> named, ChatTask* task);
// {"type": "text"}, {"type": "json_object"}, or {"type": "json_schema"} with name, schema and
// strict in `schema_fields` (which is the object itself, or its json_schema).
StatusOr<ResponseFormat> ReadFormat(const Json& format, const std::string& path,
                                    bool schema_is_nested);

// The prompt of a task as text, and what goes with it. Errors name the field that the template or
// the grammar does not support.
StatusOr<ChatPrompt> RenderChat(const ServiceState& state, const ChatTask& task,
                                std::string_view messages_param = "messages",
                                std::string_view format_param = "response_format");
StatusOr<std::vector<int32_t>> TokensOf(const ServiceState& state, const ChatPrompt& prompt);
// Both, for an answer: kInvalidArgument also for a text that cannot fit the context.
struct TokenizedChat {
  ChatPrompt prompt;
  std::vector<int32_t> tokens;
};
StatusOr<TokenizedChat> TokenizeChat(const ServiceState& state, const ChatTask& task,
                                     std::string_view messages_param = "messages",
                                     std::string_view format_param = "response_format");

// What an answer may have: the first of the fields `names` that is there, or what is left behind
// the prompt. kInvalidArgument with context_length_exceeded where both do not fit.
StatusOr<int64_t> ReadChatMaxTokens(const ServiceState& state,
                                    std::span<const std::string_view> names, int64_t n_prompt,
                                    std::string_view prompt_param, RequestFields* fields);

}  // namespace kvlathe::api
