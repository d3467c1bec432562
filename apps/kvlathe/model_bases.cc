#include "kvlathe/model_bases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "analysis/bases/palu.h"
#include "calibration/fingerprint.h"
#include "calibration/statistics_store.h"
#include "evaluation/bench/random_splits.h"
#include "io/files.h"
#include "io/model_place.h"
#include "kv/quantizer/method.h"
#include "kv/retention/method.h"
#include "kvlathe/calibration_run.h"
#include "kvlathe/shared_texts.h"
#include "kvlathe/workspace.h"

namespace kvlathe {
namespace {

constexpr uint64_t kRandomBasisSeed = 1;

// The larger share of two: where half of the context is prompt, as `compare` measures, and where
// all of it is.
double FractionAtFullContext(const ModelConfig& c, const Spec& spec, DType row_type,
                             const std::vector<HeadRanks>& ranks) {
  CacheLayout layout{c.n_layers,
                     c.n_kv_heads,
                     c.head_dim,
                     spec.n_sink(),
                     {},
                     c.attention.Windows(c.n_layers),
                     SealPlanOf(spec),
                     RetentionPlanOf(spec),
                     spec.has_latent_keys()};
  if (layout.SparesSinks()) layout.windows.assign(c.n_layers, layout.seal->window);
  const SealPlan* const seal = layout.seal.has_value() ? &*layout.seal : nullptr;
  for (const HeadRanks& r : ranks) {
    layout.shapes.push_back(BlockShapeOf(r, c.head_dim, row_type, seal));
  }
  const int64_t n = c.max_seq_len;
  const int64_t bytes =
      std::max(SequenceBytes(layout, n, 1, n / 2), SequenceBytes(layout, n, 1, n));
  return static_cast<double>(bytes) / static_cast<double>(ReferenceBytes(layout, n));
}

BasisOptions OptionsOf(const Stage& stage) {
  BasisOptions options;
  if (stage.Has("normalise")) options.is_normalised = stage.Word("normalise") == "on";
  if (stage.Has("centre")) options.is_centred = stage.Word("centre") == "on";
  if (stage.Has("keys")) options.keys_before_rope = stage.Word("keys") == "before";
  if (stage.Has("scales")) options.scales_keys = stage.Word("scales") == "auto";
  if (stage.Has("open")) options.may_keep_open_rows = stage.Word("open") == "auto";
  if (stage.Has("whiten")) options.is_whitened = stage.Word("whiten") == "on";
  if (stage.Has("group")) options.heads_per_latent = stage.Integer("group");
  return options;
}

bool NeedsFisher(const Spec& spec) {
  return spec.basis() != nullptr && spec.basis()->Has("ranks") &&
         spec.basis()->Word("ranks") == "fisher";
}

// Maps in the shapes that the spec asks for, of a model with random weights.
StatusOr<ModelBasis> DrawBasis(const ModelConfig& c, const Spec& spec) {
  const Stage& stage = *spec.basis();
  if (stage.Has("resident")) {
    return Error(StatusCode::kUnimplemented,
                 "--kv '{}': a model with random weights has no basis of all dimensions; leave "
                 "resident out",
                 spec.text());
  }
  const int heads_per_latent = OptionsOf(stage).heads_per_latent;
  KVL_RETURN_IF_ERROR(CheckHeadsPerLatent(heads_per_latent, c.n_kv_heads));
  KVL_RETURN_IF_ERROR(CheckDrawnRanks(spec));
  if (stage.Has("rate") && stage.Word("ranks") == "uniform") {
    const int n_latents = c.n_layers * c.n_kv_heads / heads_per_latent;
    return DrawRandomBasis(c.n_layers, c.n_kv_heads, c.head_dim,
                           UniformRanks(n_latents, c.head_dim, stage.Number("rate")),
                           kRandomBasisSeed, spec.has_latent_keys());
  }
  if (stage.Has("rate")) {
    return DrawRandomBasis(c.n_layers, c.n_kv_heads, c.head_dim, stage.Number("rate"),
                           kRandomBasisSeed, spec.has_latent_keys(), heads_per_latent);
  }
  if (spec.splits_bits()) {
    return DrawRandomSplitBasis(c.n_layers, c.n_kv_heads, c.head_dim, stage.Number("ratio"),
                                kRandomBasisSeed, spec.has_latent_keys());
  }
  return Error(StatusCode::kInvalidArgument,
               "--kv '{}': a model with random weights takes rate, or a ratio that chooses bits",
               spec.text());
}

// Whoever waits for the first use of a basis learns why, and how not to wait.
void SayThatItCalibrates(const CalibrationRun& run, const std::string& model) {
  if (run.text_path.empty()) {
    fmt::print(
        stderr,
        "kvlathe: calibrating {} on random tokens, once; to have it done beforehand: kvlathe "
        "calibrate -m {}\n",
        model, model);
    return;
  }
  fmt::print(
      stderr,
      "kvlathe: calibrating {} on {}, once; to have it done beforehand on a text like yours: "
      "kvlathe calibrate -m {} --text FILE\n",
      model, run.text_path, model);
}

}  // namespace

Status CheckDrawnRanks(const Spec& spec) {
  if (!NeedsFisher(spec)) return OkStatus();
  return Error(
      StatusCode::kInvalidArgument,
      "--kv '{}': random weights have no gradients that mean anything; leave ranks out, or "
      "take uniform",
      spec.text());
}

bool HasCalibratedBasis(const Spec& spec) {
  return spec.basis() != nullptr && FindBasisMethod(spec.basis()->name) != nullptr;
}

ModelBases::ModelBases(Workspace* workspace) : workspace_(workspace) {}

const ModelOptions& ModelBases::options() const { return workspace_->options(); }
const ModelConfig& ModelBases::config() const { return workspace_->config(); }

StatusOr<CalibrationStatistics> ModelBases::FindStatistics(const CalibrationRun& run) {
  StatisticsRequest request;
  request.basis_path = options().basis;
  if (!options().model.empty()) {
    request.model_basis_path = BesideModel(options().model, "basis.safetensors");
  }
  request.shape = ShapeOf(config());
  request.model_hash = workspace_->model_hash();
  request.rope = config().DescribePositions();
  const int n_tokens = CalibrationSequenceTokens(workspace_->context_tokens());
  if (config().rope_dim() > 0) {
    request.n_positions = CalibrationPositions(workspace_->context_tokens());
  }
  request.settings = fmt::format("{} sequence {} {}", run.Describe(), n_tokens, options().dtype);
  if (request.n_positions > n_tokens) {
    request.settings += fmt::format(" positions {}", request.n_positions);
  }
  if (!run.text_path.empty()) {
    KVL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, workspace_->TokenizeFile(run.text_path));
    request.settings += " " + TokenHash(ids);
  }
  KVL_ASSIGN_OR_RETURN(FoundStatistics found, FindOrCalibrate(request, [&] {
                         SayThatItCalibrates(run, options().model);
                         return RunCalibration(workspace_, workspace_->model_hash(), run);
                       }));
  if (!found.warning.empty()) fmt::print(stderr, "kvlathe: warning: {}\n", found.warning);
  if (found.is_new && !found.path.empty()) {
    fmt::print(stderr, "calibrated on {}; kept in {}\n",
               run.text_path.empty() ? "random tokens" : run.text_path, found.path);
  }
  return std::move(found.statistics);
}

