// The routes of Ollama's API: /api/chat, /api/generate, and what clients ask about the model.
#include <fmt/chrono.h>

#include <chrono>
#include <utility>
#include <vector>

#include "base/sha256.h"
#include "server/api/api_error.h"
#include "server/api/generation.h"
#include "server/api/routes/answer_json.h"
#include "server/api/routes/chat_answer.h"
#include "server/api/routes/ollama_request.h"
#include "server/api/routes/routes.h"

namespace kvlathe::api {
namespace {

std::string Rfc3339(std::chrono::system_clock::time_point when) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(when);
  const auto millis = std::chrono::duration_cast<std::chrono::milliseconds>(when - seconds).count();
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:03}Z",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(seconds)), millis);
}

int64_t Nanoseconds(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

class OllamaWriter : public AnswerWriter {
 public:
  OllamaWriter(std::shared_ptr<Exchange> exchange, OllamaRequest request, bool is_chat)
      : exchange_(std::move(exchange)),
        request_(std::move(request)),
        is_chat_(is_chat),
        answer_(request_.chat.prompt) {}

  void Begin() override {
    if (is_stream()) exchange_->BeginStream(http::StreamKind::kJsonLines);
  }
  void Take(ChoiceEvent event) override;
  void Finish() override;
  void Fail(const ApiError& error) override { exchange_->Fail(error); }

 private:
  bool is_stream() const { return request_.options.is_stream; }
  Json Line(const std::string& content, const std::string& thoughts, bool is_done) const;
  Json Calls() const;

  std::shared_ptr<Exchange> exchange_;
  OllamaRequest request_;
  bool is_chat_;
  ChatAnswer answer_;
  ChoiceEnd end_;
  Usage usage_;
};

Json OllamaWriter::Line(const std::string& content, const std::string& thoughts,
                        bool is_done) const {
  Json json = {{"model", request_.options.model},
               {"created_at", Rfc3339(std::chrono::system_clock::now())}};
  if (is_chat_) {
    json["message"] = {{"role", "assistant"}, {"content", content}};
    if (!thoughts.empty()) json["message"]["thinking"] = thoughts;
  } else {
    json["response"] = content;
    if (!thoughts.empty()) json["thinking"] = thoughts;
  }
  json["done"] = is_done;
  return json;
}

Json OllamaWriter::Calls() const {
  Json calls = Json::array();
  for (const ToolCall& call : answer_.calls()) {
    Json arguments = Json::parse(call.arguments, nullptr, /*allow_exceptions=*/false);
    // Arguments that max_tokens cut off are no JSON.
    if (!arguments.is_object()) arguments = Json::object();
    calls.push_back(
        {{"id", call.id},
         {"function",
          {{"index", calls.size()}, {"name", call.name}, {"arguments", std::move(arguments)}}}});
  }
  return calls;
}

void OllamaWriter::Take(ChoiceEvent event) {
  const AnswerDelta delta = answer_.Push(event.text, event.end.has_value());
  if (event.end) {
    end_ = *event.end;
    CountChoice(end_, /*is_first_of_prompt=*/true, &usage_, exchange_.get());
  }
  if (!is_stream() || (delta.content.empty() && delta.thoughts.empty())) return;
  exchange_->WriteLine(Line(delta.content, delta.thoughts, false));
}

void OllamaWriter::Finish() {
  const double first = exchange_->record().first_token_seconds, all = exchange_->seconds();
  const bool has_calls = is_chat_ && !answer_.calls().empty();
  if (has_calls) exchange_->record().finish_reason = "tool_calls";
  if (is_stream() && has_calls) {
    Json json = Line("", "", false);
    json["message"]["tool_calls"] = Calls();
    exchange_->WriteLine(json);
  }
  Json json = is_stream() ? Line("", "", true) : Line(answer_.content(), answer_.thoughts(), true);
  if (!is_stream() && has_calls) json["message"]["tool_calls"] = Calls();
  json["done_reason"] = FinishReasonName(end_.reason);
  json["total_duration"] = Nanoseconds(all);
  json["load_duration"] = 0;
  json["prompt_eval_count"] = std::ssize(request_.chat.tokens);
  json["prompt_eval_duration"] = Nanoseconds(first);
  json["eval_count"] = end_.n_tokens;
  json["eval_duration"] = Nanoseconds(all - first);
  if (!is_stream()) return exchange_->Send(json);
  exchange_->WriteLine(json);
  exchange_->EndStream();
}

void AnswerLoaded(const ExchangePtr& exchange, const OllamaRequest& request, bool is_chat) {
  Json json = {{"model", request.options.model},
               {"created_at", Rfc3339(std::chrono::system_clock::now())}};
  if (is_chat) {
    json["message"] = {{"role", "assistant"}, {"content", ""}};
  } else {
    json["response"] = "";
  }
  json["done"] = true;
  json["done_reason"] = "load";
  exchange->Send(json);
}

Status GenerateForOllama(const ServiceState& state, const ExchangePtr& exchange, bool is_chat) {
  KVL_ASSIGN_OR_RETURN(const Json json, state.ParseBody(exchange->request().body));
  KVL_ASSIGN_OR_RETURN(OllamaRequest request,
                       is_chat ? ReadOllamaChat(state, json) : ReadOllamaGenerate(state, json));
  if (request.only_loads) {
    AnswerLoaded(exchange, request, is_chat);
    return OkStatus();
  }
  KVL_ASSIGN_OR_RETURN(
      std::vector<ChoicePlan> plans,
      PlanChatChoices(state, request.options, request.chat, request.max_tokens, std::nullopt));
  if (request.is_infill) {
    std::vector<int>& stop_ids = plans[0].request.stop_ids;
    const auto& ends = state.fill_marks()->ends;
    stop_ids.insert(stop_ids.end(), ends.begin(), ends.end());
  }
  RecordRequest(state, request.options, 1, std::ssize(request.chat.tokens), exchange.get());
  Generation::Start(state, exchange,
                    std::make_unique<OllamaWriter>(exchange, std::move(request), is_chat),
                    std::move(plans));
  return OkStatus();
}

Json DetailsOf(const ServiceState& state) {
  const std::string& family = state.context().levels.front().model->config().model_type;
  return {{"parent_model", ""},   {"format", "gguf"},     {"family", family},
          {"families", {family}}, {"parameter_size", ""}, {"quantization_level", ""}};
}

Json ListedModels(const ServiceState& state) {
  const ApiContext& context = state.context();
  const int64_t n_bytes = context.levels.front().model->held_weight_bytes();
  Json models = Json::array();
  for (const std::string& name : context.model_names) {
    const auto since = std::chrono::system_clock::from_time_t(context.created);
    models.push_back({{"name", name},
                      {"model", name},
                      {"modified_at", Rfc3339(since)},
                      {"size", n_bytes},
                      {"digest", DigestOf({name})},  // clients take its first digits for an id
                      {"details", DetailsOf(state)}});
  }
  return models;
}

StatusOr<Json> Show(const ServiceState& state, const std::string& body) {
  KVL_ASSIGN_OR_RETURN(const Json json, state.ParseBody(body));
  RequestFields fields(json);
  auto name = fields.String("model");
  const auto older = fields.String("name");
  KVL_RETURN_IF_ERROR(fields.status());
  if (!name) name = older;
  if (!name) return FieldError("model", "it is missing");
  KVL_RETURN_IF_ERROR(state.FindModel(OllamaModelName(state, *name)).status());
  const ApiContext& context = state.context();
  const ModelConfig& config = context.levels.front().model->config();
  const std::string& family = config.model_type;
  Json capabilities = {"completion"};
  if (context.chat_template != nullptr && context.chat_template->answer_format(true).calls) {
    capabilities.push_back("tools");
  }
  if (state.fill_marks()) capabilities.push_back("insert");
  capabilities.push_back("embedding");
  return Json{{"modelfile", ""},
              {"parameters", ""},
              {"template",
               context.chat_template == nullptr ? std::string() : context.chat_template->source()},
              {"details", DetailsOf(state)},
              {"model_info",
               {{"general.architecture", family},
                {family + ".context_length", context.context_tokens},
                {family + ".embedding_length", config.hidden_dim},
                {family + ".block_count", config.n_layers},
                {family + ".attention.head_count", config.n_heads},
                {family + ".attention.head_count_kv", config.n_kv_heads},
                {family + ".vocab_size", config.vocab_size}}},
              {"capabilities", std::move(capabilities)},
              {"modified_at", Rfc3339(std::chrono::system_clock::from_time_t(context.created))}};
}

}  // namespace

