#include "server/api/routes/chat_request.h"

#include <algorithm>
#include <array>
#include <utility>

#include "server/api/api_error.h"

namespace kvlathe::api {
namespace {

constexpr std::array<std::string_view, 1> kTextParts = {"text"};
constexpr size_t kMaxNameBytes = 64;

bool IsName(std::string_view text) {
  return !text.empty() && text.size() <= kMaxNameBytes && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
}

StatusOr<ToolCall> ReadToolCall(const Json& json, const std::string& path) {
  if (!json.is_object()) return FieldError(path, "this is {}; give an object", KindOf(json));
  RequestFields fields(json, path + ".");
  ToolCall call;
  call.id = fields.String("id").value_or("");
  if (const auto type = fields.String("type"); type && *type != "function") {
    fields.Fail(UnsupportedField(fields.PathOf("type"), "only function is supported"));
  }
  const Json* const function = fields.Object("function");
  KVL_RETURN_IF_ERROR(fields.status());
  if (function == nullptr) return FieldError(fields.PathOf("function"), "it is missing");
  RequestFields of_function(*function, path + ".function.");
  call.name = of_function.String("name").value_or("");
  call.arguments = of_function.String("arguments").value_or("{}");
  KVL_RETURN_IF_ERROR(of_function.status());
  if (call.name.empty()) return FieldError(of_function.PathOf("name"), "give the function's name");
  return call;
}

StatusOr<std::string> ReadRole(RequestFields* fields) {
  constexpr std::array<std::string_view, 4> kRoles = {"system", "user", "assistant", "tool"};
  std::string role = fields->String("role").value_or("");
  KVL_RETURN_IF_ERROR(fields->status());
  if (role == "developer") role = "system";
  if (std::ranges::find(kRoles, role) != kRoles.end()) return role;
  return FieldError(fields->PathOf("role"),
                    "give system, developer, user, assistant or tool in place of '{}'", role);
}

StatusOr<ChatTurn> ReadMessage(const ServiceState& state, const Json& json,
                               const std::string& path) {
  if (!json.is_object()) return FieldError(path, "this is {}; give an object", KindOf(json));
  RequestFields fields(json, path + ".");
  ChatTurn turn;
  KVL_ASSIGN_OR_RETURN(turn.role, ReadRole(&fields));
  KVL_ASSIGN_OR_RETURN(turn.content,
                       ReadContent(fields.Find("content"), fields.PathOf("content"), kTextParts));
  if (const Json* const content = fields.Find("content");
      content != nullptr && content->is_array()) {
    turn.parts = *content;
  }
  turn.thoughts = fields.String("reasoning_content").value_or("");
  turn.name = fields.String("name").value_or("");
  turn.tool_call_id = fields.String("tool_call_id").value_or("");
  const Json* const calls = fields.Array("tool_calls");
  KVL_RETURN_IF_ERROR(fields.status());
  const bool has_calls = calls != nullptr && !calls->empty();
  if (has_calls && turn.role != "assistant") {
    return FieldError(fields.PathOf("tool_calls"), "only messages of the role assistant have them");
  }
  if (!has_calls && !fields.Has("content") && turn.role != "assistant") {
    return FieldError(fields.PathOf("content"), "it is missing");
  }
  if (!has_calls) return turn;
  if (std::ssize(*calls) > state.limits().max_tools) {
    return FieldError(fields.PathOf("tool_calls"), "more than {} calls", state.limits().max_tools);
  }
  for (size_t i = 0; i < calls->size(); ++i) {
    KVL_ASSIGN_OR_RETURN(ToolCall call,
                         ReadToolCall((*calls)[i], fmt::format("{}.tool_calls[{}]", path, i)));
    turn.tool_calls.push_back(std::move(call));
  }
  return turn;
}

Status ReadMessages(const ServiceState& state, RequestFields* fields, ChatTask* task) {
  const Json* const messages = fields->Array("messages");
  KVL_RETURN_IF_ERROR(fields->status());
  if (messages == nullptr || messages->empty()) {
    return FieldError("messages", "give at least one message");
  }
  if (std::ssize(*messages) > state.limits().max_messages) {
    return FieldError("messages", "more than {} messages", state.limits().max_messages);
  }
  for (size_t i = 0; i < messages->size(); ++i) {
    KVL_ASSIGN_OR_RETURN(ChatTurn turn,
                         ReadMessage(state, (*messages)[i], fmt::format("messages[{}]", i)));
    task->turns.push_back(std::move(turn));
  }
  return OkStatus();
}

Status ReadTools(const ServiceState& state, RequestFields* fields, ChatTask* task) {
  for (const char* const old : {"functions", "function_call"}) {
    if (fields->Has(old)) return UnsupportedField(old, "use tools and tool_choice in its place");
  }
  return ReadToolList(state, ToolShape::kNested, fields, task);
}

Status ReadChatToolChoice(RequestFields* fields, ChatTask* task) {
  const Json* const choice = fields->Find("tool_choice");
  if (choice == nullptr || !choice->is_object()) return SetToolChoice(choice, std::nullopt, task);
  RequestFields of_choice(*choice, "tool_choice.");
  const std::string type = of_choice.String("type").value_or("");
  const Json* const function = of_choice.Object("function");
  KVL_RETURN_IF_ERROR(of_choice.status());
  if (type != "function") {
    return UnsupportedField("tool_choice", fmt::format("the type '{}' is not supported", type));
  }
  if (function == nullptr) return FieldError("tool_choice.function", "it is missing");
  RequestFields of_function(*function, "tool_choice.function.");
  std::string name = of_function.String("name").value_or("");
  KVL_RETURN_IF_ERROR(of_function.status());
  return SetToolChoice(choice, std::move(name), task);
}

}  // namespace

StatusOr<std::string> ReadContent(const Json* content, const std::string& path,
                                  std::span<const std::string_view> types) {
  if (content == nullptr) return std::string();
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) {
    return FieldError(path, "this is {}; give a text or a list of parts", KindOf(*content));
  }
  std::string text;
  for (size_t i = 0; i < content->size(); ++i) {
    const Json& part = (*content)[i];
    const std::string place = fmt::format("{}[{}]", path, i);
    if (!part.is_object()) return FieldError(place, "this is {}; give an object", KindOf(part));
    RequestFields fields(part, place + ".");
    const std::string type = fields.String("type").value_or("");
    const auto piece = fields.String("text");
    KVL_RETURN_IF_ERROR(fields.status());
    if (std::ranges::find(types, type) == types.end()) {
      return UnsupportedField(fields.PathOf("type"),
                              fmt::format("this model reads text alone, not '{}'", type));
    }
    if (!piece) return FieldError(fields.PathOf("text"), "it is missing");
    text += *piece;
  }
  return text;
}