StatusOr<const CalibrationStatistics*> ModelBases::Hold(
    const CalibrationRun& run, std::optional<CalibrationStatistics>* held) {
  // Whatever was measured is above zero.
  const auto has_probes = [&] { return (*held)->probe_kl_v.front() > 0; };
  if (!held->has_value() || (run.across_heads && (*held)->k_pre_across_heads.empty()) ||
      (run.probes && !has_probes())) {
    KVL_ASSIGN_OR_RETURN(*held, FindStatistics(run));
  }
  return &**held;
}

StatusOr<const CalibrationStatistics*> ModelBases::TextStatistics(CalibrationRun run) {
  const bool has_own_choice =
      !options().basis.empty() || FileExists(BesideModel(options().model, "basis.safetensors"));
  if (has_own_choice) return Hold(run, &statistics_);
  KVL_ASSIGN_OR_RETURN(run.text_path, TextOfModel(options().model, "calibration.txt"));
  return Hold(run, &text_statistics_);
}

StatusOr<BasisAnalysis> ModelBases::Analyse(const Stage& stage,
                                            const CalibrationStatistics& statistics) {
  const BasisMethod& method = *FindBasisMethod(stage.name);
  if (method.wants_value_grams && value_grams_.empty()) {
    KVL_ASSIGN_OR_RETURN(value_grams_, workspace_->weights().AllValueGrams());
  }
  if (output_grams_.empty()) {
    KVL_ASSIGN_OR_RETURN(output_grams_,
                         workspace_->weights().AllOutputGrams(workspace_->threads()));
    KVL_ASSIGN_OR_RETURN(value_biases_, workspace_->weights().AllValueBiases());
    key_biases_ = workspace_->weights().AllKeyBiases();
  }
  BasisInputs inputs = {.statistics = &statistics,
                        .value_grams = value_grams_,
                        .output_grams = output_grams_,
                        .options = OptionsOf(stage),
                        .pool = workspace_->threads(),
                        .key_biases = key_biases_,
                        .value_biases = value_biases_};
  std::vector<std::vector<double>> key_grams, joined_value_grams;
  const int n_joined = inputs.options.heads_per_latent;
  if (!inputs.options.is_whitened && config().n_kv_heads % n_joined == 0) {
    KVL_ASSIGN_OR_RETURN(key_grams, workspace_->weights().AllKeyGrams(n_joined));
    KVL_ASSIGN_OR_RETURN(joined_value_grams, workspace_->weights().AllValueGrams(n_joined));
    inputs.key_grams = key_grams;
    inputs.value_grams = joined_value_grams;
  }
  return method.analyse(inputs);
}

