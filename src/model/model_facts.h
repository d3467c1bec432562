// A model tells these facts to the plan of its cache.
#pragma once

#include "model/config.h"
#include "model/ranks/model_shard.h"
#include "plan/model_facts.h"

namespace kvlathe {

// Of the whole model, whose ranks are those of `grid`.
ModelFacts FactsOf(const ModelConfig& config, DType row_type, const RankGrid& grid = {});

}  // namespace kvlathe
