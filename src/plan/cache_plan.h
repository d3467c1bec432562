// The plan of a cache: everything that one spec means for one model, decided once and never
// changed. Whoever needs the shape of rows, when blocks are sealed, what is dropped or how many
// bytes a sequence takes asks the plan; nobody else builds a CacheLayout of a model.
//
// CachePlanner makes one of a spec; AssemblePlan makes one of parts that are known already (tests,
// probes of a calibration).
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

// Ranks of all heads, [n_layers * n_kv_heads], for a share of K and V elements that is removed. Its
// errors say which rates it allows.
using RanksAtRate = std::function<StatusOr<std::vector<HeadRanks>>(double rate)>;

// What a plan is put together from.
struct PlanParts {
  std::optional<ModelBasis> basis;  // none: rows as they are
  // First positions that keep rows of their own, in 16 bits and before the basis of keys. Of the
  // uncompressed cache, which has nothing to spare them from, it is 0 whatever stands here.
  int n_sink = 0;
  std::optional<SealPlan> seal;            // none: rows stay in 16 bits
  std::optional<RetentionPlan> retention;  // none: every entry stays
  ModelCodebooks codebooks;  // empty: EvenCodebooks, where the seal plan's format has codebooks
  // How the ranks of the basis were chosen, where a method chose them.
  std::optional<RankAllocation> allocation;
  // Lets every sequence store the first of the columns that the basis has, in ranks by a rate of
  // its own; sequences that choose no rate have those of the allocation. Rows are made at the ranks
  // of the basis; where caches hold fewer, attention's output ends in zeros, which add nothing
  // behind W_O. Not for a basis of latents or one that splits bits, whose maps hang on the rank,
  // nor for codebooks.
  RanksAtRate ranks_at;
};

// How the spec seals and what it keeps: all parts but those that calibration gives. The spec is
// supported (CheckSupported).
PlanParts PartsOf(const Spec& spec);

class CachePlan {
 public:
  // The layout of sequences that choose no rate.
  const CacheLayout& layout() const { return layout_; }
  // Null: rows are stored as the model makes them.
  const ModelBasis* basis() const { return basis_.has_value() ? &*basis_ : nullptr; }
  // Of the heads, [n_layers * n_kv_heads]: what is made for each position. Sequences whose rate
  // allows fewer dimensions store the first of them.
  const std::vector<BlockShape>& row_shapes() const { return row_shapes_; }
  const ModelCodebooks& codebooks() const { return codebooks_; }  // [n_layers], or empty
  // How the ranks were chosen, where a method chose them.
  const std::optional<RankAllocation>& allocation() const { return allocation_; }
  // Null where sequences have no rates of their own.
  const RanksAtRate& ranks_at() const { return ranks_at_; }

 private:
  friend StatusOr<CachePlan> AssemblePlan(const ModelFacts& model, PlanParts parts);
  CachePlan() = default;

  CacheLayout layout_;
  std::optional<ModelBasis> basis_;
  std::vector<BlockShape> row_shapes_;
  ModelCodebooks codebooks_;
  std::optional<RankAllocation> allocation_;
  RanksAtRate ranks_at_;
};

// Errors are those of CheckOnModel. The parts go together, as CheckSupported says of those of a
// spec: no entries merge that are latents, heads that share latents do not choose entries of their
// own, and whole keys are read only where a basis maps keys after RoPE.
StatusOr<CachePlan> AssemblePlan(const ModelFacts& model, PlanParts parts);

// The layout of caches of these parts whose heads have these ranks, [n_layers * n_kv_heads]; empty:
// all store whole rows. The basis of the parts is not looked at: has_latent_keys says what matters.
CacheLayout MakeLayout(const ModelFacts& model, const PlanParts& parts,
                       const std::vector<HeadRanks>& ranks, bool has_latent_keys);

// The layout of a sequence that stores each head in these ranks, none above those of its rows.
CacheLayout LayoutAtRanks(const CacheLayout& standard, const std::vector<BlockShape>& row_shapes,
                          const std::vector<HeadRanks>& ranks);

}  // namespace kvlathe
