#include "server/api/routes/answer_json.h"

#include <chrono>
#include <utility>

namespace kvlathe::api {

void CountChoice(const ChoiceEnd& end, bool is_first_of_prompt, Usage* usage, Exchange* exchange) {
  usage->output_tokens += end.n_tokens;
  if (is_first_of_prompt) usage->cached_tokens += end.n_stored;
  usage->pressed_tokens += end.n_pressed;
  usage->drafted_tokens += end.n_drafted;
  usage->accepted_tokens += end.n_accepted;
  exchange->record().drafted_tokens = usage->drafted_tokens;
  exchange->record().accepted_tokens = usage->accepted_tokens;
  exchange->record().cached_tokens = usage->cached_tokens;
  exchange->record().pressed_tokens = usage->pressed_tokens;
}

Json UsageJson(const Usage& usage) {
  Json json = {{"prompt_tokens", usage.prompt_tokens},
               {"completion_tokens", usage.output_tokens},
               {"total_tokens", usage.prompt_tokens + usage.output_tokens},
               {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
  if (usage.pressed_tokens > 0) json["pressed_tokens"] = usage.pressed_tokens;
  if (usage.drafted_tokens > 0) {
    json["completion_tokens_details"] = {
        {"accepted_prediction_tokens", usage.accepted_tokens},
        {"rejected_prediction_tokens", usage.drafted_tokens - usage.accepted_tokens}};
  }
  return json;
}

std::string_view FinishReasonName(FinishReason reason) {
  return reason == FinishReason::kLength ? "length" : "stop";
}

int64_t UnixSeconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

ChoicePlan PlanChoice(const ServiceState& state, const GenerationOptions& options,
                      std::vector<int32_t> prompt, int64_t max_tokens, int seed_offset,
                      const std::vector<int32_t>& more_end_ids) {
  ChoicePlan plan;
  Request& request = plan.request;
  request.prompt = std::move(prompt);
  request.max_tokens = static_cast<int>(max_tokens);
  request.sampling = options.sampling;
  request.sampling.seed += static_cast<uint64_t>(seed_offset);
  request.level = options.level_idx;
  request.rate = options.rate;
  request.refuses_pressure = options.refuses_pressure;
  request.drafter = MakeDrafter(options.draft);
  if (!options.ignores_end) {
    request.stop_ids = state.context().end_ids;
    request.stop_ids.insert(request.stop_ids.end(), more_end_ids.begin(), more_end_ids.end());
  }
  if (options.min_tokens > 0 && !request.stop_ids.empty()) {
    request.constraint =
        std::make_shared<MinTokensConstraint>(request.stop_ids, options.min_tokens);
  }
  plan.stops = options.stops;
  plan.slot_id = options.slot_id;
  return plan;
}

void RecordRequest(const ServiceState& state, const GenerationOptions& options, int n_choices,
                   int64_t prompt_tokens, Exchange* exchange) {
  RequestEnded& record = exchange->record();
  record.level = state.context().levels[options.level_idx].name;
  record.is_stream = options.is_stream;
  record.unknown_fields = options.unknown_fields;
  record.n_choices = n_choices;
  record.prompt_tokens = prompt_tokens;
}

}  // namespace kvlathe::api