StatusOr<ToolDefinition> ReadFunction(const Json& function, const std::string& path) {
  RequestFields fields(function, path + ".");
  ToolDefinition definition;
  definition.name = fields.String("name").value_or("");
  definition.description = fields.String("description").value_or("");
  definition.is_strict = fields.Bool("strict").value_or(false);
  const Json* const parameters = fields.Object("parameters");
  KVL_RETURN_IF_ERROR(fields.status());
  if (!IsName(definition.name)) {
    return FieldError(fields.PathOf("name"), "give 1 to {} letters, digits, '_' or '-'",
                      kMaxNameBytes);
  }
  if (parameters != nullptr) definition.parameters = *parameters;
  Json plain = {{"name", definition.name}};
  if (fields.Has("description")) plain["description"] = definition.description;
  if (parameters != nullptr) plain["parameters"] = *parameters;
  definition.json = {{"type", "function"}, {"function", std::move(plain)}};
  return definition;
}

Status ReadToolList(const ServiceState& state, ToolShape shape, RequestFields* fields,
                    ChatTask* task) {
  const Json* const tools = fields->Array("tools");
  KVL_RETURN_IF_ERROR(fields->status());
  if (tools == nullptr) return OkStatus();
  if (std::ssize(*tools) > state.limits().max_tools) {
    return FieldError("tools", "more than {} tools", state.limits().max_tools);
  }
  for (size_t i = 0; i < tools->size(); ++i) {
    const Json& tool = (*tools)[i];
    std::string path = fmt::format("tools[{}]", i);
    if (!tool.is_object()) return FieldError(path, "this is {}; give an object", KindOf(tool));
    RequestFields of_tool(tool, path + ".");
    const std::string type = of_tool.String("type").value_or("");
    KVL_RETURN_IF_ERROR(of_tool.status());
    if (type != "function") {
      return UnsupportedField(of_tool.PathOf("type"),
                              fmt::format("only function is supported, not '{}'", type));
    }
    const Json* function = &tool;
    if (shape == ToolShape::kNested) {
      function = of_tool.Object("function");
      KVL_RETURN_IF_ERROR(of_tool.status());
      path = of_tool.PathOf("function");
      if (function == nullptr) return FieldError(path, "it is missing");
    }
    KVL_ASSIGN_OR_RETURN(ToolDefinition definition, ReadFunction(*function, path));
    task->tools.push_back(std::move(definition));
  }
  return OkStatus();
}

