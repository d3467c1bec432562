#include "workspace.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/units.h"
#include "calibration/fingerprint.h"
#include "calibration/statistics_store.h"
#include "calibration_run.h"
#include "evaluation/bench_model.h"
#include "io/files.h"
#include "kv/basis/hadamard.h"
#include "kv/basis/palu.h"
#include "kv/quantizer/method.h"
#include "kv/retention/method.h"

namespace kvlathe {
namespace {

constexpr uint64_t kRandomWeightsSeed = 1;

// Half of what the system says is available.
int64_t DefaultKvBudget() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  int64_t kib;
  std::string unit;
  while (meminfo >> key >> kib >> unit) {
    if (key == "MemAvailable:") return kib * 512;
  }
  return int64_t{4} << 30;
}

// Half of the context is prompt, as where `compare` measures.
double FractionAtFullContext(const ModelConfig& c, const Spec& spec, DType row_type,
                             const std::vector<HeadRanks>& ranks) {
  CacheLayout layout{c.n_layers, c.n_kv_heads, c.head_dim,       spec.n_sink(),
                     {},         c.window,     SealPlanOf(spec), RetentionPlanOf(spec)};
  if (layout.SparesSinks()) layout.window = layout.seal->window;
  const SealPlan* const seal = layout.seal.has_value() ? &*layout.seal : nullptr;
  for (const HeadRanks& r : ranks) {
    layout.shapes.push_back(BlockShapeOf(r, c.head_dim, row_type, seal));
  }
  return static_cast<double>(SequenceBytes(layout, c.max_seq_len, 1, c.max_seq_len / 2)) /
         static_cast<double>(ReferenceBytes(layout, c.max_seq_len));
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

// Maps in the shapes that the spec asks for, of a model with random weights.
StatusOr<ModelBasis> RandomBasisOf(const ModelConfig& c, const Spec& spec) {
  const Stage& stage = *spec.basis();
  if (stage.Has("resident")) {
    return Error(StatusCode::kUnimplemented,
                 "--kv '{}': a model with random weights has no basis of all dimensions; leave "
                 "resident out",
                 spec.text());
  }
  const int heads_per_latent = OptionsOf(stage).heads_per_latent;
  KVL_RETURN_IF_ERROR(CheckHeadsPerLatent(heads_per_latent, c.n_kv_heads));
  if (stage.Has("rate")) {
    return DrawRandomBasis(c.n_layers, c.n_kv_heads, c.head_dim, stage.Number("rate"),
                           kRandomWeightsSeed, spec.has_latent_keys(), heads_per_latent);
  }
  if (spec.splits_bits()) {
    return DrawRandomSplitBasis(c.n_layers, c.n_kv_heads, c.head_dim, stage.Number("ratio"),
                                kRandomWeightsSeed, spec.has_latent_keys());
  }
  return Error(StatusCode::kInvalidArgument,
               "--kv '{}': a model with random weights takes rate, or a ratio that chooses bits",
               spec.text());
}

bool NeedsFisher(const Spec& spec) {
  return spec.basis() != nullptr && spec.basis()->Has("ranks") &&
         spec.basis()->Word("ranks") == "fisher";
}

}  // namespace

void SayWithoutBf16(Isa isa) {
  if (HasBf16Dots(isa)) return;
  fmt::print(stderr, "kvlathe: note: {}: computing {}\n",
             HasBf16Dots(AvailableIsas().back()) ? "KVLATHE_ISA leaves out BF16 instructions"
                                                 : "this CPU has no BF16 instructions",
             isa == Isa::kAvx2 ? "in F32 with AVX2" : "in F32 with portable loops, slowly");
}

StatusOr<std::unique_ptr<Workspace>> Workspace::Prepare(const ModelOptions& options,
                                                        ModelConfig config) {
  std::unique_ptr<Workspace> w(new Workspace);
  w->options_ = options;
  for (const std::string& kv : options.kv) {
    KVL_ASSIGN_OR_RETURN(const Spec spec, Spec::Parse(kv));
    if (!spec.accuracy().has_value()) KVL_RETURN_IF_ERROR(CheckSupported(spec));
  }
  KVL_ASSIGN_OR_RETURN(w->isa_, SelectIsa());
  w->compute_type_ = options.dtype == "f32" ? DType::kF32 : DType::kBf16;
  if (options.ctx_size > config.max_seq_len) {
    return Error(StatusCode::kInvalidArgument, "-c {}: the model's context is {}", options.ctx_size,
                 config.max_seq_len);
  }
  w->context_tokens_ = options.ctx_size > 0 ? options.ctx_size : config.max_seq_len;
  if (options.kv_memory.empty()) {
    w->kv_budget_bytes_ = DefaultKvBudget();
  } else {
    KVL_ASSIGN_OR_RETURN(w->kv_budget_bytes_, ParseBytes(options.kv_memory));
  }
  config.ChooseContext(w->context_tokens_);
  w->threads_ = std::make_unique<ThreadPool>(options.n_threads > 0 ? options.n_threads
                                                                   : AvailableProcessors());
  if (options.pin_threads) KVL_RETURN_IF_ERROR(w->threads_->Pin());
  w->config_ = std::move(config);
  w->progress_ = TerminalProgress();
  return w;
}

Status Workspace::LoadWeights(std::unique_ptr<TensorSource> source) {
  SayWithoutBf16(isa_);
  LoadProgress progress;
  if (progress_) {
    progress = [this](double fraction) { progress_("loading " + options_.model, fraction); };
  }
  KVL_ASSIGN_OR_RETURN(auto weights, ModelWeights::Load(config_, compute_type_, std::move(source),
                                                        threads_.get(), progress));
  weights_ = std::move(weights);
  return OkStatus();
}

StatusOr<std::unique_ptr<Workspace>> Workspace::Open(const ModelOptions& options) {
  KVL_ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(options.model));
  KVL_ASSIGN_OR_RETURN(auto w, Prepare(options, std::move(config)));
  KVL_ASSIGN_OR_RETURN(w->tokenizer_, Tokenizer::Load(options.model, {options.pre}));
  KVL_ASSIGN_OR_RETURN(SafetensorsReader reader, SafetensorsReader::OpenModel(options.model));
  KVL_ASSIGN_OR_RETURN(const std::string config_text, ReadTextFile(options.model + "/config.json"));
  w->model_hash_ = ModelHash(config_text, reader);
  KVL_RETURN_IF_ERROR(w->LoadWeights(MakeFileSource(std::move(reader))));
  return w;
}

