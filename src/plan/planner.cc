#include "plan/planner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "analysis/bases/hadamard.h"
#include "analysis/bases/palu.h"
#include "kv/seal/seal_schedule.h"
#include "plan/drawn_basis.h"
#include "plan/plan_checks.h"

namespace kvlathe {
namespace {

constexpr int kMostTenths = 1000;  // ratios below 100 are tried

Status OfSpec(const Spec& spec, const Status& status) {
  if (status.ok()) return status;
  return Error(status.code(), "--kv '{}': {}", spec.text(), MessageOf(status));
}

bool NeedsFisher(const Spec& spec) {
  const RankOptions* const ranks = spec.basis() == nullptr ? nullptr : RanksOf(*spec.basis());
  return ranks != nullptr && ranks->choice == RankOptions::Choice::kFisher;
}

// The larger share of two: where half of the context is prompt, as `compare` measures, and where
// all of it is.
double FractionAtContext(const CacheLayout& layout, int64_t n_context) {
  const int64_t bytes = std::max(SequenceBytes(layout, n_context, 1, n_context / 2),
                                 SequenceBytes(layout, n_context, 1, n_context));
  return static_cast<double>(bytes) / static_cast<double>(ReferenceBytes(layout, n_context));
}

RankRequest RequestOf(const Spec& spec, std::optional<double> rate) {
  const RankOptions& options = *RanksOf(*spec.basis());
  RankRequest request;
  request.is_quantized = spec.quantizer() != nullptr;
  request.has_classes = FactsOf(spec.sealing()).has_classes;
  if (const auto* const lathe = spec.basis_as<LatheOptions>(); lathe != nullptr) {
    request.unit = lathe->unit;
  }
  request.goal = options.has_ratio() ? RankRequest::Goal::kRatio : RankRequest::Goal::kRate;
  request.value = options.value;
  if (rate.has_value()) {
    request.goal = RankRequest::Goal::kRate;
    request.value = *rate;
  }
  request.uniform = options.choice == RankOptions::Choice::kUniform;
  request.round = options.round;
  return request;
}

Status CheckContext(const Spec& spec, const ModelFacts& model) {
  const auto* const lathe = spec.basis_as<LatheOptions>();
  if (lathe == nullptr || lathe->context <= model.max_seq_len) return OkStatus();
  return Error(StatusCode::kInvalidArgument,
               "--kv '{}': context={} is beyond the model's context of {}", spec.text(),
               lathe->context, model.max_seq_len);
}

// Of how many positions each layer holds codes; empty where all hold as many.
std::vector<double> PositionsHeld(const CacheLayout& layout, int n_context) {
  if (!layout.HasWindow() || layout.HasOneWindow()) return {};
  const auto n_open =
      static_cast<int>(layout.n_sink + NewestEntries(*layout.seal, n_context - layout.n_sink));
  std::vector<double> held;
  for (int l = 0; l < layout.n_layers; ++l) {
    const int n_seen = layout.window(l) == 0 ? n_context : std::min(layout.window(l), n_context);
    held.push_back(std::max(kBlockSize, n_seen - n_open));
  }
  return held;
}

}  // namespace

int RatioContext(const Spec& spec, const ModelFacts& model) {
  const auto* const lathe = spec.basis_as<LatheOptions>();
  return lathe == nullptr || lathe->context == 0 ? model.max_seq_len : lathe->context;
}

Status CheckSpec(const Spec& spec, const ModelFacts& model) {
  KVL_RETURN_IF_ERROR(CheckSupported(spec));
  KVL_RETURN_IF_ERROR(CheckDivision(model));
  KVL_RETURN_IF_ERROR(CheckContext(spec, model));
  if (spec.basis() != nullptr) {
    KVL_RETURN_IF_ERROR(
        OfSpec(spec, CheckHeadsPerLatent(HeadsPerLatent(spec.keys()), model.n_kv_heads)));
  }
  KVL_RETURN_IF_ERROR(OfSpec(spec, CheckShards(spec, model)));
  const PlanParts parts = PartsOf(spec);
  return OfSpec(
      spec, CheckOnModel(model,
                         {parts.seal.has_value() ? &*parts.seal : nullptr,
                          parts.retention.has_value() ? &*parts.retention : nullptr, spec.keys()}));
}

Status CachePlanner::Check(const Spec& spec) { return CheckSpec(spec, model_); }

StatusOr<RankAllocation> CachePlanner::ChooseRanks(const Spec& spec, std::optional<double> rate) {
  KVL_ASSIGN_OR_RETURN(const BasisAnalysis* analysis, analyses_.Of(spec));
  RankRequest request = RequestOf(spec, rate);
  if (NeedsFisher(spec)) {
    KVL_ASSIGN_OR_RETURN(request.fisher, source_->Fisher(spec));
  }
  const PlanParts parts = PartsOf(spec);
  const int n_context = RatioContext(spec, model_);
  const bool splits_bits = FactsOf(spec.sealing()).splits_bits;
  if (splits_bits) {
    request.positions_held =
        PositionsHeld(MakeLayout(model_, parts, {}, KeysOf(spec, model_)), n_context);
  }
  request.kv_fraction = [&](const std::vector<HeadRanks>& ranks) {
    return FractionAtContext(MakeLayout(model_, parts, ranks, KeysOf(spec, model_)), n_context);
  };
  const BasisMethod& method = *BasisMethodOf(spec);
  auto allocation = (splits_bits ? method.allocate_bits : method.allocate)(*analysis, request);
  if (allocation.ok()) return allocation;
  return OfSpec(spec, allocation.status());
}

// They are those that the higher ratio alone would give: the steps of one ladder (BitLadder) fewer.
Status CachePlanner::AddPressedBits(const Spec& spec, RankAllocation* allocation) {
  const auto* const lathe = spec.basis_as<LatheOptions>();
  if (lathe == nullptr || lathe->under_pressure == 0) return OkStatus();
  KVL_ASSIGN_OR_RETURN(const Spec pressed, WithRatio(spec, lathe->under_pressure));
  KVL_ASSIGN_OR_RETURN(const RankAllocation fewer, ChooseRanks(pressed, std::nullopt));
  return OfSpec(spec, TakePressedBits(fewer.ranks, &allocation->ranks));
}

StatusOr<ModelBasis> CachePlanner::OnlineBasis(const Spec& spec,
                                               const std::vector<HeadRanks>& ranks) {
  OnlineInputs inputs = {.is_normalised = BasisOptionsOf(spec, model_).is_normalised};
  KVL_ASSIGN_OR_RETURN(inputs.output_grams, source_->OutputGrams());
  ModelBasis basis{model_.n_layers, model_.n_kv_heads, model_.head_dim};
  for (const HeadRanks& r : ranks) {
    basis.heads.push_back({.rank_k = r.rank_k, .rank_v = r.rank_v});
  }
  basis.keys = TurnedKeys{};
  basis.online = std::move(inputs);
  return basis;
}

StatusOr<ModelBasis> CachePlanner::BasisAt(const Spec& spec, const RankAllocation& allocation) {
  if (FactsOf(spec.sealing()).finds_bases) return OnlineBasis(spec, allocation.ranks);
  KVL_ASSIGN_OR_RETURN(const BasisAnalysis* analysis, analyses_.Of(spec));
  if (!IsResident(*spec.basis())) return CutBasis(*analysis, allocation.ranks);
  const int n_channels = analysis->shape.head_dim;  // of all heads that a map joins
  const HeadRanks whole = {n_channels, n_channels};
  return CutBasis(*analysis, std::vector<HeadRanks>(allocation.ranks.size(), whole));
}

StatusOr<ModelBasis> CachePlanner::DrawnBasis(const Spec& spec) {
  KVL_ASSIGN_OR_RETURN(ModelBasis basis, DrawBasis(spec, model_));
  if (!FactsOf(spec.sealing()).finds_bases) return basis;
  std::vector<HeadRanks> ranks;
  for (const HeadBasis& head : basis.heads) ranks.push_back({head.rank_k, head.rank_v});
  return OnlineBasis(spec, ranks);
}

Status CachePlanner::AddBasis(const Spec& spec, std::optional<double> rate, PlanParts* parts) {
  if (BasisMethodOf(spec) != nullptr && source_->is_random()) {
    KVL_ASSIGN_OR_RETURN(parts->basis, DrawnBasis(spec));
  } else if (BasisMethodOf(spec) != nullptr) {
    KVL_ASSIGN_OR_RETURN(parts->allocation, ChooseRanks(spec, rate));
    KVL_RETURN_IF_ERROR(AddPressedBits(spec, &*parts->allocation));
    KVL_ASSIGN_OR_RETURN(parts->basis, BasisAt(spec, *parts->allocation));
    if (IsResident(*spec.basis())) {
      parts->ranks_at = [this, spec](double wanted) -> StatusOr<std::vector<HeadRanks>> {
        KVL_ASSIGN_OR_RETURN(RankAllocation allocation, ChooseRanks(spec, wanted));
        return std::move(allocation.ranks);
      };
    }
  }
  if (spec.quantizer() == nullptr || !MixesChannels(*spec.quantizer())) return OkStatus();
  if (!parts->basis.has_value()) {
    parts->basis = IdentityBasis(model_.n_layers, model_.n_kv_heads, model_.head_dim);
  }
  switch (MixingRuleOf(*spec.quantizer())) {
    case MixingRule::kWhole:
      MixByHadamard(&*parts->basis);
      break;
    case MixingRule::kGgml:
      MixAsGgml(&*parts->basis);
      break;
    case MixingRule::kSigned:
      FlipSigns(&*parts->basis);
      MixByHadamard(&*parts->basis);
      break;
  }
  return OkStatus();
}

Status CachePlanner::AddCodebooks(const Spec& spec, PlanParts* parts) {
  const auto* const kvquant = spec.quantizer_as<KvquantOptions>();
  if (kvquant == nullptr || source_->is_random()) return OkStatus();
  KVL_ASSIGN_OR_RETURN(const CalibrationStatistics* statistics,
                       source_->Statistics(*CodebookNeedOf(spec)));
  std::optional<BasisHistograms> histograms;
  const bool has_own_maps = parts->basis.has_value() && !parts->basis->online.has_value() &&
                            parts->basis->n_kv_heads == model_.n_kv_heads;
  if (has_own_maps && !MergingOf(spec).has_value()) {
    KVL_ASSIGN_OR_RETURN(histograms, source_->HistogramsIn(*parts->basis));
  }
  parts->codebooks = FitCodebooks({.statistics = statistics,
                                   .basis = parts->basis.has_value() ? &*parts->basis : nullptr,
                                   .rope_dim = model_.rope_dim,
                                   .bits = kvquant->bits,
                                   .outliers = parts->seal->format.sparse_share,
                                   .matches_moments = kvquant->matches_moments,
                                   .histograms = histograms.has_value() ? &*histograms : nullptr});
  return OkStatus();
}

StatusOr<CachePlan> CachePlanner::MakePlan(const Spec& spec, std::optional<double> rate) {
  KVL_RETURN_IF_ERROR(Check(spec));
  PlanParts parts = PartsOf(spec);
  KVL_RETURN_IF_ERROR(AddBasis(spec, rate, &parts));
  KVL_RETURN_IF_ERROR(AddCodebooks(spec, &parts));
  if (parts.retention.has_value() && parts.retention->repeats_prompt()) {
    source_->AddRepeatWords(&parts.retention->repeat);
  }
  return AssemblePlan(model_, std::move(parts));
}

StatusOr<double> CachePlanner::FractionOf(const Spec& spec) {
  KVL_RETURN_IF_ERROR(Check(spec));
  std::vector<HeadRanks> ranks;  // empty: whole rows
  if (BasisMethodOf(spec) != nullptr) {
    KVL_ASSIGN_OR_RETURN(RankAllocation allocation, ChooseRanks(spec, std::nullopt));
    ranks = std::move(allocation.ranks);
  }
  return FractionAtContext(MakeLayout(model_, PartsOf(spec), ranks, KeysOf(spec, model_)),
                           RatioContext(spec, model_));
}

StatusOr<PredictedLosses> CachePlanner::PredictLosses(const Spec& spec) {
  KVL_RETURN_IF_ERROR(Check(spec));
  KVL_RETURN_IF_ERROR(OfSpec(spec, CheckIsPredicted(spec)));
  const StatusOr<const LossPredictor*> predictor = predictions_.Of(spec);
  KVL_RETURN_IF_ERROR(OfSpec(spec, predictor.status()));
  KVL_ASSIGN_OR_RETURN(const RankAllocation allocation, ChooseRanks(spec, std::nullopt));

  const StoredForm form = {spec.basis_as<LatheOptions>()->unit,
                           FactsOf(PartsOf(spec).seal->format.codec).codes_open_rows};
  return (*predictor)->At(allocation.ranks, form);
}

StatusOr<double> CachePlanner::PredictKl(const Spec& spec) {
  KVL_ASSIGN_OR_RETURN(const PredictedLosses losses, PredictLosses(spec));
  return losses.kl();
}

StatusOr<PredictedCache> CachePlanner::AnswerByPrediction(const Spec& question) {
  KVL_RETURN_IF_ERROR(OfSpec(question, CheckIsPredicted(question)));
  const double most = -std::log(*question.accuracy()) + 0.0;  // +0 for 1
  const auto at = [&](int tenths) -> StatusOr<PredictedCache> {
    PredictedCache cache;
    KVL_ASSIGN_OR_RETURN(cache.spec, WithRatio(question, tenths / 10.0));
    KVL_ASSIGN_OR_RETURN(cache.predicted_kl, PredictKl(cache.spec));
    return cache;
  };
  int tenths = 10, too_many = kMostTenths;
  KVL_ASSIGN_OR_RETURN(PredictedCache best, at(tenths));
  if (best.predicted_kl > most) {
    return Error(StatusCode::kFailedPrecondition,
                 "--kv '{}': even ratio=1 has a predicted KL of {:.2g} nats per token, and this "
                 "accuracy allows {:.2g}; ask for less",
                 question.text(), best.predicted_kl, most);
  }
  while (too_many - tenths > 1) {
    const int middle = (tenths + too_many) / 2;
    StatusOr<PredictedCache> cache = at(middle);
    const bool is_out_of_reach = cache.status().code() == StatusCode::kInvalidArgument;
    if (!is_out_of_reach) KVL_RETURN_IF_ERROR(cache.status());
    if (is_out_of_reach || cache->predicted_kl > most) {
      too_many = middle;
    } else {
      tenths = middle;
      best = *std::move(cache);
    }
  }
  return best;
}

}  // namespace kvlathe
