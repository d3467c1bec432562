#include "plan/cache_plan.h"

#include <utility>

#include "base/check.h"
#include "kv/quantizer/method.h"
#include "kv/retention/method.h"
#include "plan/plan_checks.h"

namespace kvlathe {
namespace {

HeadRanks RanksOfHead(const HeadBasis& head) {
  return {head.rank_k, head.rank_v, head.k_bits, head.v_bits, head.has_whole_open_rows};
}

// Without a basis all heads store their rows whole.
std::vector<BlockShape> RowShapes(const ModelFacts& model, const PlanParts& parts) {
  const SealPlan* const seal = parts.seal.has_value() ? &*parts.seal : nullptr;
  std::vector<BlockShape> shapes;
  for (int i = 0; i < model.n_layers * model.n_kv_heads; ++i) {
    const HeadRanks ranks = parts.basis.has_value() ? RanksOfHead(parts.basis->heads[i])
                                                    : HeadRanks{model.head_dim, model.head_dim};
    shapes.push_back(BlockShapeOf(ranks, model.head_dim, model.row_type, seal));
  }
  return shapes;
}

CacheLayout LayoutOf(const ModelFacts& model, const PlanParts& parts) {
  const bool is_plain =
      !parts.basis.has_value() && !parts.seal.has_value() && !parts.retention.has_value();
  CacheLayout layout;
  layout.n_layers = model.n_layers;
  layout.n_kv_heads = model.n_kv_heads;
  layout.head_dim = model.head_dim;
  layout.n_sink = is_plain ? 0 : parts.n_sink;
  layout.shapes = RowShapes(model, parts);
  layout.windows = model.windows;
  layout.seal = parts.seal;
  layout.retention = parts.retention;
  layout.has_latent_keys = parts.basis.has_value() && parts.basis->has_latent_keys();
  if (layout.SparesSinks()) layout.windows.assign(model.n_layers, layout.seal->window);
  return layout;
}

// What a basis and a retention method rule out of each other.
Status CheckEntries(const CacheLayout& layout, const PlanParts& parts) {
  const bool has_maps = parts.basis.has_value() && !parts.basis->online.has_value();
  if (layout.ReadsWholeKeys() && (!has_maps || layout.has_latent_keys)) {
    return Error(StatusCode::kUnimplemented,
                 "score=exact takes votes from whole keys of a basis that maps them after RoPE; "
                 "leave it out");
  }
  if (!layout.has_latent_keys) return OkStatus();
  if (layout.MergesEntries()) {
    return Error(StatusCode::kUnimplemented,
                 "keys from before RoPE cannot be merged yet; leave the basis or the retention "
                 "stage out");
  }
  if (parts.basis->heads_per_latent > 1 && layout.DropsEntries() && layout.retention->HasVotes() &&
      !layout.retention->shares_heads) {
    return Error(StatusCode::kUnimplemented,
                 "heads that share latents must hold the same entries; leave the retention stage "
                 "out or give each head latents of its own");
  }
  return OkStatus();
}

}  // namespace

PlanParts PartsOf(const Spec& spec) {
  PlanParts parts;
  parts.n_sink = spec.n_sink();
  parts.seal = SealPlanOf(spec);
  parts.retention = RetentionPlanOf(spec);
  return parts;
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
  KVL_RETURN_IF_ERROR(
      CheckOnModel(model, {parts.seal.has_value() ? &*parts.seal : nullptr,
                           parts.retention.has_value() ? &*parts.retention : nullptr,
                           parts.basis.has_value() && parts.basis->has_latent_keys()}));
  CachePlan plan;
  plan.layout_ = LayoutOf(model, parts);
  KVL_RETURN_IF_ERROR(CheckEntries(plan.layout_, parts));
  plan.row_shapes_ = plan.layout_.shapes;
  if (parts.seal.has_value() && parts.seal->format.k.has_codebook) {
    plan.codebooks_ =
        parts.codebooks.empty() ? EvenCodebooks(plan.layout_) : std::move(parts.codebooks);
    KVL_CHECK_EQ(std::ssize(plan.codebooks_), model.n_layers);
  }
  if (parts.rates.has_value()) {
    KVL_CHECK(!plan.layout_.has_latent_keys && plan.codebooks_.empty());
    plan.layout_ = LayoutAtRanks(plan.layout_, plan.row_shapes_, parts.rates->ranks);
    plan.ranks_at_ = std::move(parts.rates->ranks_at);
  }
  plan.basis_ = std::move(parts.basis);
  return plan;
}

}  // namespace kvlathe
