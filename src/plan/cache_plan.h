// The plan of a cache is everything that one spec means for one model. It is decided once and never
// changed. Whoever needs the shape of rows, when blocks are sealed, what is dropped or how many
// bytes a sequence takes asks the plan; nothing else builds a CacheLayout of a model.
//
// CachePlanner makes one of a spec; AssemblePlan makes one of parts that are known already (tests).
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "analysis/bases/basis.h"
#include "analysis/ranks/ranks.h"
#include "base/status.h"
#include "kv/cache_layout.h"
#include "kv/quantizer/codebooks.h"
#include "kv/spec/spec.h"
#include "plan/model_facts.h"

namespace kvlathe {

struct PlanShard;

// Returns the ranks of all heads, [n_layers * n_kv_heads], at which a share of the elements of K
// and V is removed. Its errors say which rates it allows.
using RanksAtRate = std::function<StatusOr<std::vector<HeadRanks>>(double rate)>;

// What a plan is put together from.
struct PlanParts {
  std::optional<ModelBasis> basis;  // none: rows as they are
  // How many first positions keep rows of their own, in 16 bits and before the basis of keys. The
  // uncompressed cache has nothing to spare them from, so its plan has 0 whatever stands here.
  int n_sink = 0;
  // Whether their values are not cut either; where there is a basis, it says so itself
  // (HeadBasis::stored_rank_v).
  bool keeps_sink_values = false;
  std::optional<SealPlan> seal;            // none: rows stay in 16 bits
  std::optional<RetentionPlan> retention;  // none: every entry stays
  ModelCodebooks codebooks;  // empty: EvenCodebooks, where the seal plan's format has codebooks
  // How the ranks of the basis were chosen, where a method chose them.
  std::optional<RankAllocation> allocation;
  // Lets every sequence choose a rate, and with it the ranks in which it stores the first columns
  // of the basis. Sequences that choose none have the ranks of the allocation. Rows are made at the
  // ranks of the basis; where caches hold fewer, attention's output ends in zeros, which add
  // nothing behind W_O. It must be null for a basis of latents and for one that splits bits, whose
  // maps depend on the rank, and for codebooks.
  RanksAtRate ranks_at;
};

// The parts that say how a spec seals and what it keeps, which is all but what a calibration gives.
// The spec is supported (CheckSupported).
PlanParts PartsOf(const Spec& spec);

class CachePlan {
 public:
  // The layout of sequences that choose no rate.
  const CacheLayout& layout() const { return layout_; }
  // Null where rows are stored as the model makes them.
  const ModelBasis* basis() const { return basis_.has_value() ? &*basis_ : nullptr; }
  // The shapes of the rows that are made for each position in every head,
  // [n_layers * n_kv_heads]. Sequences whose rate allows fewer dimensions store the first of them.
  const std::vector<BlockShape>& row_shapes() const { return row_shapes_; }
  const ModelCodebooks& codebooks() const { return codebooks_; }  // [n_layers], or empty
  // How the ranks were chosen, where a method chose them.
  const std::optional<RankAllocation>& allocation() const { return allocation_; }
  // Null where sequences have no rates of their own.
  const RanksAtRate& ranks_at() const { return ranks_at_; }

 private:
  friend StatusOr<CachePlan> AssemblePlan(const ModelFacts& model, PlanParts parts);
  friend CachePlan ShardOf(const CachePlan& plan, const PlanShard& shard);
  CachePlan() = default;

  CacheLayout layout_;
  std::optional<ModelBasis> basis_;
  std::vector<BlockShape> row_shapes_;
  ModelCodebooks codebooks_;
  std::optional<RankAllocation> allocation_;
  RanksAtRate ranks_at_;
};

// Puts a plan together. Its errors are those of CheckOnModel. The caller answers for parts that go
// together, as CheckSupported does for a spec: no entries merge that are latents, heads that share
// latents do not choose entries of their own, and whole keys are read only where a basis maps keys
// after RoPE.
StatusOr<CachePlan> AssemblePlan(const ModelFacts& model, PlanParts parts);

// The layout of caches of these parts whose heads have these ranks, [n_layers * heads of the cache
// in a layer], a divisor of the model's KV heads. With no ranks all heads store whole rows. The
// basis of the parts is not looked at; `keys` says all that matters of it.
CacheLayout MakeLayout(const ModelFacts& model, const PlanParts& parts,
                       const std::vector<HeadRanks>& ranks, const Keys& keys);

// The layout of a sequence that stores each head in these ranks, none of which is above the rank of
// the head's rows.
CacheLayout LayoutAtRanks(const CacheLayout& standard, const std::vector<BlockShape>& row_shapes,
                          const std::vector<HeadRanks>& ranks);

}  // namespace kvlathe
