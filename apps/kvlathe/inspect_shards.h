// `kvlathe inspect --tp N --pp M` shows what each of several ranks would hold of a cache, and what
// dividing it costs.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kv/cache_layout.h"
#include "plan/plan_shard.h"
#include "runtime/workspace.h"

namespace kvlathe {

struct DivisionOptions {
  int tensor_ranks = 1;     // --tp
  int pipeline_stages = 1;  // --pp

  bool divides() const { return tensor_ranks > 1 || pipeline_stages > 1; }
};
void AddDivisionOptions(CLI::App* verb, DivisionOptions* options);

// Before anything is calibrated: the errors of CheckSpec on so many ranks. A question passes.
Status CheckDivided(Workspace* workspace, const std::string& kv, const DivisionOptions& options);

// The cache of one rank of one stage, after a prompt that fills the context.
struct RankCache {
  PlanShard shard;
  KvBytes bytes;
};

struct DividedCache {
  std::vector<RankCache> ranks;             // stage by stage
  int heads_per_map = 1;                    // KV heads of the model that a map joins
  std::optional<double> predicted_kl = {};  // in nats per token, where one is predicted
};

StatusOr<DividedCache> DivideCache(Workspace* workspace, const Spec& spec,
                                   const DivisionOptions& options);

nlohmann::ordered_json DividedCacheJson(const DividedCache& cache);
// `whole` says the same of the cache on one machine.
void PrintDividedCache(const DividedCache& cache, const DividedCache& whole);

}  // namespace kvlathe
