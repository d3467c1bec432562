// How tokens are drawn where nobody says: as the model's file does, or in one way for all verbs.
#pragma once

#include <string>

#include "base/status.h"
#include "engine/sampler.h"

namespace kvlathe {

// Where neither a request nor the model's file says anything, as in llama.cpp.
inline constexpr float kDefaultTemperature = 0.8F;

// Of a .gguf file its general.sampling.* (temp, top_k, top_p, min_p, penalty_repeat,
// penalty_last_n), of a directory its generation_config.json (temperature, top_k, top_p, min_p,
// repetition_penalty; do_sample of false is temperature 0), where they are. An empty path is a
// model without a file. kDataLoss where a file says what cannot be.
StatusOr<SamplingParams> DefaultSampling(const std::string& model);

}  // namespace kvlathe
