// /v1/completions: texts or token ids go on.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "server/api/api_error.h"
#include "server/api/generation.h"
#include "server/api/routes/answer_json.h"
#include "server/api/routes/generation_options.h"
#include "server/api/routes/logprobs_json.h"
#include "server/api/routes/routes.h"

namespace kvlathe::api {
namespace {

constexpr int kDefaultMaxTokens = 16;  // as OpenAI's API

struct CompletionPrompt {
  std::vector<int32_t> tokens;
  std::string text;            // what echo shows
  int64_t n_hidden = 0;        // of the tokens: BOS, which the text does not show
  bool shows_special = false;  // the text has special tokens written out
};

struct CompletionRequest {
  GenerationOptions options;
  std::vector<CompletionPrompt> prompts;
  bool is_infill = false;  // the one prompt asks for what stands between two texts
  bool echoes = false;
  std::optional<int> n_logprobs;
  std::optional<int64_t> max_tokens;  // none: the default

  int n_choices() const { return static_cast<int>(prompts.size()) * options.n_choices; }
  const CompletionPrompt& PromptOf(int choice_idx) const {
    return prompts[choice_idx / options.n_choices];
  }
};

StatusOr<CompletionPrompt> TextPrompt(const ServiceState& state, std::string text,
                                      bool adds_special) {
  KVL_RETURN_IF_ERROR(state.CheckText(text, "prompt"));
  CompletionPrompt prompt;
  KVL_ASSIGN_OR_RETURN(prompt.tokens, state.tokenizer().TryTokenize(text, adds_special));
  // What the tokenizer adds stands in front of any text, also of none; a text that begins with it
  // gets no second.
  if (adds_special && prompt.tokens != state.tokenizer().Tokenize(text, false)) {
    prompt.n_hidden = std::ssize(state.tokenizer().Tokenize("", true));
  }
  prompt.shows_special = true;
  prompt.text = std::move(text);
  return prompt;
}

StatusOr<CompletionPrompt> TokenPrompt(const ServiceState& state, const Json& ids) {
  CompletionPrompt prompt;
  const int vocab_size = state.vocab_size();
  for (const Json& id : ids) {
    if (!id.is_number_integer() || id < 0 || id >= vocab_size) {
      return FieldError("prompt", "{} is no token id; ids go from 0 to {}", Dump(id),
                        vocab_size - 1);
    }
    prompt.tokens.push_back(id.get<int32_t>());
  }
  prompt.text = state.tokenizer().Detokenize(prompt.tokens);
  return prompt;
}

// A text, a list of texts, a list of token ids or a list of such lists.
StatusOr<std::vector<CompletionPrompt>> ReadPrompts(const ServiceState& state, const Json* json,
                                                    bool adds_special) {
  constexpr std::string_view kForms =
      "give a text, a list of texts, a list of token ids or a list "
      "of lists of token ids";
  if (json == nullptr) return FieldError("prompt", "it is missing; {}", kForms);
  std::vector<CompletionPrompt> prompts;
  if (json->is_string()) {
    KVL_ASSIGN_OR_RETURN(CompletionPrompt prompt,
                         TextPrompt(state, json->get<std::string>(), adds_special));
    prompts.push_back(std::move(prompt));
    return prompts;
  }
  if (!json->is_array() || json->empty()) {
    return FieldError("prompt", "this is {}; {}", json->is_array() ? "empty" : KindOf(*json),
                      kForms);
  }
  if (json->front().is_number()) {
    KVL_ASSIGN_OR_RETURN(CompletionPrompt prompt, TokenPrompt(state, *json));
    prompts.push_back(std::move(prompt));
    return prompts;
  }
  if (std::ssize(*json) > state.limits().max_choices) {
    return FieldError("prompt", "{} prompts; this server takes at most {} in one request",
                      json->size(), state.limits().max_choices);
  }
  const bool has_texts = json->front().is_string();
  for (const Json& item : *json) {
    if (has_texts ? !item.is_string() : !item.is_array()) {
      return FieldError("prompt", "the list has {} in it; {}", KindOf(item), kForms);
    }
    KVL_ASSIGN_OR_RETURN(CompletionPrompt prompt,
                         has_texts ? TextPrompt(state, item.get<std::string>(), adds_special)
                                   : TokenPrompt(state, item));
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

// One text and `suffix` behind the answer.
StatusOr<CompletionPrompt> PromptToFill(const ServiceState& state, const RequestFields& fields,
                                        const CompletionRequest& request,
                                        const std::string& suffix) {
  KVL_RETURN_IF_ERROR(CheckFills(state, "suffix"));
  const Json* const prompt = fields.Find("prompt");
  if (prompt == nullptr || !prompt->is_string()) {
    return FieldError("prompt", "beside suffix it is one text");
  }
  if (request.echoes || request.n_logprobs) {
    return FieldError("suffix", "it does not go with echo and logprobs; leave it out");
  }
  CompletionPrompt made;
  made.text = prompt->get<std::string>();
  KVL_RETURN_IF_ERROR(state.CheckText(made.text, "prompt"));
  KVL_RETURN_IF_ERROR(state.CheckText(suffix, "suffix"));
  KVL_ASSIGN_OR_RETURN(made.tokens,
                       TokensToFill(state.tokenizer(), *state.fill_marks(), {}, made.text, suffix));
  return made;
}

Status CheckPrompts(const ServiceState& state, const CompletionRequest& request) {
  if (request.n_choices() > state.limits().max_choices) {
    return FieldError(
        "n", "{} prompts times {} are more than the {} choices that this server takes",
        request.prompts.size(), request.options.n_choices, state.limits().max_choices);
  }
  for (const CompletionPrompt& prompt : request.prompts) {
    if (prompt.tokens.empty()) return FieldError("prompt", "a prompt has no tokens");
    // Without max_tokens the answer gets what is left.
    const int64_t n_answer = request.max_tokens.value_or(1);
    KVL_RETURN_IF_ERROR(state.CheckLength(std::ssize(prompt.tokens), n_answer, "prompt"));
  }
  return OkStatus();
}

StatusOr<CompletionRequest> ReadCompletionRequest(const ServiceState& state, const Json& json) {
  RequestFields fields(json);
  CompletionRequest request;
  request.options = ReadGenerationOptions(state, &fields);
  request.echoes = fields.Bool("echo").value_or(false);
  if (const auto n = fields.Integer("logprobs", 0, kMaxTopLogprobs)) {
    request.n_logprobs = static_cast<int>(*n);
  }
  request.max_tokens = fields.Integer("max_tokens", 0, state.limits().MaxTokens());
  const int n = request.options.n_choices;
  if (const auto best_of = fields.Integer("best_of", 1, state.limits().max_choices);
      best_of && *best_of != n) {
    fields.Fail(FieldError("best_of", "only as many as n ({}) are generated; leave it out", n));
  }
  const std::string suffix = fields.String("suffix").value_or("");
  const bool adds_special = fields.Bool("add_special_tokens").value_or(true);
  KVL_RETURN_IF_ERROR(fields.status());
  if (suffix.empty()) {
    KVL_ASSIGN_OR_RETURN(request.prompts, ReadPrompts(state, fields.Find("prompt"), adds_special));
  } else {
    KVL_ASSIGN_OR_RETURN(CompletionPrompt prompt, PromptToFill(state, fields, request, suffix));
    request.prompts.push_back(std::move(prompt));
    request.is_infill = true;
  }
  KVL_RETURN_IF_ERROR(CheckPrompts(state, request));
  request.options.unknown_fields = fields.Unasked();
  return request;
}

class CompletionWriter : public AnswerWriter {
 public:
  CompletionWriter(const ServiceState& state, std::shared_ptr<Exchange> exchange,
                   CompletionRequest request)
      : state_(state),
        exchange_(std::move(exchange)),
        request_(std::move(request)),
        created_(UnixSeconds()) {
    for (int i = 0; i < request_.n_choices(); ++i) {
      choices_.emplace_back(&state_.tokenizer(), request_.echoes,
                            LastTokens(request_.PromptOf(i).tokens));
    }
    for (const CompletionPrompt& prompt : request_.prompts) {
      usage_.prompt_tokens += std::ssize(prompt.tokens);
    }
  }

  void Begin() override {
    if (request_.options.is_stream) exchange_->BeginStream();
  }
  void Take(ChoiceEvent event) override;
  void Finish() override;
  void Fail(const ApiError& error) override { exchange_->Fail(error); }

 private:
  struct Choice {
    Choice(const Tokenizer* tokenizer, bool echoes, std::span<const int32_t> text_before)
        : logprobs(tokenizer, echoes, text_before) {}
    std::string text;  // that is not sent yet
    LegacyLogprobs logprobs;
    bool has_begun = false;
    std::optional<ChoiceEnd> end;
  };

  Json Envelope(Json choices) const;
  // What is not sent yet.
  Json TakeChoice(int choice_idx);

  const ServiceState& state_;
  std::shared_ptr<Exchange> exchange_;
  CompletionRequest request_;
  int64_t created_;
  std::vector<Choice> choices_;
  Usage usage_;
};

void CompletionWriter::Take(ChoiceEvent event) {
  Choice& choice = choices_[event.choice_idx];
  const CompletionPrompt& prompt = request_.PromptOf(event.choice_idx);
  if (!std::exchange(choice.has_begun, true) && request_.echoes) choice.text = prompt.text;
  choice.text += event.text;
  choice.logprobs.AddPrompt(event.prompt_logprobs, prompt.text, prompt.n_hidden,
                            prompt.shows_special);
  if (event.logprobs) choice.logprobs.AddToken(*event.logprobs);
  choice.end = event.end;
  if (event.end) {
    const bool is_first = event.choice_idx % request_.options.n_choices == 0;
    CountChoice(*event.end, is_first, &usage_, exchange_.get());
  }
  if (!request_.options.is_stream) return;
  // Log-probabilities of text that is held back come with it.
  if (choice.text.empty() && !event.end) return;
  exchange_->WriteEvent(Envelope(Json::array({TakeChoice(event.choice_idx)})));
}

Json CompletionWriter::TakeChoice(int choice_idx) {
  Choice& choice = choices_[choice_idx];
  Json json = {{"index", choice_idx},
               {"text", std::exchange(choice.text, "")},
               {"logprobs", nullptr},
               {"finish_reason", nullptr}};
  if (request_.n_logprobs) json["logprobs"] = choice.logprobs.Take();
  if (choice.end) json["finish_reason"] = FinishReasonName(choice.end->reason);
  return json;
}

Json CompletionWriter::Envelope(Json choices) const {
  Json json = {{"id", "cmpl-" + exchange_->request().id},
               {"object", "text_completion"},
               {"created", created_},
               {"model", request_.options.model},
               {"choices", std::move(choices)}};
  if (request_.options.streams_usage) json["usage"] = nullptr;
  return json;
}

void CompletionWriter::Finish() {
  if (request_.options.is_stream) {
    if (request_.options.streams_usage) {
      Json json = Envelope(Json::array());
      json["usage"] = UsageJson(usage_);
      exchange_->WriteEvent(json);
    }
    exchange_->WriteDone();
    return exchange_->EndStream();
  }
  Json choices = Json::array();
  for (int i = 0; i < std::ssize(choices_); ++i) choices.push_back(TakeChoice(i));
  Json json = Envelope(std::move(choices));
  json["usage"] = UsageJson(usage_);
  exchange_->Send(json);
}

std::vector<ChoicePlan> PlanChoices(const ServiceState& state, const CompletionRequest& request) {
  std::vector<ChoicePlan> plans;
  for (int i = 0; i < request.n_choices(); ++i) {
    const CompletionPrompt& prompt = request.PromptOf(i);
    const int64_t n_prompt = std::ssize(prompt.tokens);
    const int64_t max_tokens = request.max_tokens.value_or(
        std::min<int64_t>(kDefaultMaxTokens, state.RoomBehind(n_prompt)));
    const std::vector<int32_t> more_ends =
        request.is_infill ? state.fill_marks()->ends : std::vector<int32_t>();
    ChoicePlan plan =
        PlanChoice(state, request.options, prompt.tokens, std::max<int64_t>(max_tokens, 1),
                   i % request.options.n_choices, more_ends);
    plan.drops_tokens = max_tokens == 0;
    plan.request.n_top_logprobs = request.n_logprobs;
    plan.request.prompt_logprobs = request.echoes && request.n_logprobs.has_value();
    // Who asks for the prompt's log-probabilities counts on an entry for each generated token, also
    // for the end of sequence, and an engine that ends there would give none of them.
    if (plan.request.prompt_logprobs) std::swap(plan.seen_end_ids, plan.request.stop_ids);
    plan.detokenizer = {.continues_text = true};
    if (!request.is_infill) plan.text_before = LastTokens(prompt.tokens);
    plans.push_back(std::move(plan));
  }
  return plans;
}

Status Complete(const ServiceState& state, const ExchangePtr& exchange) {
  KVL_ASSIGN_OR_RETURN(const Json json, state.ParseBody(exchange->request().body));
  KVL_ASSIGN_OR_RETURN(CompletionRequest request, ReadCompletionRequest(state, json));
  int64_t n_prompt_tokens = 0;
  for (const CompletionPrompt& prompt : request.prompts) {
    n_prompt_tokens += std::ssize(prompt.tokens);
  }
  RecordRequest(state, request.options, request.n_choices(), n_prompt_tokens, exchange.get());
  std::vector<ChoicePlan> plans = PlanChoices(state, request);
  Generation::Start(state, exchange,
                    std::make_unique<CompletionWriter>(state, exchange, std::move(request)),
                    std::move(plans));
  return OkStatus();
}

}  // namespace

void HandleCompletions(const ServiceState& state, const ExchangePtr& exchange) {
  if (const Status status = Complete(state, exchange); !status.ok()) exchange->SendError(status);
}

}  // namespace kvlathe::api
