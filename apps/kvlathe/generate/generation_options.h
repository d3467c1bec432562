// `run` and `chat` share the options that say how text is generated.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/sampler.h"
#include "kvlathe/options.h"

namespace kvlathe {

struct GenerationOptions {
  SamplingParams sampling;
  std::vector<std::string> logit_bias;  // --logit-bias ID=BIAS, repeats
  std::vector<std::string> stops;       // --stop, repeats

  // Each copies an option into its argument if the command line gives it.
  std::vector<std::function<void(SamplingParams*)>> overrides;

  // Before the model is known; kInvalidArgument, also for an empty stop string.
  Status Check() const { return CheckedOver(sampling).status(); }
  // The sampling of a model (DefaultSampling) or of a saved session, with what the command line
  // gives instead, and the biases. Errors are those of Check.
  StatusOr<SamplingParams> CheckedOver(const SamplingParams& given) const;
};

// --temp, --top-k, --top-p, --min-p, the penalties, --logit-bias, -s, --stop. `options` outlives
// the verb.
void AddGenerationOptions(CLI::App* verb, GenerationOptions* options);

// "stop", "length", "error" or "cancelled".
const char* NameOf(FinishReason reason);

}  // namespace kvlathe
