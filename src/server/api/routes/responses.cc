// /v1/responses: text (and calls of functions) in items, streamed as named events.
#include <optional>
#include <utility>
#include <vector>

#include "server/api/api_error.h"
#include "server/api/routes/answer_json.h"
#include "server/api/routes/chat_answer.h"
#include "server/api/routes/responses_request.h"
#include "server/api/routes/routes.h"

namespace kvlathe::api {
namespace {

class ResponsesWriter : public AnswerWriter {
 public:
  ResponsesWriter(const ServiceState& state, std::shared_ptr<Exchange> exchange,
                  ResponsesRequest request)
      : state_(state),
        exchange_(std::move(exchange)),
        request_(std::move(request)),
        created_(UnixSeconds()),
        answer_(request_.chat.prompt) {
    usage_.prompt_tokens = std::ssize(request_.chat.tokens);
  }

  void Begin() override;
  void Take(ChoiceEvent event) override;
  void Finish() override;
  void Fail(const ApiError& error) override;

 private:
  const std::string& id() const { return exchange_->request().id; }
  bool is_stream() const { return request_.options.is_stream; }
  void WriteEvent(const char* type, Json fields);
  void WriteContent(const std::string& text);
  void WriteCall(const AnswerDelta::Call& call);
  // The item that is open ends.
  void CloseItem(const char* status);
  void OpenItem(Json item);
  Json MessageItem(const char* status, bool has_content) const;
  Json CallItem(const ToolCall& call, const char* status) const;
  Json Part(const std::string& text) const;
  // The whole response as it is now; `output` only once it has ended.
  Json Response(const char* status, Json output, const ApiError* error = nullptr) const;