Status SetToolChoice(const Json* choice, std::optional<std::string> named, ChatTask* task) {
  for (size_t i = 0; i < task->tools.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (task->tools[i].name != task->tools[j].name) continue;
      return FieldError("tools", "the name '{}' is there twice", task->tools[i].name);
    }
  }
  if (choice == nullptr) return OkStatus();
  using Kind = ToolChoice::Kind;
  if (named) {
    const bool is_there = std::ranges::any_of(
        task->tools, [&](const ToolDefinition& tool) { return tool.name == *named; });
    if (!is_there) return FieldError("tool_choice", "tools has no function '{}'", *named);
    task->tool_choice = {Kind::kNamed, std::move(*named)};
    return OkStatus();
  }
  if (*choice == "auto") return OkStatus();
  if (*choice == "none") {
    task->tool_choice.kind = Kind::kNone;
    task->tools.clear();
    return OkStatus();
  }
  if (*choice != "required") {
    return FieldError("tool_choice", "give none, auto, required or the name of a function");
  }
  if (task->tools.empty()) return FieldError("tool_choice", "required goes with tools only");
  task->tool_choice.kind = Kind::kRequired;
  return OkStatus();
}

StatusOr<ResponseFormat> ReadFormat(const Json& format, const std::string& path,
                                    bool schema_is_nested) {
  RequestFields fields(format, path + ".");
  ResponseFormat result;
  const std::string type = fields.String("type").value_or("");
  KVL_RETURN_IF_ERROR(fields.status());
  if (type == "text") return result;
  if (type == "json_object") {
    result.kind = ResponseFormat::Kind::kJsonObject;
    return result;
  }
  if (type != "json_schema") {
    return FieldError(fields.PathOf("type"), "give text, json_object or json_schema");
  }
  const Json* const holder = schema_is_nested ? fields.Object("json_schema") : &format;
  KVL_RETURN_IF_ERROR(fields.status());
  if (holder == nullptr) return FieldError(fields.PathOf("json_schema"), "it is missing");
  RequestFields of_schema(*holder, schema_is_nested ? path + ".json_schema." : path + ".");
  result.kind = ResponseFormat::Kind::kJsonSchema;
  result.name = of_schema.String("name").value_or("");
  result.is_strict = of_schema.Bool("strict").value_or(false);
  const Json* const schema = of_schema.Object("schema");
  KVL_RETURN_IF_ERROR(of_schema.status());
  if (!IsName(result.name)) {
    return FieldError(of_schema.PathOf("name"), "give 1 to {} letters, digits, '_' or '-'",
                      kMaxNameBytes);
  }
  if (schema == nullptr) return FieldError(of_schema.PathOf("schema"), "it is missing");
  result.schema = *schema;
  return result;
}

