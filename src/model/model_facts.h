// A model tells these facts to the plan of its cache.
#pragma once

#include "model/config.h"
#include "plan/model_facts.h"

namespace kvlathe {

ModelFacts FactsOf(const ModelConfig& config, DType row_type);

}  // namespace kvlathe