StatusOr<std::unique_ptr<Workspace>> Workspace::OpenRandom(const std::string& config_path,
                                                           const ModelOptions& options) {
  KVL_ASSIGN_OR_RETURN(const nlohmann::json json, ReadJsonFile(config_path));
  KVL_ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(json, config_path));
  KVL_ASSIGN_OR_RETURN(auto w, Prepare(options, std::move(config)));
  w->random_weights_ = true;
  KVL_RETURN_IF_ERROR(w->LoadWeights(MakeRandomSource(kRandomWeightsSeed)));
  return w;
}

std::optional<int32_t> Workspace::leading_bos() const {
  const std::vector<int32_t> ids = tokenizer_->Tokenize("", /*add_bos=*/true);
  return ids.empty() ? std::nullopt : std::optional<int32_t>(ids.front());
}

StatusOr<std::vector<int32_t>> Workspace::TokenizeFile(const std::string& path) const {
  KVL_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  std::vector<int32_t> ids = tokenizer_->Tokenize(text, /*add_bos=*/false, /*parse_special=*/false);
  for (int32_t id : ids) {
    if (id >= config_.vocab_size) {
      return Error(
          StatusCode::kDataLoss,
          "{}: the tokenizer gives id {}, but the model's vocabulary has {}; they do not belong "
          "together",
          options_.model, id, config_.vocab_size);
    }
  }
  return ids;
}

StatusOr<CalibrationStatistics> Workspace::FindStatistics(const CalibrationRun& run) {
  StatisticsRequest request;
  request.basis_path = options_.basis;
  request.model_directory = options_.model;
  request.shape = ShapeOf(config_);
  request.model_hash = model_hash_;
  request.rope = config_.DescribePositions();
  request.settings = fmt::format("{} sequence {} {}", run.Describe(),
                                 CalibrationSequenceTokens(context_tokens_), options_.dtype);
  if (!run.text_path.empty()) {
    KVL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, TokenizeFile(run.text_path));
    request.settings += " " + TokenHash(ids);
  }
  KVL_ASSIGN_OR_RETURN(FoundStatistics found, FindOrCalibrate(request, [&] {
                         return RunCalibration(this, model_hash_, run);
                       }));
  if (!found.warning.empty()) fmt::print(stderr, "kvlathe: warning: {}\n", found.warning);
  if (found.is_new && !found.path.empty()) {
    fmt::print(stderr, "calibrated on {}; kept in {}\n",
               run.text_path.empty() ? "random tokens" : run.text_path, found.path);
  }
  return std::move(found.statistics);
}

