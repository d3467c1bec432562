// A step from its tokens to its logits, layer by layer.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "model/model.h"
#include "model/steps/normalise.h"
#include "model/steps/project.h"

namespace kvlathe {

Status Model::PlaceTokens(std::span<const SequenceStep> steps) {
  KVL_RETURN_IF_ERROR(CheckPositions(steps));
  std::vector<TokenPlace>& tokens = activations_.tokens;
  tokens.clear();
  int n_positions = 0;
  for (const SequenceStep& step : steps) {
    const int first = step.first_position();
    KVL_CHECK_GE(first, 0);
    for (int t = 0; t < step.n_new(); ++t) {
      KVL_CHECK_LT(static_cast<uint32_t>(step.token_ids[t]),
                   static_cast<uint32_t>(config().vocab_size));
      tokens.push_back({step.token_ids[t], first + t, step.cache->has_whole_keys(0)});
    }
    n_positions = std::max(n_positions, first + step.n_new());
  }
  activations_.n_tokens = std::ssize(tokens);
  return rotations_.Extend(n_positions);
}

Status Model::CheckPositions(std::span<const SequenceStep> steps) const {
  int n_positions = 0;
  for (const SequenceStep& step : steps) {
    n_positions = std::max(n_positions, step.first_position() + step.n_new());
  }
  if (config().positions == PositionKind::kLearned && n_positions > config().max_seq_len) {
    return Error(
        StatusCode::kInvalidArgument,
        "position {} is past the {} positions that the model has learned; shorten the text",
        n_positions - 1, config().max_seq_len);
  }
  return OkStatus();
}

void Model::NoteWantedRows(std::span<const SequenceStep> steps) {
  has_logits_ = has_hidden_ = false;
  for (const SequenceStep& step : steps) {
    (step.logits == SequenceStep::Logits::kHidden ? has_hidden_ : has_logits_) |=
        step.n_logit_rows() > 0;
  }
}

StatusOr<ForwardState> Model::Begin(std::span<const SequenceStep> steps, QkvObserver* observer) {
  n_logit_rows_ = 0;
  KVL_RETURN_IF_ERROR(PlaceTokens(steps));
  for (const SequenceStep& step : steps) n_logit_rows_ += step.n_logit_rows();
  const int64_t n_rows = has_logits_ ? n_logit_rows_ : 0;
  sequences_.Begin(steps, static_cast<int>(weights_->shard().layers.begin));
  KVL_RETURN_IF_ERROR(activations_.Reserve(widths_));
  KVL_RETURN_IF_ERROR(logits_.EnsureSize(
      activations_.memory, n_rows * n_held_words() * int64_t{sizeof(float)}, "logits"));
  machine().backend().set_deterministic(is_deterministic_);
  return ForwardState{.sequences = &sequences_,
                      .activations = &activations_,
                      .backend = &machine().backend(),
                      .profile = &profile_,
                      .observer = observer,
                      .schedule = schedule_};
}

Status Model::RunStep(std::span<const SequenceStep> steps, QkvObserver* observer) {
  KVL_RETURN_IF_ERROR(weights_->CheckInterrupt());
  if (is_shard()) {
    KVL_CHECK(observer == nullptr);
    return RunOnRanks(steps);
  }
  NoteWantedRows(steps);
  KVL_ASSIGN_OR_RETURN(ForwardState state, Begin(steps, observer));
  failures_ = sequences_.failures();
  if (activations_.n_tokens == 0) return OkStatus();
  const Status queued = QueueStep(&state);
  // Also where a step could not be planned to its end: what was asked for is over before the next.
  KVL_ASSIGN_OR_RETURN(const StepReport report, machine().backend().Finish());
  KVL_RETURN_IF_ERROR(queued);
  sequences_.Learn(report);
  failures_ = sequences_.failures();
  profile_.plan += report.plan_seconds;
  profile_.rebuild += report.rebuild_seconds;
  if (n_logit_rows_ > 0 && !sequences_.AllFailed()) FetchRows();
  return OkStatus();
}

Status Model::ReserveSteps(int n_tokens) {
  activations_.n_tokens = n_tokens;
  return activations_.Reserve(widths_);
}

Status Model::QueueStep(ForwardState* state) {
  EmbedTokens();
  for (LayerProgram& program : programs_) {
    KVL_RETURN_IF_ERROR(program.Run(state));
    if (sequences_.AllFailed()) return OkStatus();
  }
  if (n_logit_rows_ > 0) ComputeLogits(state->steps());
  return OkStatus();
}

Status Model::Forward(std::span<const SequenceStep> steps, QkvObserver* observer) {
  KVL_RETURN_IF_ERROR(RunStep(steps, observer));
  for (const Status& failure : failures_) KVL_RETURN_IF_ERROR(failure);
  return OkStatus();
}

Status Model::ForwardEach(std::span<const SequenceStep> steps, std::vector<Status>* failures) {
  KVL_RETURN_IF_ERROR(RunStep(steps, nullptr));
  *failures = failures_;
  return OkStatus();
}

Status Model::SealRuns(int layer_idx, std::span<SequenceCache* const> caches) {
  ForwardState state = {.backend = &machine().backend(), .profile = &profile_};
  KVL_ASSIGN_OR_RETURN(const std::vector<Status> statuses,
                       programs_[layer_idx].SealEach(caches, &state));
  KVL_ASSIGN_OR_RETURN(const StepReport report, machine().backend().Finish());
  for (const Status& status : statuses) KVL_RETURN_IF_ERROR(status);
  for (const auto& [sequence, cost] : report.reencoded) {
    caches[sequence]->mutable_reencoding()->Add(cost);
  }
  if (report.failures.empty()) return OkStatus();
  const Status& failed = report.failures.front().status;
  return Error(failed.code(), "layer {}: {}", layer_idx, MessageOf(failed));
}

std::span<const float> Model::logits(int64_t row) const {
  KVL_CHECK_LT(row, n_logit_rows_);
  const int64_t n = config().vocab_size;
  return {HostLogits() + row * n, static_cast<size_t>(n)};
}

const float* Model::HostLogits() const {
  if (const float* const there = host_logits_.load(std::memory_order_acquire)) return there;
  const std::lock_guard lock(downloading_);
  if (const float* const there = host_logits_.load(std::memory_order_relaxed)) return there;
  downloaded_logits_.resize(n_logit_rows_ * config().vocab_size);
  activations_.memory->Download(logits_.place(),
                                std::as_writable_bytes(std::span(downloaded_logits_)));
  host_logits_.store(downloaded_logits_.data(), std::memory_order_release);
  return downloaded_logits_.data();
}

const LargestNumbers* Model::Likeliest(int64_t row) {
  KVL_CHECK_LT(row, n_logit_rows_);
  if (host_logits_ != nullptr) return nullptr;
  if (likeliest_.empty()) {
    likeliest_ = machine().backend().FindLargest(
        {.rows = logits_.place(), .n_rows = n_logit_rows_, .n_dims = config().vocab_size});
  }
  return likeliest_.empty() ? nullptr : &likeliest_[row];
}

std::span<const float> Model::hidden(int64_t row) const {
  KVL_CHECK_LT(row, n_logit_rows_);
  const auto n = static_cast<size_t>(config().hidden_dim);
  return std::span(host_hidden_).subspan(static_cast<size_t>(row) * n, n);
}

void Model::EmbedTokens() {
  const ScopedTimer timer(&profile_.other);
  Backend& backend = machine().backend();
  const ObjectPlace hidden = activations_.hidden.place();
  backend.Embed(weights_->PlanEmbedding(activations_.tokens, hidden));
  if (weights_->shard().has_whole_layers()) return;
  backend.SumOverRanks(
      {.x = hidden, .n_numbers = activations_.n_tokens * config().hidden_dim, .added_to = {}});
}

void Model::ComputeLogits(std::span<const SequenceStep> steps) {
  const int64_t hidden = config().hidden_dim;
  Backend& backend = machine().backend();
  // The wanted rows move to the front; the rest is done with.
  std::vector<int64_t> wanted;
  int64_t token_idx = 0;
  for (const SequenceStep& step : steps) {
    token_idx += step.n_new();
    for (int64_t i = step.n_logit_rows(); i > 0; --i) wanted.push_back(token_idx - i);
  }
  const ObjectPlace rows = activations_.hidden.place();
  NormPlan in_place = NormOf(config(), weights_->final_norm(), rows, n_logit_rows_, hidden);
  in_place.out = rows;
  {
    const ScopedTimer timer(&profile_.other);
    backend.TakeRows({.rows = rows, .row_bytes = hidden * int64_t{sizeof(float)}, .from = wanted});
  }
  if (has_logits_) {
    {
      const ScopedTimer timer(&profile_.other);
      NormPlan norm = in_place;
      norm.out_type = activations_.types.activations;
      norm.out = activations_.normed.place();
      backend.Normalise({&norm, 1});
    }
    const ScopedTimer timer(&profile_.linear);
    backend.Project(ProductOf(weights_->lm_head(), weights_->lm_head_bias(), n_logit_rows_,
                              activations_.normed.place(), activations_.types.activations,
                              logits_.place()));
    if (config().logit_cap > 0) {
      backend.Cap({.x = logits_.place(),
                   .n_numbers = n_logit_rows_ * n_held_words(),
                   .cap = config().logit_cap});
    }
  }
  if (!has_hidden_) return;
  const ScopedTimer timer(&profile_.other);
  backend.Normalise({&in_place, 1});
}

void Model::FetchRows() {
  const ScopedTimer timer(&profile_.linear);
  Device& memory = *activations_.memory;
  host_hidden_.clear();
  if (has_hidden_) {
    host_hidden_.resize(static_cast<size_t>(n_logit_rows_ * config().hidden_dim));
    memory.Download(activations_.hidden.place(), std::as_writable_bytes(std::span(host_hidden_)));
    if (config().logit_scale != 1) {  // which the final norm has
      for (float& x : host_hidden_) x /= config().logit_scale;
    }
  }
  if (!has_logits_) return;
  likeliest_.clear();
  host_logits_ = reinterpret_cast<const float*>(memory.HostView(logits_.place()));
}

}  // namespace kvlathe
