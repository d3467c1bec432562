// What clients of llama.cpp's server look for: /props, /slots and /infill.
#include <optional>
#include <utility>
#include <vector>

#include "server/api/api_error.h"
#include "server/api/generation.h"
#include "server/api/routes/answer_json.h"
#include "server/api/routes/generation_options.h"
#include "server/api/routes/routes.h"

namespace kvlathe::api {
namespace {

Json SamplingJson(const SamplingParams& sampling) {
  return {{"temperature", sampling.temperature},
          {"top_k", sampling.top_k},
          {"top_p", sampling.top_p},
          {"min_p", sampling.min_p},
          {"repeat_penalty", sampling.repetition_penalty},
          {"presence_penalty", sampling.presence_penalty},
          {"frequency_penalty", sampling.frequency_penalty},
          {"seed", sampling.seed}};
}

Json SlotJson(const ServiceState& state, int id, const Slot* slot) {
  Json json = {
      {"id", id}, {"n_ctx", state.context().context_tokens}, {"is_processing", slot != nullptr}};
  if (slot == nullptr) return json;
  const int64_t n_generated = slot->n_generated;
  Json params = SamplingJson(slot->sampling);
  params["n_predict"] = slot->max_tokens;
  json["id_task"] = slot->request_id;
  json["kv"] = slot->level;
  json["n_prompt_tokens"] = slot->n_prompt;
  json["params"] = std::move(params);
  json["next_token"] = {{"has_next_token", n_generated < slot->max_tokens},
                        {"n_remain", slot->max_tokens - n_generated},
                        {"n_decoded", n_generated}};
  return json;
}

struct InfillRequest {
  GenerationOptions options;
  std::vector<int32_t> prompt;
  int64_t max_tokens = 0;
};

StatusOr<std::vector<NamedText>> ReadFiles(const ServiceState& state, RequestFields* fields) {
  const Json* const extra = fields->Array("input_extra");
  KVL_RETURN_IF_ERROR(fields->status());
  std::vector<NamedText> files;
  if (extra == nullptr || extra->empty()) return files;
  if (!state.fill_marks()->file) {
    return UnsupportedField("input_extra", "this model has no token in front of a further file");
  }
  for (size_t i = 0; i < extra->size(); ++i) {
    const std::string path = fmt::format("input_extra[{}]", i);
    if (!(*extra)[i].is_object()) {
      return FieldError(path, "this is {}; give an object", KindOf((*extra)[i]));
    }
    RequestFields of_file((*extra)[i], path + ".");
    files.push_back(
        {of_file.String("filename").value_or("snippet"), of_file.String("text").value_or("")});
    KVL_RETURN_IF_ERROR(of_file.status());
  }
  return files;
}

StatusOr<InfillRequest> ReadInfillRequest(const ServiceState& state, const Json& json) {
  KVL_RETURN_IF_ERROR(CheckFills(state, "input_prefix"));
  RequestFields fields(json);
  InfillRequest request;
  request.options = ReadGenerationOptions(state, &fields);
  const std::string before = fields.String("input_prefix").value_or("");
  const std::string suffix = fields.String("input_suffix").value_or("");
  const std::string prompt = fields.String("prompt").value_or("");
  const auto n_predict = fields.Integer("n_predict", -1, state.limits().MaxTokens());
  const auto max_tokens = fields.Integer("max_tokens", 1, state.limits().MaxTokens());
  if (request.options.n_choices > 1) {
    fields.Fail(FieldError("n", "one middle is generated; leave it out"));
  }
  KVL_RETURN_IF_ERROR(fields.status());
  KVL_ASSIGN_OR_RETURN(const std::vector<NamedText> files, ReadFiles(state, &fields));
  for (const std::string* const text : {&before, &suffix, &prompt}) {
    KVL_RETURN_IF_ERROR(state.CheckText(*text, "input_prefix"));
  }
  KVL_ASSIGN_OR_RETURN(request.prompt, TokensToFill(state.tokenizer(), *state.fill_marks(), files,
                                                    before + prompt, suffix));
  const int64_t n_prompt = std::ssize(request.prompt);
  std::optional<int64_t> wanted = max_tokens;
  if (n_predict && *n_predict > 0) wanted = n_predict;
  KVL_RETURN_IF_ERROR(state.CheckLength(n_prompt, wanted.value_or(1), "input_prefix"));
  request.max_tokens = wanted.value_or(state.RoomBehind(n_prompt));
  request.options.unknown_fields = fields.Unasked();
  return request;
}

class InfillWriter : public AnswerWriter {
 public:
  InfillWriter(std::shared_ptr<Exchange> exchange, InfillRequest request)
      : exchange_(std::move(exchange)), request_(std::move(request)) {}

