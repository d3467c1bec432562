#include "training/retrofit/trainer.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/random.h"
#include "training/retrofit/dms/dms_pass.h"
#include "training/retrofit/merging/pool_pass.h"
#include "training/retrofit/model_directory.h"

namespace kvlathe {

using torch::Tensor;

namespace {

// Steps whose gradients are not finite move nothing; so many of them in a row are no accident.
constexpr int kMaxLeftOut = 10;

Status CheckWorkers(const TrainingRecipe& recipe, const TrainerOptions& options) {
  if (options.workers == nullptr) return OkStatus();
  const int n_workers = options.workers->count();
  const int n_micro_batches = recipe.batch_tokens / recipe.micro_batch_tokens;
  if (n_micro_batches % n_workers != 0) {
    return Error(StatusCode::kInvalidArgument,
                 "--workers {} cannot share the {} micro batches of a step alike; change "
                 "micro_batch_tokens ({})",
                 n_workers, n_micro_batches, recipe.micro_batch_tokens);
  }
  if (options.budget_seconds > 0) {
    return Error(StatusCode::kInvalidArgument,
                 "--minutes is for one worker; with --workers a run ends with total_tokens");
  }
  return OkStatus();
}

}  // namespace

StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const TrainingRecipe* recipe,
                                                   const Corpus* corpus,
                                                   const TrainerOptions& options) {
  KVL_RETURN_IF_ERROR(CheckTrainable(recipe->model));
  if (options.dmc_stage.has_value() && recipe->model.model_type == "gpt2") {
    return Error(StatusCode::kUnimplemented,
                 "retrofit dmc: keys of GPT-2 have no channel to spare before RoPE; it retrofits "
                 "Llama models");
  }
  KVL_RETURN_IF_ERROR(CheckWorkers(*recipe, options));
  KVL_ASSIGN_OR_RETURN(BatchOrder order, BatchOrder::Create(recipe, corpus));
  std::unique_ptr<Trainer> trainer(new Trainer(recipe, options, std::move(order)));
  trainer->corpus_ = corpus;
  return trainer;
}

Trainer::Trainer(const TrainingRecipe* recipe, const TrainerOptions& options, BatchOrder order)
    : recipe_(recipe), options_(options), order_(std::move(order)) {
  decoder_ = std::make_unique<Decoder>(recipe->model, recipe->seed, torch::kFloat, options.device);
  for (const auto& [name, parameter] : decoder_->parameters()) {
    if (recipe->dms.has_value()) break;  // heads alone are
    const bool is_trained = recipe->trained == TrainedWeights::kAll || IsOfAttention(name);
    Tensor(parameter).set_requires_grad(is_trained);
  }
  if (recipe->dms.has_value()) {
    decoder_->AddDmsHeads();
    state_.hinge_weight = recipe->dms->hinge_weight;
  }
  if (recipe->dmc.has_value()) state_.hinge_weight = recipe->dmc->hinge_weight;
  const double deciding_rate = recipe->dmc.has_value() ? recipe->dmc->deciding_rate : 1;
  optimizer_ = std::make_unique<Optimizer>(decoder_.get(), recipe->optimizer, options.compute_type,
                                           deciding_rate);
}

double Trainer::progress() const {
  if (recipe_->total_tokens == 0) return 1;  // heads that are fitted alone
  const double share = options_.budget_seconds > 0
                           ? state_.seconds / options_.budget_seconds
                           : static_cast<double>(state_.tokens) / recipe_->total_tokens;
  return std::min(1.0, share);
}

Tensor Trainer::ReadBatch(int n_sequences, int context,
                          const std::function<void(int64_t, std::span<int64_t>)>& read) const {
  Tensor batch = torch::empty({n_sequences, context + 1}, torch::kLong);
  for (int i = 0; i < n_sequences; ++i) {
    read(i, {batch.data_ptr<int64_t>() + int64_t{i} * (context + 1),
             static_cast<size_t>(context) + 1});
  }
  return batch.to(options_.device);
}

Status Trainer::SetTeacher(const std::string& model) {
  KVL_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(model));
  KVL_RETURN_IF_ERROR(CheckTrainable(config));
  if (config.vocab_size != recipe_->model.vocab_size) {
    return Error(StatusCode::kInvalidArgument,
                 "{}: a vocabulary of {} tokens; a teacher of this model has {}", model,
                 config.vocab_size, recipe_->model.vocab_size);
  }
  teacher_ = std::make_unique<Decoder>(config, 1, torch::kFloat, options_.device);
  return LoadWeights(model, teacher_.get());
}