StatusOr<const CalibrationStatistics*> Workspace::Hold(const CalibrationRun& run,
                                                       std::optional<CalibrationStatistics>* held) {
  if (!held->has_value() || (run.across_heads && (*held)->k_pre_across_heads.empty())) {
    KVL_ASSIGN_OR_RETURN(*held, FindStatistics(run));
  }
  return &**held;
}

StatusOr<const CalibrationStatistics*> Workspace::Statistics(bool across_heads) {
  return Hold({.across_heads = across_heads}, &statistics_);
}

StatusOr<const CalibrationStatistics*> Workspace::TextStatistics(bool across_heads) {
  const std::string text = options_.model + "/calibration.txt";
  const bool has_own_choice =
      !options_.basis.empty() || FileExists(options_.model + "/basis.safetensors");
  if (has_own_choice || !FileExists(text)) return Statistics(across_heads);
  return Hold({.text_path = text, .across_heads = across_heads}, &text_statistics_);
}

StatusOr<BasisAnalysis> Workspace::Analyse(const Stage& stage,
                                           const CalibrationStatistics& statistics) {
  if (value_grams_.empty()) {
    KVL_ASSIGN_OR_RETURN(value_grams_, weights_->AllValueGrams());
    KVL_ASSIGN_OR_RETURN(output_grams_, weights_->AllOutputGrams());
    KVL_ASSIGN_OR_RETURN(value_biases_, weights_->AllValueBiases());
    key_biases_ = weights_->AllKeyBiases();
  }
  BasisInputs inputs = {.statistics = &statistics,
                        .value_grams = value_grams_,
                        .output_grams = output_grams_,
                        .options = OptionsOf(stage),
                        .key_biases = key_biases_,
                        .value_biases = value_biases_};
  std::vector<std::vector<double>> key_grams, joined_value_grams;
  const int n_joined = inputs.options.heads_per_latent;
  if (!inputs.options.is_whitened && config_.n_kv_heads % n_joined == 0) {
    KVL_ASSIGN_OR_RETURN(key_grams, weights_->AllKeyGrams(n_joined));
    KVL_ASSIGN_OR_RETURN(joined_value_grams, weights_->AllValueGrams(n_joined));
    inputs.key_grams = key_grams;
    inputs.value_grams = joined_value_grams;
  }
  return FindBasisMethod(stage.name)->analyse(inputs);
}

StatusOr<const BasisAnalysis*> Workspace::Analysis(const Stage& stage) {
  const BasisOptions basis_options = OptionsOf(stage);
  for (const KnownAnalysis& known : analyses_) {
    if (known.method == stage.name && known.options == basis_options) return known.analysis.get();
  }
  const bool wants_text = FindBasisMethod(stage.name)->wants_text;
  KVL_RETURN_IF_ERROR(CheckHeadsPerLatent(basis_options.heads_per_latent, config_.n_kv_heads));
  const bool across_heads = basis_options.heads_per_latent > 1 && basis_options.is_whitened;
  KVL_ASSIGN_OR_RETURN(const CalibrationStatistics* statistics,
                       wants_text ? TextStatistics(across_heads) : Statistics(across_heads));
  KVL_ASSIGN_OR_RETURN(BasisAnalysis analysis, Analyse(stage, *statistics));
  analyses_.push_back({std::string(stage.name), basis_options,
                       std::make_unique<BasisAnalysis>(std::move(analysis))});
  return analyses_.back().analysis.get();
}

