// /v1/chat/completions: the next message of a conversation.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "server/api/routes/answer_json.h"
#include "server/api/routes/chat_answer.h"
#include "server/api/routes/chat_request.h"
#include "server/api/routes/logprobs_json.h"
#include "server/api/routes/routes.h"

namespace kvlathe::api {
namespace {

struct ChatRequest {
  GenerationOptions options;
  ChatTask task;
  TokenizedChat chat;
  std::optional<int> n_logprobs;
  int64_t max_tokens = 0;
};

StatusOr<ChatRequest> ReadChatRequest(const ServiceState& state, const Json& json) {
  constexpr std::array<std::string_view, 2> kMaxTokensNames = {"max_completion_tokens",
                                                               "max_tokens"};
  RequestFields fields(json);
  ChatRequest request;
  request.options = ReadGenerationOptions(state, &fields);
  const bool has_logprobs = fields.Bool("logprobs").value_or(false);
  const auto n_top = fields.Integer("top_logprobs", 0, kMaxTopLogprobs);
  if (n_top && *n_top > 0 && !has_logprobs) {
    fields.Fail(FieldError("top_logprobs", "it goes with logprobs: true only"));
  }
  if (has_logprobs) request.n_logprobs = static_cast<int>(n_top.value_or(0));
  for (const char* const part : {"audio", "modalities"}) {
    const Json* const value = fields.Find(part);
    if (value == nullptr || *value == Json::array({"text"})) continue;
    fields.Fail(
        WithParam(Error(StatusCode::kUnimplemented, "{}: answers are text alone", part), part));
  }
  KVL_RETURN_IF_ERROR(fields.status());
  KVL_ASSIGN_OR_RETURN(request.task, ReadChatTask(state, &fields));
  KVL_ASSIGN_OR_RETURN(request.chat, TokenizeChat(state, request.task));
  KVL_ASSIGN_OR_RETURN(request.max_tokens,
                       ReadChatMaxTokens(state, kMaxTokensNames, std::ssize(request.chat.tokens),
                                         "messages", &fields));
  request.options.unknown_fields = fields.Unasked();
  return request;
}

class ChatWriter : public AnswerWriter {
 public:
  ChatWriter(const ServiceState& state, std::shared_ptr<Exchange> exchange, ChatRequest request)
      : state_(state),
        exchange_(std::move(exchange)),
        request_(std::move(request)),
        created_(UnixSeconds()) {
    usage_.prompt_tokens = std::ssize(request_.chat.tokens);
    for (int i = 0; i < request_.options.n_choices; ++i) {
      choices_.push_back(Choice{.answer = ChatAnswer(request_.chat.prompt)});
    }
  }

  void Begin() override;
  void Take(ChoiceEvent event) override;
  void Finish() override;
  void Fail(const ApiError& error) override { exchange_->Fail(error); }

 private:
  struct Choice {
    ChatAnswer answer;
    Json logprobs = Json::array();  // not sent yet
    std::optional<ChoiceEnd> end;
  };

  bool is_stream() const { return request_.options.is_stream; }
  Json Envelope(Json choices) const;
  void WriteDelta(int choice_idx, Json delta);
  Json Message(const Choice& choice) const;
  std::string_view FinishReasonOf(const Choice& choice) const;

