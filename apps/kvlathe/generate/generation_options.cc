#include "kvlathe/generate/generation_options.h"

#include <fmt/format.h>

#include <charconv>
#include <map>

#include "engine/stop_matcher.h"
#include "runtime/default_sampling.h"

namespace kvlathe {
namespace {

StatusOr<std::map<int32_t, float>> ParseLogitBias(const std::vector<std::string>& arguments) {
  std::map<int32_t, float> biases;
  for (const std::string& argument : arguments) {
    const char* const end = argument.data() + argument.size();
    int32_t id = 0;
    float bias = 0;
    const auto after_id = std::from_chars(argument.data(), end, id);
    bool ok = after_id.ec == std::errc() && after_id.ptr != end && *after_id.ptr == '=';
    if (ok) {
      const auto after_bias = std::from_chars(after_id.ptr + 1, end, bias);
      ok = after_bias.ec == std::errc() && after_bias.ptr == end;
    }
    if (!ok) {
      return Error(StatusCode::kInvalidArgument,
                   "--logit-bias {}: give a token id and a number as ID=BIAS", argument);
    }
    biases[id] = bias;
  }
  return biases;
}

template <typename T>
void AddSampling(CLI::App* verb, GenerationOptions* options, const char* names,
                 T SamplingParams::*member, const char* help) {
  const CLI::Option* option =
      verb->add_option(names, options->sampling.*member, help)->capture_default_str();
  options->overrides.push_back([=](SamplingParams* sampling) {
    if (option->count() > 0) sampling->*member = options->sampling.*member;
  });
}

}  // namespace

StatusOr<SamplingParams> GenerationOptions::CheckedOver(const SamplingParams& given) const {
  SamplingParams checked = given;
  for (const auto& override_in : overrides) override_in(&checked);
  if (!logit_bias.empty()) {
    KVL_ASSIGN_OR_RETURN(checked.logit_bias, ParseLogitBias(logit_bias));
  }
  KVL_RETURN_IF_ERROR(checked.Check());
  KVL_RETURN_IF_ERROR(StopMatcher::CheckStops(stops));
  return checked;
}

void AddGenerationOptions(CLI::App* verb, GenerationOptions* options) {
  const auto add = [&](const char* names, auto member, const char* help) {
    AddSampling(verb, options, names, member, help);
  };
  options->sampling.temperature = kDefaultTemperature;
  add("--temp", &SamplingParams::temperature,
      "temperature, 0 is greedy; this and those below are as the model's file says, where it does");
  add("--top-k", &SamplingParams::top_k, "the k most likely tokens, 0 is all");
  add("--top-p", &SamplingParams::top_p, "the smallest set with this probability");
  add("--min-p", &SamplingParams::min_p,
      "tokens at least this likely in relation to the likeliest, 0 is all");
  add("--repeat-penalty", &SamplingParams::repetition_penalty,
      "divides the logits of recent tokens, 1 is off");
  add("--repeat-last-n", &SamplingParams::repeat_last_n,
      "tokens that --repeat-penalty looks back, -1 is all");
  add("--presence-penalty", &SamplingParams::presence_penalty,
      "taken from the logits of generated tokens");
  add("--frequency-penalty", &SamplingParams::frequency_penalty,
      "the same for every time that a token was generated");
  add("-s,--seed", &SamplingParams::seed, "seed of the sampler");
  verb->add_option("--logit-bias", options->logit_bias,
                   "ID=BIAS, added to the logit of a token; repeats")
      ->allow_extra_args(false);
  verb->add_option("--stop", options->stops, "ends the text before this; repeats")
      ->allow_extra_args(false);
  AddDraftOption(verb, &options->draft_text);
}

std::string DraftsText(const std::optional<DraftOptions>& draft, int64_t n_drafted,
                       int64_t n_accepted) {
  if (!draft.has_value()) return "";
  return fmt::format("; of {} drafted tokens {} were accepted", n_drafted, n_accepted);
}

const char* NameOf(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kFailed:
      return "error";
    default:
      return "cancelled";
  }
}

}  // namespace kvlathe