namespace {

// What a model reads of a batch; the targets are the tokens behind.
Tensor InputsOf(const Tensor& batch) {
  return batch.narrow(1, 0, batch.size(1) - 1).bitwise_and(~int64_t{kNotLearned});
}

// [n_sequences, context]
Tensor IsLearned(const Tensor& batch) {
  return batch.narrow(1, 1, batch.size(1) - 1).bitwise_and(int64_t{kNotLearned}).eq(0);
}

// The rows of hidden states or logits that are learned.
Tensor LearnedRows(const Tensor& batch) {
  return IsLearned(batch).reshape({-1}).nonzero().squeeze(1);
}

// Mean negative log-likelihood under the logits of the learned rows. Every sequence counts the
// same, however little of it is learned.
Tensor LanguageLoss(const Tensor& logits, const Tensor& batch, const Tensor& learned) {
  const Tensor is_learned = IsLearned(batch);
  const Tensor weights = is_learned / (batch.size(0) * is_learned.sum(1, true).clamp_min(1));
  const Tensor targets = batch.narrow(1, 1, batch.size(1) - 1).reshape({-1});
  const Tensor losses = CrossEntropy(logits, targets.index_select(0, learned));
  return losses.dot(weights.reshape({-1}).index_select(0, learned).to(losses.scalar_type()));
}

}  // namespace

Tensor Trainer::Hidden(const Tensor& batch, MergePass* pass) const {
  return decoder_->Hidden(InputsOf(batch), options_.compute_type, pass);
}

Tensor Trainer::TeacherLogits(const Tensor& batch) const {
  const torch::NoGradGuard no_grad;
  return teacher_->Logits(teacher_->Hidden(InputsOf(batch), options_.compute_type));
}

Trainer::Losses Trainer::DivergenceOf(const Tensor& hidden, const Tensor& batch) const {
  const int64_t n_tokens = batch.size(1) - 1, every = recipe_->dms->every;
  const int64_t window = std::min<int64_t>(n_tokens - 1, recipe_->dms->window);
  // Queries that see all there is say nothing.
  const Tensor place = torch::arange(window, n_tokens, every, hidden.device());
  const Tensor first = torch::arange(batch.size(0), hidden.device()) * n_tokens;
  const Tensor rows = (first.unsqueeze(1) + place).reshape({-1});
  Tensor reference;
  {
    const torch::NoGradGuard no_grad;
    const Tensor whole = decoder_->Hidden(InputsOf(batch), options_.compute_type);
    reference = decoder_->Logits(whole.index_select(0, rows));
  }
  const Tensor logits = decoder_->Logits(hidden.index_select(0, rows));
  const Tensor divergence = KlDivergence(reference, logits).mean();
  return {divergence, divergence};
}

Trainer::Losses Trainer::LossesOf(const Tensor& hidden, const Tensor& batch) const {
  if (recipe_->dms.has_value()) return DivergenceOf(hidden, batch);
  const Tensor learned = LearnedRows(batch);
  if (teacher_ == nullptr) {
    const Tensor logits = decoder_->Logits(hidden.index_select(0, learned));
    const Tensor language = LanguageLoss(logits, batch, learned);
    return {language, language};
  }
  const Tensor logits = decoder_->Logits(hidden);
  const Tensor language = LanguageLoss(logits.index_select(0, learned), batch, learned);
  const Tensor taught = KlDivergence(TeacherLogits(batch), logits).mean();
  return {language, language + recipe_->distillation * taught.to(language.scalar_type())};
}

std::unique_ptr<MergePass> Trainer::MakePass(DmcDecisions decisions, int micro_batch_idx) const {
  if (recipe_->pool.has_value()) return std::make_unique<PoolPass>(*recipe_->pool);
  if (!options_.dmc_stage.has_value() && !recipe_->dms.has_value()) return nullptr;
  const uint64_t batch_key =
      MixBits(static_cast<uint64_t>(state_.step) << 20 | static_cast<uint64_t>(micro_batch_idx));
  const uint64_t noise_seed = MixBits(recipe_->seed ^ batch_key);
  if (recipe_->dms.has_value()) {
    return std::make_unique<DmsPass>(&decoder_->dms_heads(), &*recipe_->dms,
                                     DmsPassOptions{.is_hard = decisions == DmcDecisions::kHard,
                                                    .norm_epsilon = recipe_->model.norms.eps,
                                                    .noise_seed = noise_seed});
  }
  const DmcRecipe& dmc = *recipe_->dmc;
  // What is validated is the model behind the steps so far.
  const int64_t behind = state_.step - (decisions == DmcDecisions::kHard ? 1 : 0);
  return std::make_unique<DmcPass>(
      dmc.config, DmcPassOptions{.decisions = decisions,
                                 .variant = dmc.variant,
                                 .temperature = dmc.temperature,
                                 .window = dmc.window,
                                 .channel_scale = dmc.ChannelScaleAt(*options_.dmc_stage, behind),
                                 .merges = *options_.dmc_stage != DmcStage::kZeroOut,
                                 .noise_seed = noise_seed});
}