  const ServiceState& state_;
  std::shared_ptr<Exchange> exchange_;
  ResponsesRequest request_;
  int64_t created_;
  ChatAnswer answer_;
  Usage usage_;
  std::optional<ChoiceEnd> end_;
  int64_t sequence_number_ = 0;
  int output_idx_ = -1;  // of the item that is or was open
  bool is_open_ = false;
  int open_call_ = -1;           // -1: the message
  std::string message_text_;     // of the message that is open or was
  Json output_ = Json::array();  // items that have ended
};

void ResponsesWriter::WriteEvent(const char* type, Json fields) {
  Json json = {{"type", type}, {"sequence_number", sequence_number_++}};
  json.update(fields);
  exchange_->WriteEvent(json, type);
}

Json ResponsesWriter::Part(const std::string& text) const {
  return {{"type", "output_text"},
          {"text", text},
          {"annotations", Json::array()},
          {"logprobs", Json::array()}};
}

Json ResponsesWriter::MessageItem(const char* status, bool has_content) const {
  Json content = Json::array();
  if (has_content) content.push_back(Part(message_text_));
  return {{"id", fmt::format("msg_{}_{}", id(), output_idx_)},
          {"type", "message"},
          {"status", status},
          {"role", "assistant"},
          {"content", std::move(content)}};
}

Json ResponsesWriter::CallItem(const ToolCall& call, const char* status) const {
  return {{"id", fmt::format("fc_{}_{}", id(), output_idx_)},
          {"type", "function_call"},
          {"status", status},
          {"call_id", call.id},
          {"name", call.name},
          {"arguments", call.arguments}};
}

Json ResponsesWriter::Response(const char* status, Json output, const ApiError* error) const {
  const GenerationOptions& options = request_.options;
  const bool has_ended = end_.has_value() || error != nullptr;
  Json json = {{"id", "resp_" + id()},
               {"object", "response"},
               {"created_at", created_},
               {"status", status},
               {"background", false},
               {"error", nullptr},
               {"incomplete_details", nullptr},
               {"instructions", request_.instructions},
               {"max_output_tokens", nullptr},
               {"metadata", request_.metadata},
               {"model", options.model},
               {"output", std::move(output)},
               {"parallel_tool_calls", request_.task.parallel_tool_calls},
               {"previous_response_id", nullptr},
               {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
               {"store", false},
               {"temperature", options.sampling.temperature},
               {"text", {{"format", request_.text_format}}},
               {"tool_choice", request_.tool_choice},
               {"tools", request_.tools},
               {"top_p", options.sampling.top_p},
               {"truncation", "disabled"},
               {"usage", nullptr},
               {"user", nullptr}};
  if (request_.names_max_tokens) json["max_output_tokens"] = request_.max_tokens;
  if (error != nullptr) json["error"] = {{"code", error->code}, {"message", error->message}};
  if (end_ && end_->reason == FinishReason::kLength) {
    json["incomplete_details"] = {{"reason", "max_output_tokens"}};
  }
  if (!has_ended) return json;
  json["usage"] = {{"input_tokens", usage_.prompt_tokens},
                   {"input_tokens_details", {{"cached_tokens", usage_.cached_tokens}}},
                   {"output_tokens", usage_.output_tokens},
                   {"output_tokens_details", {{"reasoning_tokens", 0}}},
                   {"total_tokens", usage_.prompt_tokens + usage_.output_tokens}};
  if (usage_.pressed_tokens > 0) json["usage"]["pressed_tokens"] = usage_.pressed_tokens;
  return json;
}

void ResponsesWriter::Begin() {
  if (!is_stream()) return;
  exchange_->BeginStream();
  WriteEvent("response.created", {{"response", Response("in_progress", Json::array())}});
  WriteEvent("response.in_progress", {{"response", Response("in_progress", Json::array())}});
}

void ResponsesWriter::OpenItem(Json item) {
  is_open_ = true;
  if (!is_stream()) return;
  WriteEvent("response.output_item.added",
             {{"output_index", output_idx_}, {"item", std::move(item)}});
}

void ResponsesWriter::WriteContent(const std::string& text) {
  if (is_open_ && open_call_ >= 0) CloseItem("completed");
  if (!is_open_) {
    ++output_idx_;
    open_call_ = -1;
    message_text_.clear();
    OpenItem(MessageItem("in_progress", /*has_content=*/false));
    if (is_stream()) {
      WriteEvent("response.content_part.added", {{"item_id", MessageItem("", false)["id"]},
                                                 {"output_index", output_idx_},
                                                 {"content_index", 0},
                                                 {"part", Part("")}});
    }
  }
  message_text_ += text;
  if (!is_stream() || text.empty()) return;
  WriteEvent("response.output_text.delta", {{"item_id", MessageItem("", false)["id"]},
                                            {"output_index", output_idx_},
                                            {"content_index", 0},
                                            {"delta", text},
                                            {"logprobs", Json::array()}});
}

void ResponsesWriter::WriteCall(const AnswerDelta::Call& call) {
  if (is_open_ && open_call_ != call.call_idx) CloseItem("completed");
  const ToolCall& whole = answer_.calls()[call.call_idx];
  if (!is_open_) {
    ++output_idx_;
    open_call_ = call.call_idx;
    OpenItem(CallItem({whole.id, whole.name, ""}, "in_progress"));
  }
  if (!is_stream() || call.arguments.empty()) return;
  WriteEvent("response.function_call_arguments.delta", {{"item_id", CallItem(whole, "")["id"]},
                                                        {"output_index", output_idx_},
                                                        {"delta", call.arguments}});
}

void ResponsesWriter::CloseItem(const char* status) {
  if (!std::exchange(is_open_, false)) return;
  const bool is_message = open_call_ < 0;
  Json item = is_message ? MessageItem(status, /*has_content=*/true)
                         : CallItem(answer_.calls()[open_call_], status);
  if (is_stream()) {
    const Json place = {{"item_id", item["id"]}, {"output_index", output_idx_}};
    if (is_message) {
      Json done = place;
      done["content_index"] = 0;
      Json part_done = done;
      done["text"] = message_text_;
      done["logprobs"] = Json::array();
      part_done["part"] = Part(message_text_);
      WriteEvent("response.output_text.done", std::move(done));
      WriteEvent("response.content_part.done", std::move(part_done));
    } else {
      Json done = place;
      done["name"] = item["name"];
      done["arguments"] = item["arguments"];
      WriteEvent("response.function_call_arguments.done", std::move(done));
    }
    WriteEvent("response.output_item.done", {{"output_index", output_idx_}, {"item", item}});
  }
  output_.push_back(std::move(item));
}

void ResponsesWriter::Take(ChoiceEvent event) {
  const AnswerDelta delta = answer_.Push(event.text, event.end.has_value());
  if (!delta.content.empty()) WriteContent(delta.content);
  for (const AnswerDelta::Call& call : delta.calls) WriteCall(call);
  end_ = event.end;
}

void ResponsesWriter::Finish() {
  const bool is_whole = end_->reason != FinishReason::kLength;
  const char* const status = is_whole ? "completed" : "incomplete";
  CountChoice(*end_, /*is_first_of_prompt=*/true, &usage_, exchange_.get());
  // An answer of no text is a message without one.
  if (output_idx_ < 0) WriteContent("");
  CloseItem(status);
  if (!answer_.calls().empty() && is_whole) exchange_->record().finish_reason = "tool_calls";
  const Json response = Response(status, output_);
  if (!is_stream()) return exchange_->Send(response);
  WriteEvent(is_whole ? "response.completed" : "response.incomplete", {{"response", response}});
  exchange_->EndStream();
}

void ResponsesWriter::Fail(const ApiError& error) {
  if (!exchange_->streams()) return exchange_->SendError(error);
  WriteEvent("response.failed", {{"response", Response("failed", output_, &error)}});
  exchange_->EndStream();
}

Status Respond(const ServiceState& state, const ExchangePtr& exchange) {
  KVL_ASSIGN_OR_RETURN(const Json json, state.ParseBody(exchange->request().body));
  KVL_ASSIGN_OR_RETURN(ResponsesRequest request, ReadResponsesRequest(state, json));
  KVL_ASSIGN_OR_RETURN(std::vector<ChoicePlan> plans,
                       PlanChatChoices(state, request.options, request.chat, request.max_tokens,
                                       /*n_logprobs=*/std::nullopt));
  RecordRequest(state, request.options, 1, std::ssize(request.chat.tokens), exchange.get());
  Generation::Start(state, exchange,
                    std::make_unique<ResponsesWriter>(state, exchange, std::move(request)),
                    std::move(plans));
  return OkStatus();
}

}  // namespace

void HandleResponses(const ServiceState& state, const ExchangePtr& exchange) {
  if (const Status status = Respond(state, exchange); !status.ok()) exchange->SendError(status);
}

}  // namespace kvlathe::api
