#include "kvlathe/inspect_shards.h"

#include <fmt/format.h>

#include "base/units.h"

namespace kvlathe {
namespace {

std::string NameOfRange(const Range& range) {
  return range.end - range.begin == 1 ? fmt::format("{}", range.begin)
                                      : fmt::format("{} to {}", range.begin, range.end - 1);
}

// None where nothing predicts it: a spec of another kind, or statistics without text that was held
// back.
StatusOr<std::optional<double>> PredictedKlOn(CachePlanner* planner, const Workspace& workspace,
                                              const Spec& spec) {
  const std::optional<double> kNothing;
  if (workspace.has_random_weights() || !CheckIsPredicted(spec).ok()) return kNothing;
  const StatusOr<double> predicted = planner->PredictKl(spec);
  if (predicted.status().code() == StatusCode::kFailedPrecondition) return kNothing;
  KVL_RETURN_IF_ERROR(predicted.status());
  return std::optional(*predicted);
}

}  // namespace

void AddDivisionOptions(CLI::App* verb, DivisionOptions* options) {
  verb->add_option("--tp", options->tensor_ranks,
                   "show the cache on so many ranks, which divide the KV heads of every layer, and "
                   "what a basis of fewer joined heads costs")
      ->check(CLI::PositiveNumber);
  verb->add_option("--pp", options->pipeline_stages, "on so many stages, which divide the layers")
      ->check(CLI::PositiveNumber);
}

Status CheckDivided(Workspace* workspace, const std::string& kv, const DivisionOptions& options) {
  KVL_ASSIGN_OR_RETURN(const Spec spec, Spec::Parse(kv));
  if (spec.accuracy().has_value()) return OkStatus();
  CachePlanner planner =
      workspace->planner().Divided(options.tensor_ranks, options.pipeline_stages);
  return planner.Check(spec);
}

StatusOr<DividedCache> DivideCache(Workspace* workspace, const Spec& spec,
                                   const DivisionOptions& options) {
  CachePlanner planner =
      workspace->planner().Divided(options.tensor_ranks, options.pipeline_stages);
  KVL_ASSIGN_OR_RETURN(const CachePlan plan, planner.MakePlan(spec));
  DividedCache cache;
  cache.heads_per_map = HeadsPerMap(plan.layout().keys);
  KVL_ASSIGN_OR_RETURN(cache.predicted_kl, PredictedKlOn(&planner, *workspace, spec));
  const ModelConfig& config = workspace->config();
  const int64_t n = workspace->context_tokens();
  for (const Range& layers : DivideLayers(config.n_layers, options.pipeline_stages)) {
    for (const Range& heads : DivideHeads(config.n_kv_heads, options.tensor_ranks)) {
      const PlanShard shard = {layers, heads};
      cache.ranks.push_back(
          {shard, SequenceParts(ShardOf(plan, shard).layout(), {.n_tokens = n, .n_prompt = n})});
    }
  }
  return cache;
}

nlohmann::ordered_json DividedCacheJson(const DividedCache& cache) {
  nlohmann::ordered_json json = {{"heads_per_map", cache.heads_per_map}};
  if (cache.predicted_kl.has_value()) json["predicted_kl"] = *cache.predicted_kl;
  json["ranks"] = nlohmann::ordered_json::array();
  for (const RankCache& rank : cache.ranks) {
    json["ranks"].push_back({{"layers", {rank.shard.layers.begin, rank.shard.layers.end}},
                             {"kv_heads", {rank.shard.kv_heads.begin, rank.shard.kv_heads.end}},
                             {"kv_bytes", rank.bytes.total()}});
  }
  return json;
}

void PrintDividedCache(const DividedCache& cache, const DividedCache& whole) {
  fmt::print("{:>5} {:>12} {:>12} {:>12}\n", "rank", "layers", "KV heads", "bytes");
  KvBytes sum;
  for (size_t i = 0; i < cache.ranks.size(); ++i) {
    const RankCache& rank = cache.ranks[i];
    fmt::print("{:>5} {:>12} {:>12} {:>12}\n", i, NameOfRange(rank.shard.layers),
               NameOfRange(rank.shard.kv_heads), rank.bytes.total());
    sum.Add(rank.bytes);
  }
  fmt::print("together {}, on one machine {}\n", FormatBytes(sum.total()),
             FormatBytes(whole.ranks.front().bytes.total()));
  if (cache.heads_per_map == whole.heads_per_map) return;
  fmt::print("maps join {} of a rank's KV heads here, and {} on one machine", cache.heads_per_map,
             whole.heads_per_map);
  if (cache.predicted_kl.has_value() && whole.predicted_kl.has_value()) {
    fmt::print(": predicted KL {:.5f} nats per token, there {:.5f}", *cache.predicted_kl,
               *whole.predicted_kl);
  }
  fmt::print("\n");
}

}  // namespace kvlathe