double Trainer::TargetShare() const {
  if (!recipe_->dms.has_value())
    return 1 / recipe_->dmc->TargetAt(*options_.dmc_stage, state_.step);
  return recipe_->dms->KeptShare(recipe_->phases[state_.phase_idx].context);
}

Tensor Trainer::MergeLoss(const Tensor& alpha) const {
  if (recipe_->dms.has_value()) {
    return torch::relu((1 - alpha).mean() - TargetShare()) * state_.hinge_weight;
  }
  const DmcRecipe& dmc = *recipe_->dmc;
  return DmcLoss(alpha, {.cr = dmc.TargetAt(*options_.dmc_stage, state_.step),
                         .hinge = dmc.hinge,
                         .hinge_weight = state_.hinge_weight,
                         .is_consistent = dmc.is_consistent});
}

Status Trainer::RunMicroBatch(int micro_batch_idx, int n_micro_batches, LossPoint* point) {
  const int n_sequences = recipe_->micro_batch_tokens / point->context;
  const std::unique_ptr<MergePass> pass = MakePass(DmcDecisions::kRelaxed, micro_batch_idx);
  Tensor batch, loss, whole;
  {
    const ScopedTimer timer(&profile_.data);
    batch = ReadBatch(n_sequences, point->context, [&](int64_t i, std::span<int64_t> out) {
      order_.Read(state_.phase_idx, state_.phase_sequences + i, out);
    });
  }
  {
    const ScopedTimer timer(&profile_.forward);
    const Tensor hidden = Hidden(batch, pass.get());
    const Losses losses = LossesOf(hidden, batch);
    loss = losses.language;
    whole = losses.whole;
    if (const Tensor alpha = pass ? pass->Alpha() : Tensor(); alpha.defined()) {
      whole = whole + MergeLoss(alpha).to(loss.scalar_type());
      const double kept = 1 - alpha.detach().round().mean().item<double>();
      point->kept_share = std::max(0.0, point->kept_share) + kept / n_micro_batches;
    }
  }
  if (!std::isfinite(whole.item<double>())) {
    const std::string name = FirstNotFinite(*decoder_);
    return Error(StatusCode::kDataLoss,
                 "step {}, micro batch {} of {}: the loss is {}, {}; lower the learning rate",
                 state_.step + 1, micro_batch_idx + 1, n_micro_batches, whole.item<double>(),
                 name.empty() ? "with all parameters finite" : "as '" + name + "' is not finite");
  }
  const ScopedTimer timer(&profile_.backward);
  (whole / n_micro_batches).backward();
  point->loss += loss.item<double>() / n_micro_batches;
  return OkStatus();
}

Status Trainer::AddUpWorkers(const Status& own, LossPoint* point) {
  // Whoever fails still takes part in this sum, so that all stop together.
  const Tensor numbers = torch::tensor(
      {point->loss, std::max(0.0, point->kept_share), own.ok() ? 0.0 : 1.0}, torch::kDouble);
  KVL_RETURN_IF_ERROR(options_.workers->AddUp({numbers}));
  if (!own.ok()) return own;
  if (numbers[2].item<double>() > 0) {
    return Error(StatusCode::kDataLoss, "step {}: the loss of another worker is not a number",
                 state_.step + 1);
  }
  point->loss = numbers[0].item<double>();
  if (point->kept_share >= 0) point->kept_share = numbers[1].item<double>();
  std::vector<Tensor> gradients;
  for (const auto& [name, parameter] : decoder_->parameters()) {
    if (!parameter.requires_grad()) continue;
    Tensor& gradient = Tensor(parameter).mutable_grad();
    if (!gradient.defined()) gradient = torch::zeros_like(parameter.detach());
    gradients.push_back(gradient);
  }
  return options_.workers->AddUp(gradients);
}