StatusOr<const FisherWeights*> Workspace::Fisher(const Spec& spec) {
  if (fisher_.has_value()) return &*fisher_;
  std::string path = options_.model + "/fisher.json";
  if (!options_.basis.empty()) {
    const std::filesystem::path beside =
        std::filesystem::path(options_.basis).parent_path() / "fisher.json";
    if (FileExists(beside)) path = beside;
  }
  if (!FileExists(path)) {
    return Error(StatusCode::kNotFound,
                 "--kv '{}': {} is not there; make it: kvlathe retrofit fisher -m {} --text FILE",
                 spec.text(), path, options_.model);
  }
  KVL_ASSIGN_OR_RETURN(FisherWeights weights, ReadFisherWeights(path));
  KVL_RETURN_IF_ERROR(CheckFisherMatch(weights, path, config_.n_layers, model_hash_));
  fisher_ = std::move(weights);
  return &*fisher_;
}

StatusOr<RankAllocation> Workspace::ChooseRanks(const Spec& spec, const BasisAnalysis& analysis,
                                                std::optional<double> rate) {
  const Stage& stage = *spec.basis();
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
    return FractionAtFullContext(config_, spec, compute_type_, ranks);
  };
  const BasisMethod& method = *FindBasisMethod(stage.name);
  return (spec.splits_bits() ? method.allocate_bits : method.allocate)(analysis, request);
}

StatusOr<ModelBasis> Workspace::BasisAt(const Spec& spec, const RankAllocation& allocation) {
  KVL_ASSIGN_OR_RETURN(const BasisAnalysis* analysis, Analysis(*spec.basis()));
  if (spec.finds_basis_online()) return OnlineBasis(*spec.basis(), allocation.ranks);
  if (!spec.basis()->Has("resident")) return CutBasis(*analysis, allocation.ranks);
  const int d = config_.head_dim;
  return CutBasis(*analysis, std::vector<HeadRanks>(allocation.ranks.size(), {d, d}));
}

StatusOr<ModelBasis> Workspace::OnlineBasis(const Stage& stage,
                                            const std::vector<HeadRanks>& ranks) {
  OnlineInputs inputs = {.is_normalised = OptionsOf(stage).is_normalised};
  KVL_ASSIGN_OR_RETURN(inputs.output_grams, weights_->AllOutputGrams());
  ModelBasis basis{config_.n_layers, config_.n_kv_heads, config_.head_dim};
  for (const HeadRanks& r : ranks) {
    basis.heads.push_back({.rank_k = r.rank_k, .rank_v = r.rank_v});
  }
  basis.online = std::move(inputs);
  return basis;
}

StatusOr<ModelCodebooks> Workspace::Codebooks(const Stage& quantizer, const SealPlan& seal,
                                              const ModelBasis* basis) {
  KVL_ASSIGN_OR_RETURN(const CalibrationStatistics* statistics, TextStatistics());
  const int bits = quantizer.Integer("bits");
  const std::string_view qnorm = quantizer.Word("qnorm");
  return FitCodebooks({.statistics = statistics,
                       .basis = basis,
                       .rope_dim = config_.rope_dim(),
                       .bits = bits,
                       .outliers = seal.format.sparse_share,
                       .matches_moments = qnorm == "on" || (qnorm == "auto" && bits == 2)});
}

StatusOr<Spec> Workspace::ParseSpec(const std::string& kv) {
  KVL_ASSIGN_OR_RETURN(Spec spec, Spec::Parse(kv));
  if (spec.accuracy().has_value() && !random_weights_) {
    if (!profile_.has_value()) {
      KVL_ASSIGN_OR_RETURN(profile_, FindProfile(*this, spec));
    }
    KVL_ASSIGN_OR_RETURN(
        spec, Answer(profile_->profile, profile_->path, spec, options_.model, model_hash_));
  }
  KVL_RETURN_IF_ERROR(CheckSupported(spec));
  if (NeedsFisher(spec) && !random_weights_) {  // before calibration, which takes long
    KVL_RETURN_IF_ERROR(Fisher(spec).status());
  }
  return spec;
}

StatusOr<double> Workspace::FractionOf(const std::string& kv) {
  KVL_ASSIGN_OR_RETURN(const Spec spec, ParseSpec(kv));
  std::vector<HeadRanks> ranks(config_.n_layers * config_.n_kv_heads,
                               {config_.head_dim, config_.head_dim});
  if (spec.basis() != nullptr && FindBasisMethod(spec.basis()->name) != nullptr) {
    KVL_ASSIGN_OR_RETURN(const BasisAnalysis* analysis, Analysis(*spec.basis()));
    KVL_ASSIGN_OR_RETURN(RankAllocation allocation, ChooseRanks(spec, *analysis));
    ranks = std::move(allocation.ranks);
  }
  return FractionAtFullContext(config_, spec, compute_type_, ranks);
}

