// Several processes compute one model together. Tensor parallelism gives each a contiguous range of
// the model's KV heads, the same in all layers, with the query heads that meet them; pipeline
// parallelism gives a stage a contiguous range of layers. Every process makes the same plan of the
// whole cache and cuts its shard out of it, so nothing about bases, ranks, bits or codebooks hangs
// on how a cache is divided, but how many heads lathe's maps join by themselves
// (docs/decisions/shards-are-by-cache-head.md).
#pragma once

#include <vector>

#include "base/threads.h"
#include "plan/cache_plan.h"

namespace kvlathe {

// What one process holds of a cache.
struct PlanShard {
  Range layers;
  Range kv_heads;  // of the model, in each of these layers
};

// The plan of a shard: what the whole plan says of these layers and heads, counted from 0. Shards
// that cover a cache have as many bytes together as the whole, at every length and in every part
// (SequenceParts), for all objects of a cache are of one head of one layer. Their peaks
// (PeakSequenceBytes) are together no less than the whole's, for each seals its layers one by one
// and so sets room aside for one of its own. Rates of sequences give each shard its heads' ranks in
// the whole cache (ranks_at, whose plan outlives it as ever). Of an allocation the ranks are the
// shard's, and removal_rate and eta those of the whole cache.
//
// The ranges are not empty and lie in the plan. The heads are whole groups of those that a map
// joins or that share latents, and all heads of a layer where something is made of all of them
// (TiesOf): CheckShards refuses everything else.
CachePlan ShardOf(const CachePlan& plan, const PlanShard& shard);

// [0, n_kv_heads) in as many ranges as there are ranks, as even as they can be: the first ones have
// one head more where heads do not divide, so that rank 0 never has fewer than another.
// 1 <= n_ranks <= n_kv_heads.
std::vector<Range> DivideHeads(int n_kv_heads, int n_ranks);

// The same of layers among stages. The first stages have the layer more: all that the embedding
// costs the first one is memory, while the last multiplies every token with the head.
// 1 <= n_stages <= n_layers.
std::vector<Range> DivideLayers(int n_layers, int n_stages);

// The largest number of neighbouring heads of which every range of DivideHeads has whole groups.
// What joins a divisor of it stays within a rank.
int CommonHeads(int n_kv_heads, int n_ranks);

// What a cache makes of all KV heads of a layer together, so that no shard can have some of them.
struct HeadTies {
  bool by_scales = false;         // a token of V has one scale in all heads (kTokenLayer)
  bool by_exact_entries = false;  // those of V are the outermost values of a token over all heads
  bool by_votes = false;          // all heads keep the entries that have the votes of all
  bool by_budget = false;         // the heads of all layers have one budget
  bool any() const { return by_scales || by_exact_entries || by_votes || by_budget; }
};
// Of a cache that is sealed and drops entries by these plans; null: it does neither.
HeadTies TiesOf(const SealPlan* seal, const RetentionPlan* retention);

}  // namespace kvlathe
