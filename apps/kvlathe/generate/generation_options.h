// `run` and `chat` share the options that say how text is generated.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/drafts/drafter.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "kvlathe/draft_options.h"
#include "kvlathe/options.h"

namespace kvlathe {

struct GenerationOptions {
  SamplingParams sampling;
  std::vector<std::string> logit_bias;  // --logit-bias ID=BIAS, repeats
  std::vector<std::string> stops;       // --stop, repeats
  std::string draft_text = "none";      // --draft, checked when parsed

  // Each copies an option into its argument if the command line gives it.
  std::vector<std::function<void(SamplingParams*)>> overrides;

  std::optional<DraftOptions> draft() const { return ParseDraft(draft_text); }

  // Before the model is known; kInvalidArgument, also for an empty stop string.
  Status Check() const { return CheckedOver(sampling).status(); }
  // The sampling of a model (DefaultSampling) or of a saved session, with what the command line
  // gives instead, and the biases. Errors are those of Check.
  StatusOr<SamplingParams> CheckedOver(const SamplingParams& given) const;
};

// --temp, --top-k, --top-p, --min-p, the penalties, --logit-bias, -s, --stop, --draft. `options`
// outlives the verb.
void AddGenerationOptions(CLI::App* verb, GenerationOptions* options);

// What --draft brought: "; of N drafted tokens N were accepted", nothing without it.
std::string DraftsText(const std::optional<DraftOptions>& draft, int64_t n_drafted,
                       int64_t n_accepted);

// "stop", "length", "error" or "cancelled".
const char* NameOf(FinishReason reason);

}  // namespace kvlathe