StatusOr<SpecModel> Workspace::MakeModel(const std::string& kv, std::optional<double> rate) {
  SpecModel result;
  KVL_ASSIGN_OR_RETURN(result.spec, ParseSpec(kv));
  const Stage* const basis_stage = result.spec.basis();
  if (basis_stage != nullptr && basis_stage->Has("round") &&
      basis_stage->Integer("round") % 16 != 0) {
    return Error(
        StatusCode::kUnimplemented,
        "--kv '{}': the attention kernels of this build take ranks in multiples of 16; leave "
        "round out",
        kv);
  }
  ModelBasis basis;
  if (basis_stage != nullptr && FindBasisMethod(basis_stage->name) != nullptr) {
    if (random_weights_) {
      KVL_ASSIGN_OR_RETURN(basis, RandomBasisOf(config_, result.spec));
      if (result.spec.finds_basis_online()) {
        std::vector<HeadRanks> ranks;
        for (const HeadBasis& head : basis.heads) ranks.push_back({head.rank_k, head.rank_v});
        KVL_ASSIGN_OR_RETURN(basis, OnlineBasis(*basis_stage, ranks));
      }
    } else {
      KVL_ASSIGN_OR_RETURN(const BasisAnalysis* analysis, Analysis(*basis_stage));
      KVL_ASSIGN_OR_RETURN(result.ranks, ChooseRanks(result.spec, *analysis, rate));
      KVL_ASSIGN_OR_RETURN(basis, BasisAt(result.spec, *result.ranks));
    }
  }
  const Stage* quantizer = result.spec.quantizer();
  if (quantizer != nullptr && quantizer->Has("hadamard") && quantizer->Word("hadamard") == "on") {
    if (basis.heads.empty()) {
      basis = IdentityBasis(config_.n_layers, config_.n_kv_heads, config_.head_dim);
    }
    MixByHadamard(&basis);
  }
  const ModelBasis* const used_basis = basis.heads.empty() ? nullptr : &basis;
  const std::optional<SealPlan> seal = SealPlanOf(result.spec);
  const std::optional<RetentionPlan> retention = RetentionPlanOf(result.spec);
  KVL_ASSIGN_OR_RETURN(
      result.model, Model::Create(weights_, used_basis, result.spec.n_sink(), threads_.get(), isa_,
                                  seal.has_value() ? &*seal : nullptr,
                                  retention.has_value() ? &*retention : nullptr));
  if (basis_stage != nullptr && basis_stage->Has("resident")) {
    result.model->OfferRates(
        result.ranks->ranks,
        [this, spec = result.spec](double rate) -> StatusOr<std::vector<HeadRanks>> {
          KVL_ASSIGN_OR_RETURN(const BasisAnalysis* analysis, Analysis(*spec.basis()));
          KVL_ASSIGN_OR_RETURN(RankAllocation allocation, ChooseRanks(spec, *analysis, rate));
          return std::move(allocation.ranks);
        });
  }
  if (seal.has_value() && seal->format.k.has_codebook && !random_weights_) {
    KVL_ASSIGN_OR_RETURN(ModelCodebooks codebooks, Codebooks(*quantizer, *seal, used_basis));
    result.model->set_codebooks(std::move(codebooks));
  }
  result.model->set_schedule(ParseSchedule(options_.schedule));
  result.model->set_deterministic(options_.deterministic);
  return result;
}

StatusOr<SequenceIdentity> Workspace::IdentityOf(const SpecModel& spec_model) {
  std::string model = fmt::format("{} {}", model_hash_, config_.DescribePositions());
  if (spec_model.ranks.has_value()) {
    KVL_ASSIGN_OR_RETURN(const ModelBasis basis, BasisAt(spec_model.spec, *spec_model.ranks));
    model += " basis " + BasisHash(basis);
  }
  const ModelCodebooks& codebooks = spec_model.model->codebooks();
  if (!codebooks.empty()) model += " codebooks " + CodebooksHash(codebooks);
  return SequenceIdentity{spec_model.spec.ToString(), std::move(model)};
}

}  // namespace kvlathe