StatusOr<const BasisAnalysis*> ModelBases::Analysis(const Stage& stage) {
  const BasisOptions basis_options = OptionsOf(stage);
  for (const KnownAnalysis& known : analyses_) {
    if (known.method == stage.name && known.options == basis_options) return known.analysis.get();
  }
  const BasisMethod& method = *FindBasisMethod(stage.name);
  KVL_RETURN_IF_ERROR(CheckHeadsPerLatent(basis_options.heads_per_latent, config().n_kv_heads));
  CalibrationRun run;
  run.across_heads = basis_options.heads_per_latent > 1 && basis_options.is_whitened;
  run.probes = method.wants_probes;
  KVL_ASSIGN_OR_RETURN(const CalibrationStatistics* statistics,
                       method.wants_text ? TextStatistics(run) : Hold(run, &statistics_));
  KVL_ASSIGN_OR_RETURN(BasisAnalysis analysis, Analyse(stage, *statistics));
  analyses_.push_back({std::string(stage.name), basis_options,
                       std::make_unique<BasisAnalysis>(std::move(analysis))});
  return analyses_.back().analysis.get();
}

StatusOr<const FisherWeights*> ModelBases::Fisher(const Spec& spec) {
  if (fisher_.has_value()) return &*fisher_;
  std::string path = BesideModel(options().model, "fisher.json");
  if (!options().basis.empty()) {
    const std::filesystem::path beside =
        std::filesystem::path(options().basis).parent_path() / "fisher.json";
    if (FileExists(beside)) path = beside;
  }
  if (!FileExists(path)) {
    return Error(StatusCode::kNotFound,
                 "--kv '{}': {} is not there; make it: kvlathe retrofit fisher -m {} --text FILE",
                 spec.text(), path, options().model);
  }
  KVL_ASSIGN_OR_RETURN(FisherWeights weights, ReadFisherWeights(path));
  KVL_RETURN_IF_ERROR(CheckFisherMatch(weights, path, config().n_layers, workspace_->model_hash()));
  fisher_ = std::move(weights);
  return &*fisher_;
}

