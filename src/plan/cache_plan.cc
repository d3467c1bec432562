#include "plan/cache_plan.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "base/check.h"
#include "kv/quantizer/quantizer_methods.h"
#include "kv/retention/retention_methods.h"
#include "plan/plan_checks.h"

namespace kvlathe {
namespace {

// Of all heads; empty without a basis.
std::vector<HeadRanks> RanksOfBasis(const std::optional<ModelBasis>& basis) {
  std::vector<HeadRanks> ranks;
  if (!basis.has_value()) return ranks;
  for (const HeadBasis& head : basis->heads) {
    const int rank_v = head.stored_rank_v > 0 ? head.stored_rank_v : head.rank_v;
    ranks.push_back({head.rank_k, rank_v, head.bits});
  }
  return ranks;
}

// What CheckSupported refuses in specs may not come in parts either.
void CheckInvariants(const CacheLayout& layout, const PlanParts& parts) {
  const bool has_maps = parts.basis.has_value() && !parts.basis->online.has_value();
  KVL_CHECK(!layout.ReadsWholeKeys() || !layout.CodesOpenRows());
  KVL_CHECK(!layout.ReadsWholeKeys() || (has_maps && !TurnWhenRead(layout.keys)));
  const auto has_pressed_bits = [&layout](const HeadStorage& storage) {
    const auto* const bits = std::get_if<HeadBits>(&storage);
    return bits != nullptr && bits->pressed.k != BitSplit() &&
           (layout.seal->format.has_one_side() || bits->pressed.v != BitSplit());
  };
  KVL_CHECK(!layout.HasPressedRuns() || (layout.storages.size() == layout.shapes.size() &&
                                         std::ranges::all_of(layout.storages, has_pressed_bits)));
  if (!TurnWhenRead(layout.keys)) return;
  KVL_CHECK(!layout.MergesEntries() && !layout.SweepsEntries());
  const bool has_entries_of_heads =
      layout.DropsEntries() && layout.retention->HasVotes() && !layout.retention->shares_heads;
  KVL_CHECK(HeadsPerLatent(layout.keys) == 1 || !has_entries_of_heads);
}

}  // namespace

PlanParts PartsOf(const Spec& spec) {
  PlanParts parts;
  parts.n_sink = spec.n_sink();
  parts.keeps_sink_values = spec.basis_as<LatheOptions>() != nullptr;
  parts.seal = SealPlanOf(spec);
  parts.retention = RetentionPlanOf(spec);
  return parts;
}

CacheLayout MakeLayout(const ModelFacts& model, const PlanParts& parts,
                       const std::vector<HeadRanks>& ranks, const Keys& keys) {
  const bool is_plain = ranks.empty() && !parts.seal.has_value() && !parts.retention.has_value();
  const size_t n_model_heads = static_cast<size_t>(model.n_layers) * model.n_kv_heads;
  const size_t n_heads = ranks.empty() ? n_model_heads : ranks.size();
  KVL_CHECK_EQ(n_model_heads % n_heads, 0u);
  const auto heads_per_map = static_cast<int>(n_model_heads / n_heads);
  CacheLayout layout;
  layout.n_layers = model.n_layers;
  layout.n_kv_heads = model.n_kv_heads / heads_per_map;
  layout.head_dim = model.head_dim * heads_per_map;
  layout.n_sink = is_plain ? 0 : parts.n_sink;
  layout.seal = parts.seal;
  for (size_t i = 0; i < n_heads; ++i) {
    const HeadRanks of_head = ranks.empty() ? HeadRanks{model.head_dim, model.head_dim} : ranks[i];
    layout.AddHead(of_head, model.row_type);
    if (parts.keeps_sink_values && layout.n_sink > 0) {
      layout.shapes.back().sink_rank_v =
          JoinsValues(keys) ? layout.shapes.back().rank_v : layout.head_dim;
    }
  }
  layout.windows = model.windows;
  layout.retention = parts.retention;
  layout.keys = keys;
  if (layout.SweepsEntries()) {
    const int window = parts.retention->sweep->window;
    SetSweepWindow(window > 0 ? window : std::max(1, model.dms_window), &layout);
  }
  if (layout.SparesSinks()) layout.windows.assign(model.n_layers, layout.seal->window);
  CapNewest(&layout);
  return layout;
}

CacheLayout LayoutAtRanks(const CacheLayout& standard, const std::vector<BlockShape>& row_shapes,
                          const std::vector<HeadRanks>& ranks) {
  KVL_CHECK_EQ(ranks.size(), row_shapes.size());
  CacheLayout layout = standard;
  for (size_t i = 0; i < ranks.size(); ++i) {
    KVL_CHECK(ranks[i].rank_k <= row_shapes[i].rank_k && ranks[i].rank_v <= row_shapes[i].rank_v);
    layout.shapes[i].rank_k = ranks[i].rank_k;
    layout.shapes[i].rank_v = ranks[i].rank_v;
  }
  return layout;
}

StatusOr<CachePlan> AssemblePlan(const ModelFacts& model, PlanParts parts) {
  const Keys keys = parts.basis.has_value() ? parts.basis->keys : TurnedKeys{};
  KVL_RETURN_IF_ERROR(
      CheckOnModel(model, {parts.seal.has_value() ? &*parts.seal : nullptr,
                           parts.retention.has_value() ? &*parts.retention : nullptr, keys}));
  if (parts.basis.has_value()) {
    parts.keeps_sink_values = parts.basis->heads.front().stored_rank_v > 0;
  }
  CachePlan plan;
  plan.layout_ = MakeLayout(model, parts, RanksOfBasis(parts.basis), keys);
  CheckInvariants(plan.layout_, parts);
  plan.row_shapes_ = plan.layout_.shapes;
  for (size_t i = 0; parts.basis.has_value() && i < plan.row_shapes_.size(); ++i) {
    const HeadBasis& head = parts.basis->heads[i];
    if (head.stored_rank_v > 0) plan.row_shapes_[i].rank_v = head.rank_v;
  }
  if (parts.seal.has_value() && KeySide(parts.seal->format.codec).has_codebook) {
    plan.codebooks_ =
        parts.codebooks.empty() ? EvenCodebooks(plan.layout_) : std::move(parts.codebooks);
    KVL_CHECK_EQ(std::ssize(plan.codebooks_), model.n_layers);
  }
  if (parts.ranks_at != nullptr) {
    KVL_CHECK(!TurnWhenRead(keys) && plan.codebooks_.empty());
    plan.layout_ = LayoutAtRanks(plan.layout_, plan.row_shapes_, parts.allocation->ranks);
    plan.ranks_at_ = std::move(parts.ranks_at);
  }
  plan.allocation_ = std::move(parts.allocation);
  plan.basis_ = std::move(parts.basis);
  return plan;
}

}  // namespace kvlathe