void HandleOllamaChat(const ServiceState& state, const ExchangePtr& exchange) {
  const Status status = GenerateForOllama(state, exchange, /*is_chat=*/true);
  if (!status.ok()) exchange->SendError(status);
}

void HandleOllamaGenerate(const ServiceState& state, const ExchangePtr& exchange) {
  const Status status = GenerateForOllama(state, exchange, /*is_chat=*/false);
  if (!status.ok()) exchange->SendError(status);
}

void HandleOllamaTags(const ServiceState& state, const ExchangePtr& exchange) {
  exchange->Send({{"models", ListedModels(state)}});
}

// What is served is always there.
void HandleOllamaRunning(const ServiceState& state, const ExchangePtr& exchange) {
  Json models = ListedModels(state);
  for (Json& model : models) {
    model.erase("modified_at");
    model["expires_at"] = "9999-12-31T23:59:59Z";
    model["size_vram"] = 0;
  }
  exchange->Send({{"models", std::move(models)}});
}

void HandleOllamaShow(const ServiceState& state, const ExchangePtr& exchange) {
  const StatusOr<Json> json = Show(state, exchange->request().body);
  if (!json.ok()) return exchange->SendError(json.status());
  exchange->Send(*json);
}

void HandleOllamaVersion(const ServiceState& state, const ExchangePtr& exchange) {
  exchange->Send({{"version", state.context().version}});
}

}  // namespace kvlathe::api
