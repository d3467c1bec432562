// Tests ask the engine for the logits of a model that the trainer wrote.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvlathe {

// Logits of the engine in F32 with the cache of `spec`, of all tokens: fed token by token, and as
// one prompt.
std::vector<std::vector<float>> StepwiseEngineLogits(const std::string& directory,
                                                     const std::string& spec,
                                                     const std::vector<int32_t>& tokens);

}  // namespace kvlathe
