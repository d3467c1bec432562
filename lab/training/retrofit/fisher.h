// Gradients say how much the loss of a text hangs on the key and value projections of each layer.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "analysis/ranks/fisher.h"
#include "base/status.h"
#include "training/retrofit/decoder.h"

namespace kvlathe {

// `k` and `v` of FisherWeights (docs/methods/palu.md). The loss of a sequence is its mean
// negative log-likelihood, each token predicting the next one; sequences have at least 2 tokens and
// weigh alike. Products run in the type of the parameters. kDataLoss when a gradient is not finite.
StatusOr<FisherWeights> MeasureFisher(const Decoder& decoder,
                                      std::span<const std::vector<int64_t>> sequences);

}  // namespace kvlathe