Status Trainer::RunMicroBatches(LossPoint* point) {
  const int n_micro_batches = recipe_->batch_tokens / recipe_->micro_batch_tokens;
  Status status;
  for (int i = 0; i < n_micro_batches; ++i) {
    const bool is_own =
        options_.workers == nullptr || i % options_.workers->count() == options_.workers->index();
    if (is_own && status.ok()) status = RunMicroBatch(i, n_micro_batches, point);
    state_.phase_sequences += recipe_->micro_batch_tokens / point->context;
  }
  return options_.workers == nullptr ? status : AddUpWorkers(status, point);
}

Status Trainer::Step() {
  KVL_CHECK(recipe_->distillation == 0 || teacher_ != nullptr);
  const Stopwatch watch;
  const double at = progress();
  const int phase_idx = recipe_->PhaseIndexAt(at);
  if (phase_idx != state_.phase_idx) {
    state_.phase_idx = phase_idx;
    state_.phase_sequences = 0;
  }
  const int context = recipe_->phases[phase_idx].context;
  LossPoint point{.context = context};
  KVL_RETURN_IF_ERROR(RunMicroBatches(&point));
  {
    const ScopedTimer timer(&profile_.optimizer);
    // The middle of the step, so that the first one moves and the last one is not zero.
    const double half_step = 0.5 * recipe_->batch_tokens / recipe_->total_tokens;
    point.learning_rate = recipe_->LearningRateAt(std::min(1.0, at + half_step));
    const double norm = optimizer_->Step(point.learning_rate);
    n_left_out_ = std::isfinite(norm) ? 0 : n_left_out_ + 1;
  }
  if (n_left_out_ == kMaxLeftOut) {
    return Error(
        StatusCode::kDataLoss,
        "step {}: the gradients of {} steps in a row are not finite; lower the learning rate",
        state_.step + 1, kMaxLeftOut);
  }
  if (point.kept_share >= 0) {
    const double least = recipe_->dms ? recipe_->dms->hinge_weight : recipe_->dmc->hinge_weight;
    const double growth = recipe_->dms ? recipe_->dms->hinge_growth : recipe_->dmc->hinge_growth;
    state_.hinge_weight =
        std::max(least, state_.hinge_weight + growth * (point.kept_share - TargetShare()));
  }
  state_.step += 1;
  state_.tokens += recipe_->batch_tokens;
  state_.seconds += watch.Seconds();
  flops_ += recipe_->batch_tokens * decoder_->FlopsPerToken(context);
  point.step = state_.step;
  point.tokens = state_.tokens;
  if (state_.step % recipe_->validation_interval == 0 || is_done()) {
    point.validation_bpb = Validate();
  }
  curve_.push_back(point);
  return OkStatus();
}

Decoder Trainer::TrainedModel() const {
  if (!options_.dmc_stage.has_value()) return *decoder_;
  const DmcRecipe& dmc = *recipe_->dmc;
  if (!dmc.variant.shares_decisions && !dmc.variant.uniform_weights) return *decoder_;
  Decoder folded = WithKvHeads(*decoder_, decoder_->config().n_kv_heads);
  FoldVariant(dmc.variant, dmc.config, &folded);
  return folded;
}

double Trainer::Validate() {
  const ScopedTimer timer(&profile_.validation);
  const int context = recipe_->phases[state_.phase_idx].context;
  const int64_t n_sequences = order_.n_validation_sequences(context);
  if (n_sequences == 0) return -1;
  const torch::NoGradGuard no_grad;
  const int at_once = std::max(1, recipe_->micro_batch_tokens / context);
  double nats = 0;
  for (int64_t first = 0; first < n_sequences; first += at_once) {
    const int n = static_cast<int>(std::min<int64_t>(at_once, n_sequences - first));
    const Tensor batch = ReadBatch(n, context, [&](int64_t i, std::span<int64_t> out) {
      order_.ReadValidation(first + i, out);
    });
    const Tensor hidden = Hidden(batch, MakePass(DmcDecisions::kHard, 0).get());
    const Tensor learned = LearnedRows(batch);
    const Tensor logits = decoder_->Logits(hidden.index_select(0, learned));
    nats += LanguageLoss(logits, batch, learned).item<double>() * n;
  }
  const SourceInfo& source = *corpus_->Find(recipe_->validation_source);
  const double bytes_per_token =
      static_cast<double>(source.n_bytes) / static_cast<double>(source.n_tokens);
  return nats / static_cast<double>(n_sequences) / std::log(2.0) / bytes_per_token;
}

}  // namespace kvlathe
