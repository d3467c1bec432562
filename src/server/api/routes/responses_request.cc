#include "server/api/routes/responses_request.h"

#include <array>
#include <utility>

#include "server/api/api_error.h"

namespace kvlathe::api {
namespace {

constexpr std::array<std::string_view, 3> kResponseTextParts = {"input_text", "output_text",
                                                                "text"};
constexpr std::array<std::string_view, 1> kMaxTokensNames = {"max_output_tokens"};

Status RefuseStored(const RequestFields& fields) {
  constexpr std::string_view kNothingKept =
      "this server keeps no responses; leave it out and send the whole conversation as input";
  for (const char* const name : {"previous_response_id", "conversation"}) {
    if (fields.Has(name)) return UnsupportedField(name, kNothingKept);
  }
  const Json* const background = fields.Find("background");
  if (background != nullptr && *background != false) {
    return UnsupportedField("background", "answers come with the request; leave it out");
  }
  if (fields.Has("prompt")) {
    return UnsupportedField("prompt", "this server keeps no prompts; send instructions and input");
  }
  return OkStatus();
}

StatusOr<ChatTurn> ReadMessageItem(RequestFields* fields) {
  ChatTurn turn;
  turn.role = fields->String("role").value_or("");
  KVL_RETURN_IF_ERROR(fields->status());
  if (turn.role == "developer") turn.role = "system";
  if (turn.role != "system" && turn.role != "user" && turn.role != "assistant") {
    return FieldError(fields->PathOf("role"),
                      "give system, developer, user or assistant in place of '{}'", turn.role);
  }
  const Json* const content = fields->Find("content");
  if (content == nullptr) return FieldError(fields->PathOf("content"), "it is missing");
  KVL_ASSIGN_OR_RETURN(turn.content,
                       ReadContent(content, fields->PathOf("content"), kResponseTextParts));
  return turn;
}

// Calls that follow each other are of one turn of the assistant, as templates have them.
Status AddCall(RequestFields* fields, std::vector<ChatTurn>* turns) {
  ToolCall call;
  call.id = fields->String("call_id").value_or("");
  call.name = fields->String("name").value_or("");
  call.arguments = fields->String("arguments").value_or("{}");
  KVL_RETURN_IF_ERROR(fields->status());
  if (call.name.empty()) return FieldError(fields->PathOf("name"), "give the function's name");
  if (turns->empty() || turns->back().role != "assistant") turns->push_back({.role = "assistant"});
  turns->back().tool_calls.push_back(std::move(call));
  return OkStatus();
}

Status AddCallOutput(RequestFields* fields, std::vector<ChatTurn>* turns) {
  ChatTurn turn;
  turn.role = "tool";
  turn.tool_call_id = fields->String("call_id").value_or("");
  KVL_RETURN_IF_ERROR(fields->status());
  const Json* const output = fields->Find("output");
  if (output == nullptr) return FieldError(fields->PathOf("output"), "it is missing");
  KVL_ASSIGN_OR_RETURN(turn.content,
                       ReadContent(output, fields->PathOf("output"), kResponseTextParts));
  turns->push_back(std::move(turn));
  return OkStatus();
}

Status AddItem(const Json& item, const std::string& path, std::vector<ChatTurn>* turns) {
  if (!item.is_object()) return FieldError(path, "this is {}; give an object", KindOf(item));
  RequestFields fields(item, path + ".");
  const std::string type = fields.String("type").value_or("message");
  KVL_RETURN_IF_ERROR(fields.status());
  if (type == "message") {
    KVL_ASSIGN_OR_RETURN(ChatTurn turn, ReadMessageItem(&fields));
    turns->push_back(std::move(turn));
    return OkStatus();
  }
  if (type == "function_call") return AddCall(&fields, turns);
  if (type == "function_call_output") return AddCallOutput(&fields, turns);
  if (type == "reasoning") return OkStatus();  // of other models: no part of the conversation
  return UnsupportedField(fields.PathOf("type"),
                          fmt::format("items are message, function_call, function_call_output or "
                                      "reasoning, not '{}'",
                                      type));
}

Status ReadInput(const ServiceState& state, RequestFields* fields, ChatTask* task) {
  if (const auto instructions = fields->String("instructions")) {
    task->turns.push_back({.role = "system", .content = *instructions});
  }
  KVL_RETURN_IF_ERROR(fields->status());
  const Json* const input = fields->Find("input");
  if (input == nullptr) return FieldError("input", "give a text or a list of items");
  if (input->is_string()) {
    task->turns.push_back({.role = "user", .content = input->get<std::string>()});
    return OkStatus();
  }
  if (!input->is_array() || input->empty()) {
    return FieldError("input", "this is {}; give a text or a list of items",
                      input->is_array() ? "empty" : KindOf(*input));
  }
  if (std::ssize(*input) > state.limits().max_messages) {
    return FieldError("input", "more than {} items", state.limits().max_messages);
  }
  for (size_t i = 0; i < input->size(); ++i) {
    KVL_RETURN_IF_ERROR(AddItem((*input)[i], fmt::format("input[{}]", i), &task->turns));
  }
  // Templates take one system message, in front.
  std::vector<ChatTurn>& turns = task->turns;
  while (turns.size() > 1 && turns[0].role == "system" && turns[1].role == "system") {
    turns[0].content += "\n\n" + turns[1].content;
    turns.erase(turns.begin() + 1);
  }
  if (turns.empty()) return FieldError("input", "it has no message");
  return OkStatus();
}

Status ReadTools(const ServiceState& state, RequestFields* fields, ResponsesRequest* request) {
  KVL_RETURN_IF_ERROR(ReadToolList(state, ToolShape::kFlat, fields, &request->task));
  if (const Json* const tools = fields->Find("tools")) request->tools = *tools;
  const Json* const choice = fields->Find("tool_choice");
  if (choice == nullptr) return SetToolChoice(nullptr, std::nullopt, &request->task);
  request->tool_choice = *choice;
  if (!choice->is_object()) return SetToolChoice(choice, std::nullopt, &request->task);
  RequestFields of_choice(*choice, "tool_choice.");
  const std::string type = of_choice.String("type").value_or("");
  std::string name = of_choice.String("name").value_or("");
  KVL_RETURN_IF_ERROR(of_choice.status());
  if (type != "function") {
    return UnsupportedField("tool_choice", fmt::format("the type '{}' is not supported", type));
  }
  return SetToolChoice(choice, std::move(name), &request->task);
}

Status ReadTextFormat(RequestFields* fields, ResponsesRequest* request) {
  const Json* const text = fields->Object("text");
  KVL_RETURN_IF_ERROR(fields->status());
  if (text == nullptr) return OkStatus();
  RequestFields of_text(*text, "text.");
  const Json* const format = of_text.Object("format");
  KVL_RETURN_IF_ERROR(of_text.status());
  if (format == nullptr) return OkStatus();
  request->text_format = *format;
  KVL_ASSIGN_OR_RETURN(request->task.response_format, ReadFormat(*format, "text.format", false));
  return OkStatus();
}

}  // namespace

StatusOr<ResponsesRequest> ReadResponsesRequest(const ServiceState& state, const Json& json) {
  RequestFields fields(json);
  KVL_RETURN_IF_ERROR(RefuseStored(fields));
  ResponsesRequest request;
  request.options = ReadGenerationOptions(state, &fields);
  request.options.n_choices = 1;
  request.task.parallel_tool_calls = fields.Bool("parallel_tool_calls").value_or(true);
  if (const Json* const metadata = fields.Object("metadata")) request.metadata = *metadata;
  if (const Json* const instructions = fields.Find("instructions")) {
    request.instructions = *instructions;
  }
  KVL_RETURN_IF_ERROR(ReadInput(state, &fields, &request.task));
  KVL_RETURN_IF_ERROR(ReadTools(state, &fields, &request));
  KVL_RETURN_IF_ERROR(ReadTextFormat(&fields, &request));
  KVL_ASSIGN_OR_RETURN(request.chat, TokenizeChat(state, request.task, "input", "text.format"));
  request.names_max_tokens = fields.Has("max_output_tokens");
  KVL_ASSIGN_OR_RETURN(
      request.max_tokens,
      ReadChatMaxTokens(state, kMaxTokensNames, std::ssize(request.chat.tokens), "input", &fields));
  request.options.unknown_fields = fields.Unasked();
  return request;
}

}  // namespace kvlathe::api
