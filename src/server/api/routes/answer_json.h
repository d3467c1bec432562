// The answers of several routes have these parts in common.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/generation.h"
#include "server/api/routes/generation_options.h"

namespace kvlathe::api {

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt
  int64_t output_tokens = 0;
  int64_t pressed_tokens = 0;   // positions of caches that were compressed further
  int64_t drafted_tokens = 0;   // that were checked
  int64_t accepted_tokens = 0;  // of these, that were generated
};

// Counts a choice that has ended, in the record of the exchange too. A prompt counts once, with its
// first choice: the others begin behind what that one has read.
void CountChoice(const ChoiceEnd& end, bool is_first_of_prompt, Usage* usage, Exchange* exchange);

// {"prompt_tokens","completion_tokens","total_tokens","prompt_tokens_details":{"cached_tokens"}},
// "pressed_tokens" where there are some, and where tokens were drafted, as OpenAI has them,
// "completion_tokens_details": {"accepted_prediction_tokens","rejected_prediction_tokens"}.
Json UsageJson(const Usage& usage);

// "stop" or "length".
std::string_view FinishReasonName(FinishReason reason);

int64_t UnixSeconds();

// A request of the engine for one choice: sampling, level and ends. Its constraint keeps the end
// away for min_tokens. Choices of one request draw with different seeds.
ChoicePlan PlanChoice(const ServiceState& state, const GenerationOptions& options,
                      std::vector<int32_t> prompt, int64_t max_tokens, int seed_offset,
                      const std::vector<int32_t>& more_end_ids = {});

// Fills in what the exchange's record tells of the request that is about to be submitted.
void RecordRequest(const ServiceState& state, const GenerationOptions& options, int n_choices,
                   int64_t prompt_tokens, Exchange* exchange);

}  // namespace kvlathe::api
