#include "plan/plan_shard.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "base/check.h"

namespace kvlathe {
namespace {

// The heads of the cache that a shard has, in a cache of n_heads a layer.
struct HeadCut {
  Range layers;
  Range heads;
  int n_heads;

  // The part of a list by head, [n_layers * n_heads]; an empty one stays empty.
  template <typename T>
  std::vector<T> Of(const std::vector<T>& all) const {
    std::vector<T> part;
    if (all.empty()) return part;
    KVL_CHECK_GE(std::ssize(all), layers.end * n_heads);
    for (int64_t l = layers.begin; l < layers.end; ++l) {
      const auto layer = all.begin() + l * n_heads;
      part.insert(part.end(), layer + heads.begin, layer + heads.end);
    }
    return part;
  }
  // The part of a list by layer, [n_layers]; an empty one stays empty.
  template <typename T>
  std::vector<T> OfLayers(const std::vector<T>& all) const {
    if (all.empty()) return {};
    KVL_CHECK_GE(std::ssize(all), layers.end);
    return {all.begin() + layers.begin, all.begin() + layers.end};
  }
  int n_cut_layers() const { return static_cast<int>(layers.end - layers.begin); }
  int n_cut_heads() const { return static_cast<int>(heads.end - heads.begin); }
};

bool IsRangeOf(const Range& range, int64_t n) {
  return range.begin >= 0 && range.begin < range.end && range.end <= n;
}

HeadCut CutOf(const CacheLayout& layout, const PlanShard& shard) {
  const int n_joined = HeadsPerMap(layout.keys), n_grouped = KeysPerMap(layout.keys);
  const Range& heads = shard.kv_heads;
  KVL_CHECK(IsRangeOf(shard.layers, layout.n_layers));
  KVL_CHECK(IsRangeOf(heads, int64_t{layout.n_kv_heads} * n_joined));
  KVL_CHECK(heads.begin % n_grouped == 0 && heads.end % n_grouped == 0);
  const Range of_cache = {heads.begin / n_joined, heads.end / n_joined};
  const bool has_all = of_cache.end - of_cache.begin == layout.n_kv_heads;
  const HeadTies ties = TiesOf(layout.seal.has_value() ? &*layout.seal : nullptr,
                               layout.retention.has_value() ? &*layout.retention : nullptr);
  KVL_CHECK(has_all || !ties.any());
  return {shard.layers, of_cache, layout.n_kv_heads};
}

CacheLayout CutLayout(const CacheLayout& whole, const HeadCut& cut) {
  CacheLayout layout = whole;  // with the seal plan, which CapNewest bounded by all windows
  layout.n_layers = cut.n_cut_layers();
  layout.n_kv_heads = cut.n_cut_heads();
  layout.shapes = cut.Of(whole.shapes);
  layout.storages = cut.Of(whole.storages);
  layout.windows = cut.OfLayers(whole.windows);
  if (std::ranges::all_of(layout.windows, [](int window) { return window == 0; })) {
    layout.windows.clear();
  }
  return layout;
}

ModelBasis CutBasisOfShard(const ModelBasis& whole, const HeadCut& cut) {
  ModelBasis basis{cut.n_cut_layers(), cut.n_cut_heads(), whole.head_dim, cut.Of(whole.heads),
                   whole.keys};
  if (!whole.online.has_value()) return basis;
  basis.online = {cut.Of(whole.online->output_grams), whole.online->is_normalised};
  return basis;
}

ModelCodebooks CutCodebooks(const ModelCodebooks& whole, const HeadCut& cut) {
  ModelCodebooks codebooks = cut.OfLayers(whole);
  for (LayerCodebooks& layer : codebooks) {
    layer.key_scales = HeadCut{{0, 1}, cut.heads, cut.n_heads}.Of(layer.key_scales);
  }
  return codebooks;
}

std::vector<Range> DivideEvenly(int n, int n_parts) {
  KVL_CHECK(n_parts >= 1 && n_parts <= n);
  std::vector<Range> parts;
  for (int64_t i = 0, begin = 0; i < n_parts; ++i) {
    const int64_t end = begin + n / n_parts + (i < n % n_parts ? 1 : 0);
    parts.push_back({begin, end});
    begin = end;
  }
  return parts;
}

}  // namespace

CachePlan ShardOf(const CachePlan& plan, const PlanShard& shard) {
  const HeadCut cut = CutOf(plan.layout_, shard);
  CachePlan part;
  part.layout_ = CutLayout(plan.layout_, cut);
  if (plan.basis_.has_value()) part.basis_ = CutBasisOfShard(*plan.basis_, cut);
  part.row_shapes_ = cut.Of(plan.row_shapes_);
  part.codebooks_ = CutCodebooks(plan.codebooks_, cut);
  if (plan.allocation_.has_value()) {
    part.allocation_ = plan.allocation_;
    part.allocation_->ranks = cut.Of(plan.allocation_->ranks);
  }
  if (plan.ranks_at_ != nullptr) {
    part.ranks_at_ = [whole = plan.ranks_at_,
                      cut](double rate) -> StatusOr<std::vector<HeadRanks>> {
      KVL_ASSIGN_OR_RETURN(const std::vector<HeadRanks> ranks, whole(rate));
      return cut.Of(ranks);
    };
  }
  return part;
}

std::vector<Range> DivideHeads(int n_kv_heads, int n_ranks) {
  return DivideEvenly(n_kv_heads, n_ranks);
}

std::vector<Range> DivideLayers(int n_layers, int n_stages) {
  return DivideEvenly(n_layers, n_stages);
}

int CommonHeads(int n_kv_heads, int n_ranks) {
  int64_t common = 0;
  for (const Range& part : DivideHeads(n_kv_heads, n_ranks)) {
    common = std::gcd(common, part.end - part.begin);
  }
  return static_cast<int>(common);
}

HeadTies TiesOf(const SealPlan* seal, const RetentionPlan* retention) {
  HeadTies ties;
  ties.by_votes = retention != nullptr && retention->HasVotes() && retention->shares_heads;
  ties.by_budget = retention != nullptr && retention->joins_heads;
  // Where the model decides what merges or leaves, heads are sealed one by one (HasRunsOfHeads).
  const bool seals_by_head = ties.by_budget || (retention != nullptr && retention->ModelDecides());
  if (seal == nullptr || seals_by_head) return ties;
  ties.by_scales = ValueSide(seal->format.codec).sharing == ScaleSharing::kTokenLayer;
  ties.by_exact_entries = seal->format.sparse_share > 0;
  return ties;
}

}  // namespace kvlathe