StatusOr<ChatTask> ReadChatTask(const ServiceState& state, RequestFields* fields) {
  ChatTask task;
  KVL_RETURN_IF_ERROR(ReadMessages(state, fields, &task));
  KVL_RETURN_IF_ERROR(ReadTools(state, fields, &task));
  KVL_RETURN_IF_ERROR(ReadChatToolChoice(fields, &task));
  task.parallel_tool_calls = fields->Bool("parallel_tool_calls").value_or(true);
  if (const Json* const arguments = fields->Object("chat_template_kwargs")) {
    task.template_arguments = *arguments;
  }
  if (const Json* const documents = fields->Array("documents")) task.documents = *documents;
  task.opens_answer = fields->Bool("add_generation_prompt").value_or(true);
  task.continues_last = fields->Bool("continue_final_message").value_or(false);
  const Json* const format = fields->Object("response_format");
  KVL_RETURN_IF_ERROR(fields->status());
  constexpr std::array<std::string_view, 4> kOwn = {"messages", "tools", "documents",
                                                    "add_generation_prompt"};
  for (const std::string_view own : kOwn) {
    if (!task.template_arguments.is_object() || !task.template_arguments.contains(own)) continue;
    return FieldError("chat_template_kwargs", "'{}' is a field of the request itself", own);
  }
  if (format != nullptr) {
    KVL_ASSIGN_OR_RETURN(task.response_format, ReadFormat(*format, "response_format", true));
  }
  return task;
}

StatusOr<ChatPrompt> RenderChat(const ServiceState& state, const ChatTask& task,
                                std::string_view messages_param, std::string_view format_param) {
  StatusOr<ChatPrompt> prompt = state.tool_support().Render(task);
  // To repeat a request that a template takes too long for would not help.
  if (prompt.status().code() == StatusCode::kResourceExhausted) {
    prompt = Error(StatusCode::kInvalidArgument, "{}", MessageOf(prompt.status()));
  }
  if (!prompt.ok()) {
    // Errors begin with the name of the field, where they are about another one than messages.
    const std::string message = MessageOf(prompt.status());
    for (const std::string_view param : {"tools", "tool_choice", "continue_final_message"}) {
      if (message.starts_with(param)) return WithParam(prompt.status(), param);
    }
    if (message.starts_with("response_format")) return WithParam(prompt.status(), format_param);
    return WithParam(prompt.status(), messages_param);
  }
  return prompt;
}

StatusOr<std::vector<int32_t>> TokensOf(const ServiceState& state, const ChatPrompt& prompt) {
  const MarkedText& text = prompt.text;
  std::span<const TextRange> plain = text.inputs;
  if (state.context().reads_control_tokens) plain = {};
  return state.tokenizer().TryTokenizeMarked(text.text, state.context().chat_adds_bos, plain);
}

StatusOr<TokenizedChat> TokenizeChat(const ServiceState& state, const ChatTask& task,
                                     std::string_view messages_param,
                                     std::string_view format_param) {
  TokenizedChat chat;
  KVL_ASSIGN_OR_RETURN(chat.prompt, RenderChat(state, task, messages_param, format_param));
  KVL_RETURN_IF_ERROR(state.CheckText(chat.prompt.text.text, messages_param));
  KVL_ASSIGN_OR_RETURN(chat.tokens, TokensOf(state, chat.prompt));
  return chat;
}

StatusOr<int64_t> ReadChatMaxTokens(const ServiceState& state,
                                    std::span<const std::string_view> names, int64_t n_prompt,
                                    std::string_view prompt_param, RequestFields* fields) {
  std::optional<int64_t> max_tokens;
  for (const std::string_view name : names) {
    const auto given = fields->Integer(name, 1, state.limits().MaxTokens());
    if (!max_tokens) max_tokens = given;
  }
  KVL_RETURN_IF_ERROR(fields->status());
  KVL_RETURN_IF_ERROR(state.CheckLength(n_prompt, max_tokens.value_or(1), prompt_param));
  return max_tokens.value_or(state.RoomBehind(n_prompt));
}

}  // namespace kvlathe::api