  const ServiceState& state_;
  std::shared_ptr<Exchange> exchange_;
  ChatRequest request_;
  int64_t created_;
  std::vector<Choice> choices_;
  Usage usage_;
};

std::string_view ChatWriter::FinishReasonOf(const Choice& choice) const {
  const bool calls = !choice.answer.calls().empty();
  if (calls && choice.end->reason == FinishReason::kStop) return "tool_calls";
  return FinishReasonName(choice.end->reason);
}

Json ChatWriter::Envelope(Json choices) const {
  Json json = {{"id", "chatcmpl-" + exchange_->request().id},
               {"object", is_stream() ? "chat.completion.chunk" : "chat.completion"},
               {"created", created_},
               {"model", request_.options.model},
               {"choices", std::move(choices)}};
  if (request_.options.streams_usage) json["usage"] = nullptr;
  return json;
}

void ChatWriter::WriteDelta(int choice_idx, Json delta) {
  Choice& choice = choices_[choice_idx];
  Json json = {{"index", choice_idx},
               {"delta", std::move(delta)},
               {"logprobs", nullptr},
               {"finish_reason", nullptr}};
  if (request_.n_logprobs && !choice.logprobs.empty()) {
    json["logprobs"] = {{"content", std::exchange(choice.logprobs, Json::array())},
                        {"refusal", nullptr}};
  }
  if (choice.end) json["finish_reason"] = FinishReasonOf(choice);
  exchange_->WriteEvent(Envelope(Json::array({std::move(json)})));
}

void ChatWriter::Begin() {
  if (!is_stream()) return;
  exchange_->BeginStream();
  for (int i = 0; i < std::ssize(choices_); ++i) {
    WriteDelta(i, {{"role", "assistant"}, {"content", ""}});
  }
}

void ChatWriter::Take(ChoiceEvent event) {
  Choice& choice = choices_[event.choice_idx];
  if (event.logprobs) {
    choice.logprobs.push_back(ChatLogprobJson(state_.tokenizer(), *event.logprobs));
  }
  const AnswerDelta delta = choice.answer.Push(event.text, event.end.has_value());
  if (event.end) CountChoice(*event.end, event.choice_idx == 0, &usage_, exchange_.get());
  if (!is_stream()) {
    choice.end = event.end;
    return;
  }
  if (!delta.thoughts.empty()) {
    WriteDelta(event.choice_idx, {{"reasoning_content", delta.thoughts}});
  }
  if (!delta.content.empty()) WriteDelta(event.choice_idx, {{"content", delta.content}});
  for (const AnswerDelta::Call& call : delta.calls) {
    WriteDelta(event.choice_idx,
               {{"tool_calls", Json::array({CallDeltaJson(choice.answer, call)})}});
  }
  choice.end = event.end;
  if (event.end) WriteDelta(event.choice_idx, Json::object());
}

Json ChatWriter::Message(const Choice& choice) const {
  const ChatAnswer& answer = choice.answer;
  Json json = {{"role", "assistant"}, {"content", answer.content()}, {"refusal", nullptr}};
  if (!answer.thoughts().empty()) json["reasoning_content"] = answer.thoughts();
  if (answer.calls().empty()) return json;
  if (answer.content().empty()) json["content"] = nullptr;
  Json calls = Json::array();
  for (const ToolCall& call : answer.calls()) calls.push_back(ToolCallJson(call));
  json["tool_calls"] = std::move(calls);
  return json;
}

void ChatWriter::Finish() {
  for (const Choice& choice : choices_) {
    if (FinishReasonOf(choice) != "tool_calls") continue;
    exchange_->record().finish_reason = "tool_calls";
    break;
  }
  if (is_stream()) {
    if (request_.options.streams_usage) {
      Json json = Envelope(Json::array());
      json["usage"] = UsageJson(usage_);
      exchange_->WriteEvent(json);
    }
    exchange_->WriteDone();
    return exchange_->EndStream();
  }
  Json choices = Json::array();
  for (int i = 0; i < std::ssize(choices_); ++i) {
    Choice& choice = choices_[i];
    Json json = {{"index", i},
                 {"message", Message(choice)},
                 {"logprobs", nullptr},
                 {"finish_reason", FinishReasonOf(choice)}};
    if (request_.n_logprobs) {
      json["logprobs"] = {{"content", std::move(choice.logprobs)}, {"refusal", nullptr}};
    }
    choices.push_back(std::move(json));
  }
  Json json = Envelope(std::move(choices));
  json["usage"] = UsageJson(usage_);
  exchange_->Send(json);
}

Status Chat(const ServiceState& state, const ExchangePtr& exchange) {
  KVL_ASSIGN_OR_RETURN(const Json json, state.ParseBody(exchange->request().body));
  KVL_ASSIGN_OR_RETURN(ChatRequest request, ReadChatRequest(state, json));
  KVL_ASSIGN_OR_RETURN(std::vector<ChoicePlan> plans,
                       PlanChatChoices(state, request.options, request.chat, request.max_tokens,
                                       request.n_logprobs));
  RecordRequest(state, request.options, request.options.n_choices, std::ssize(request.chat.tokens),
                exchange.get());
  Generation::Start(state, exchange,
                    std::make_unique<ChatWriter>(state, exchange, std::move(request)),
                    std::move(plans));
  return OkStatus();
}

}  // namespace

void HandleChat(const ServiceState& state, const ExchangePtr& exchange) {
  if (const Status status = Chat(state, exchange); !status.ok()) exchange->SendError(status);
}

}  // namespace kvlathe::api