  void Begin() override {
    if (request_.options.is_stream) exchange_->BeginStream();
  }
  void Take(ChoiceEvent event) override {
    if (event.end) {
      end_ = *event.end;
      CountChoice(end_, /*is_first_of_prompt=*/true, &usage_, exchange_.get());
    }
    text_ += event.text;
    if (!request_.options.is_stream || text_.empty()) return;
    exchange_->WriteEvent({{"index", 0}, {"content", std::exchange(text_, "")}, {"stop", false}});
  }
  void Finish() override {
    Json json = {{"index", 0},
                 {"content", text_},
                 {"stop", true},
                 {"model", request_.options.model},
                 {"tokens_predicted", end_.n_tokens},
                 {"tokens_evaluated", std::ssize(request_.prompt)},
                 {"tokens_cached", usage_.cached_tokens},
                 {"stop_type", end_.reason == FinishReason::kLength ? "limit" : "eos"},
                 {"truncated", false}};
    if (!request_.options.is_stream) return exchange_->Send(json);
    exchange_->WriteEvent(json);
    exchange_->EndStream();
  }
  void Fail(const ApiError& error) override { exchange_->Fail(error); }

 private:
  std::shared_ptr<Exchange> exchange_;
  InfillRequest request_;
  std::string text_;  // that is not sent yet
  ChoiceEnd end_;
  Usage usage_;
};

Status Infill(const ServiceState& state, const ExchangePtr& exchange) {
  KVL_ASSIGN_OR_RETURN(const Json json, state.ParseBody(exchange->request().body));
  KVL_ASSIGN_OR_RETURN(InfillRequest request, ReadInfillRequest(state, json));
  RecordRequest(state, request.options, 1, std::ssize(request.prompt), exchange.get());
  ChoicePlan plan = PlanChoice(state, request.options, request.prompt, request.max_tokens, 0,
                               state.fill_marks()->ends);
  plan.detokenizer = {.continues_text = true};
  std::vector<ChoicePlan> plans;
  plans.push_back(std::move(plan));
  Generation::Start(state, exchange, std::make_unique<InfillWriter>(exchange, std::move(request)),
                    std::move(plans));
  return OkStatus();
}

}  // namespace

void HandleProps(const ServiceState& state, const ExchangePtr& exchange) {
  const ApiContext& context = state.context();
  const Tokenizer& tokenizer = state.tokenizer();
  const auto text_of = [&](const std::optional<int32_t>& id) {
    return id ? tokenizer.TokenBytes(*id, /*keep_special=*/true) : std::string();
  };
  Json defaults = {{"n_ctx", context.context_tokens}, {"params", SamplingJson(context.sampling)}};
  exchange->Send(
      {{"default_generation_settings", std::move(defaults)},
       {"total_slots", context.n_slots},
       {"model_alias", context.model_names.front()},
       {"model_path", context.model_names.front()},
       {"modalities", {{"vision", false}, {"audio", false}}},
       {"chat_template",
        context.chat_template == nullptr ? std::string() : context.chat_template->source()},
       {"bos_token", text_of(tokenizer.bos_id())},
       {"eos_token", text_of(tokenizer.eos_id())},
       {"build_info", "kvlathe " + context.version}});
}

void HandleSlots(const ServiceState& state, const ExchangePtr& exchange) {
  Json json = Json::array();
  int id = 0;
  for (const auto& slot : state.slots().Slots(state.context().n_slots)) {
    json.push_back(SlotJson(state, id++, slot.get()));
  }
  exchange->Send(json);
}

void HandleInfill(const ServiceState& state, const ExchangePtr& exchange) {
  if (const Status status = Infill(state, exchange); !status.ok()) exchange->SendError(status);
}

}  // namespace kvlathe::api
