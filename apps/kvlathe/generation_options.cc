#include "generation_options.h"

#include <charconv>
#include <map>

#include "engine/stop_matcher.h"

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

}  // namespace

StatusOr<SamplingParams> GenerationOptions::Checked() const {
  SamplingParams checked = sampling;
  KVL_ASSIGN_OR_RETURN(checked.logit_bias, ParseLogitBias(logit_bias));
  KVL_RETURN_IF_ERROR(checked.Check());
  KVL_RETURN_IF_ERROR(StopMatcher::CheckStops(stops));
  return checked;
}

void AddGenerationOptions(CLI::App* verb, GenerationOptions* options) {
  SamplingParams* sampling = &options->sampling;
  verb->add_option("--temp", sampling->temperature, "temperature, 0 is greedy")
      ->capture_default_str();
  verb->add_option("--top-k", sampling->top_k, "the k most likely tokens, 0 is all")
      ->capture_default_str();
  verb->add_option("--top-p", sampling->top_p, "the smallest set with this probability")
      ->capture_default_str();
  verb->add_option("--min-p", sampling->min_p,
                   "tokens at least this likely in relation to the likeliest, 0 is all")
      ->capture_default_str();
  verb->add_option("--repeat-penalty", sampling->repetition_penalty,
                   "divides the logits of recent tokens, 1 is off")
      ->capture_default_str();
  verb->add_option("--repeat-last-n", sampling->repeat_last_n,
                   "tokens that --repeat-penalty looks back, -1 is all")
      ->capture_default_str();
  verb->add_option("--presence-penalty", sampling->presence_penalty,
                   "taken from the logits of generated tokens")
      ->capture_default_str();
  verb->add_option("--frequency-penalty", sampling->frequency_penalty,
                   "the same for every time that a token was generated")
      ->capture_default_str();
  verb->add_option("--logit-bias", options->logit_bias,
                   "ID=BIAS, added to the logit of a token; repeats")
      ->allow_extra_args(false);
  verb->add_option("-s,--seed", sampling->seed, "seed of the sampler")->capture_default_str();
  verb->add_option("--stop", options->stops, "ends the text before this; repeats")
      ->allow_extra_args(false);
}

const char* NameOf(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    default:
      return "cancelled";
  }
}

}  // namespace kvlathe
