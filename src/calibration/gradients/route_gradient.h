// Gradients through a router: from those of the weights of the experts that a row goes to. Which
// experts these are is taken as it is.
#pragma once

#include <cstdint>
#include <span>

#include "model/config.h"

namespace kvlathe {

// logits [n_experts] with the router's biases; `experts` are those of the row as Backend::Route
// chose them, d_weights with respect to their weights. Adds to d_logits [n_experts].
void RouteBack(const ExpertsConfig& config, std::span<const float> logits,
               std::span<const int32_t> experts, std::span<const double> d_weights,
               std::span<float> d_logits);

}  // namespace kvlathe
