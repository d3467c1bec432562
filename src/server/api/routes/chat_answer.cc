#include "server/api/routes/chat_answer.h"

#include <random>
#include <utility>

#include "server/api/api_error.h"

namespace kvlathe::api {
namespace {

// "call_" and 24 letters or digits by chance, as OpenAI's.
std::string NewCallId() {
  constexpr std::string_view kChars =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  constexpr int kLength = 24;
  thread_local std::mt19937_64 random{std::random_device()()};
  std::uniform_int_distribution<size_t> pick(0, kChars.size() - 1);
  std::string id = "call_";
  for (int i = 0; i < kLength; ++i) id += kChars[pick(random)];
  return id;
}

}  // namespace

AnswerDelta ChatAnswer::Push(const std::string& text, bool is_end) {
  AnswerDelta delta;
  if (parser_ == nullptr) {
    delta.content = text;
  } else {
    delta = parser_->Push(text);
    if (is_end) {
      AnswerDelta rest = parser_->Finish();
      delta.content += rest.content;
      delta.thoughts += rest.thoughts;
      delta.calls.insert(delta.calls.end(), std::make_move_iterator(rest.calls.begin()),
                         std::make_move_iterator(rest.calls.end()));
    }
  }
  Append(delta);
  return delta;
}

void ChatAnswer::Append(const AnswerDelta& delta) {
  content_ += delta.content;
  thoughts_ += delta.thoughts;
  for (const AnswerDelta::Call& call : delta.calls) {
    while (std::ssize(calls_) <= call.call_idx) calls_.push_back({.id = NewCallId()});
    calls_[call.call_idx].name += call.name;
    calls_[call.call_idx].arguments += call.arguments;
  }
}

Json ToolCallJson(const ToolCall& call) {
  return {{"id", call.id},
          {"type", "function"},
          {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
}

Json CallDeltaJson(const ChatAnswer& answer, const AnswerDelta::Call& call) {
  Json json = {{"index", call.call_idx}};
  Json function = {{"arguments", call.arguments}};
  if (!call.name.empty()) {
    json["id"] = answer.calls()[call.call_idx].id;
    json["type"] = "function";
    function = {{"name", call.name}, {"arguments", call.arguments}};
  }
  json["function"] = std::move(function);
  return json;
}

StatusOr<std::vector<ChoicePlan>> PlanChatChoices(const ServiceState& state,
                                                  const GenerationOptions& options,
                                                  const TokenizedChat& chat, int64_t max_tokens,
                                                  std::optional<int> n_logprobs) {
  const bool is_constrained = chat.prompt.make_constraint != nullptr;
  if (is_constrained && (options.min_tokens > 0 || options.ignores_end)) {
    const char* const name = options.ignores_end ? "ignore_eos" : "min_tokens";
    return FieldError(name,
                      "it does not go with response_format or tools, which say where the "
                      "answer ends; leave it out");
  }
  std::vector<ChoicePlan> plans;
  for (int i = 0; i < options.n_choices; ++i) {
    ChoicePlan plan = PlanChoice(state, options, chat.tokens, max_tokens, i, state.chat_ends().ids);
    if (is_constrained) {
      KVL_ASSIGN_OR_RETURN(plan.request.constraint, chat.prompt.make_constraint());
    }
    plan.request.n_top_logprobs = n_logprobs;
    const auto& ends = state.chat_ends().texts;
    if (!options.ignores_end) plan.stops.insert(plan.stops.end(), ends.begin(), ends.end());
    // A template ends in front of the answer: the space that SentencePiece puts in front of a text
    // is no part of it.
    plan.detokenizer = {.continues_text = false, .keeps_special = chat.prompt.keeps_special_tokens};
    plans.push_back(std::move(plan));
  }
  return plans;
}

}  // namespace kvlathe::api
