// This part of `kvlathe eval` measures how far free generation under a cache departs from the
// uncompressed model's.
#pragma once

#include <string>

#include "base/status.h"
#include "evaluation/drift.h"
#include "kvlathe/options.h"

namespace kvlathe {

struct DriftEvalOptions {
  std::string text;  // --drift
  DriftOptions drift;
};

// Adds --drift and what goes with it.
void AddDriftOptions(CLI::App* verb, DriftEvalOptions* options);
Status EvalDrift(const ModelOptions& model, const DriftEvalOptions& options);

}  // namespace kvlathe