StatusOr<RankAllocation> ModelBases::ChooseRanks(const Spec& spec, std::optional<double> rate) {
  const Stage& stage = *spec.basis();
  KVL_ASSIGN_OR_RETURN(const BasisAnalysis* analysis, Analysis(stage));
  RankRequest request;
  const auto set_goal = [&](RankRequest::Goal goal, const char* key) {
    if (!stage.Has(key)) return;
    request.goal = goal;
    request.value = stage.Number(key);
  };
  set_goal(RankRequest::Goal::kRate, "rate");
  set_goal(RankRequest::Goal::kRatio, "ratio");
  if (rate.has_value()) {
    request.goal = RankRequest::Goal::kRate;
    request.value = *rate;
  }
  request.uniform = stage.Word("ranks") == "uniform";
  if (NeedsFisher(spec)) {
    KVL_ASSIGN_OR_RETURN(request.fisher, Fisher(spec));
  }
  request.round = stage.Integer("round");
  request.kv_fraction = [&](const std::vector<HeadRanks>& ranks) {
    return FractionAtFullContext(config(), spec, workspace_->compute_type(), ranks);
  };
  const BasisMethod& method = *FindBasisMethod(stage.name);
  auto allocation =
      (spec.splits_bits() ? method.allocate_bits : method.allocate)(*analysis, request);
  if (allocation.ok()) return allocation;
  return Error(allocation.status().code(), "--kv '{}': {}", spec.text(),
               MessageOf(allocation.status()));
}

StatusOr<ModelBasis> ModelBases::BasisAt(const Spec& spec, const RankAllocation& allocation) {
  if (spec.finds_basis_online()) return OnlineBasis(*spec.basis(), allocation.ranks);
  KVL_ASSIGN_OR_RETURN(const BasisAnalysis* analysis, Analysis(*spec.basis()));
  if (!spec.basis()->Has("resident")) return CutBasis(*analysis, allocation.ranks);
  const int d = config().head_dim;
  return CutBasis(*analysis, std::vector<HeadRanks>(allocation.ranks.size(), {d, d}));
}

StatusOr<ModelBasis> ModelBases::OnlineBasis(const Stage& stage,
                                             const std::vector<HeadRanks>& ranks) {
  OnlineInputs inputs = {.is_normalised = OptionsOf(stage).is_normalised};
  KVL_ASSIGN_OR_RETURN(inputs.output_grams,
                       workspace_->weights().AllOutputGrams(workspace_->threads()));
  ModelBasis basis{config().n_layers, config().n_kv_heads, config().head_dim};
  for (const HeadRanks& r : ranks) {
    basis.heads.push_back({.rank_k = r.rank_k, .rank_v = r.rank_v});
  }
  basis.online = std::move(inputs);
  return basis;
}

StatusOr<ModelCodebooks> ModelBases::Codebooks(const Stage& quantizer, const SealPlan& seal,
                                               const ModelBasis* basis) {
  KVL_ASSIGN_OR_RETURN(const CalibrationStatistics* statistics, TextStatistics({.probes = false}));
  const int bits = quantizer.Integer("bits");
  const std::string_view qnorm = quantizer.Word("qnorm");
  return FitCodebooks({.statistics = statistics,
                       .basis = basis,
                       .rope_dim = config().rope_dim(),
                       .bits = bits,
                       .outliers = seal.format.sparse_share,
                       .matches_moments = qnorm == "on" || (qnorm == "auto" && bits == 2)});
}

StatusOr<ModelBasis> ModelBases::RandomBasis(const Spec& spec) {
  KVL_ASSIGN_OR_RETURN(ModelBasis basis, DrawBasis(config(), spec));
  if (!spec.finds_basis_online()) return basis;
  std::vector<HeadRanks> ranks;
  for (const HeadBasis& head : basis.heads) ranks.push_back({head.rank_k, head.rank_v});
  return OnlineBasis(*spec.basis(), ranks);
}

Status ModelBases::CheckFisher(const Spec& spec) {
  return NeedsFisher(spec) ? Fisher(spec).status() : OkStatus();
}

StatusOr<double> ModelBases::FractionOf(const Spec& spec) {
  std::vector<HeadRanks> ranks(config().n_layers * config().n_kv_heads,
                               {config().head_dim, config().head_dim});
  if (HasCalibratedBasis(spec)) {
    KVL_ASSIGN_OR_RETURN(RankAllocation allocation, ChooseRanks(spec));
    ranks = std::move(allocation.ranks);
  }
  return FractionAtFullContext(config(), spec, workspace_->compute_type(), ranks);
}

}  // namespace kvlathe
