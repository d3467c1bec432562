// A step from its tokens to its logits, layer by layer.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "model/model.h"
#include "model/steps/normalise.h"
#include "model/steps/project.h"

namespace kvlathe {

Status Model::PlaceTokens(std::span<const SequenceStep> steps) {
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
  if (config().positions == PositionKind::kLearned && n_positions > config().max_seq_len) {
    return Error(
        StatusCode::kInvalidArgument,
        "position {} is past the {} positions that the model has learned; shorten the text",
        n_positions - 1, config().max_seq_len);
  }
  rotations_.Extend(n_positions);
  return OkStatus();
}

StatusOr<ForwardState> Model::Begin(std::span<const SequenceStep> steps, QkvObserver* observer) {
  n_logit_rows_ = 0;
  KVL_RETURN_IF_ERROR(PlaceTokens(steps));
  for (const SequenceStep& step : steps) n_logit_rows_ += step.n_logit_rows();
  sequences_.Begin(steps);
  KVL_RETURN_IF_ERROR(activations_.Reserve(widths_));
  KVL_RETURN_IF_ERROR(
      logits_.EnsureSize(n_logit_rows_ * config().vocab_size * int64_t{sizeof(float)}, "logits"));
  return ForwardState{.sequences = &sequences_,
                      .activations = &activations_,
                      .backend = backend_.get(),
                      .profile = &profile_,
                      .observer = observer,
                      .schedule = schedule_};
}

Status Model::RunStep(std::span<const SequenceStep> steps, QkvObserver* observer,
                      std::vector<std::vector<float>>* streams) {
  KVL_ASSIGN_OR_RETURN(ForwardState state, Begin(steps, observer));
  if (activations_.n_tokens == 0) return OkStatus();
  EmbedTokens();
  if (streams != nullptr) streams->resize(layout_.n_layers);
  for (int l = 0; l < layout_.n_layers; ++l) {
    if (streams != nullptr) {
      const float* stream = activations_.hidden.as<float>();
      (*streams)[l].insert((*streams)[l].end(), stream,
                           stream + activations_.n_tokens * config().hidden_dim);
    }
    KVL_RETURN_IF_ERROR(programs_[l].Run(&state));
    if (sequences_.AllFailed()) return OkStatus();
  }
  if (n_logit_rows_ > 0) ComputeLogits(steps);
  return OkStatus();
}

Status Model::Forward(std::span<const SequenceStep> steps, QkvObserver* observer,
                      std::vector<std::vector<float>>* streams) {
  KVL_RETURN_IF_ERROR(RunStep(steps, observer, streams));
  return sequences_.FirstFailure();
}

Status Model::ForwardEach(std::span<const SequenceStep> steps, std::vector<Status>* failures) {
  KVL_RETURN_IF_ERROR(RunStep(steps, nullptr, nullptr));
  *failures = sequences_.failures();
  return OkStatus();
}

Status Model::ForwardFrom(int first_layer, std::span<const float> stream,
                          std::span<const SequenceStep> steps) {
  KVL_ASSIGN_OR_RETURN(ForwardState state, Begin(steps, nullptr));
  KVL_CHECK_EQ(std::ssize(stream), activations_.n_tokens * config().hidden_dim);
  std::copy(stream.begin(), stream.end(), activations_.hidden.as<float>());
  for (int l = 0; l < first_layer; ++l) KVL_RETURN_IF_ERROR(programs_[l].Skip(&state));
  for (int l = first_layer; l < layout_.n_layers; ++l) {
    KVL_RETURN_IF_ERROR(programs_[l].Run(&state));
  }
  if (n_logit_rows_ > 0) ComputeLogits(steps);
  return sequences_.FirstFailure();
}

Status Model::SealRuns(int layer_idx, std::span<SequenceCache* const> caches) {
  ForwardState state = {.backend = backend_.get(), .profile = &profile_};
  for (const Status& status : programs_[layer_idx].SealEach(caches, &state)) {
    KVL_RETURN_IF_ERROR(status);
  }
  return OkStatus();
}

std::span<const float> Model::logits(int64_t row) const {
  KVL_CHECK_LT(row, n_logit_rows_);
  const int64_t n = config().vocab_size;
  return {logits_.as<float>() + row * n, static_cast<size_t>(n)};
}

void Model::EmbedTokens() {
  const ScopedTimer timer(&profile_.other);
  const int64_t hidden = config().hidden_dim, n_tokens = activations_.n_tokens;
  const auto embed = [&](Range tokens) {
    for (int64_t t = tokens.begin; t < tokens.end; ++t) {
      const TokenPlace& token = activations_.tokens[t];
      weights_->Embed(token.token_id, token.position, activations_.hidden.as<float>() + t * hidden);
    }
  };
  if (n_tokens == 1) return embed({0, 1});
  pool_->Run([&](int worker_id) { embed(ShareOf(n_tokens, 1, worker_id, pool_->n_workers())); });
}

void Model::ComputeLogits(std::span<const SequenceStep> steps) {
  const int64_t hidden = config().hidden_dim;
  // The wanted rows move to the front; the rest is done with.
  float* rows = activations_.hidden.as<float>();
  int64_t token_idx = 0, n_rows = 0;
  for (const SequenceStep& step : steps) {
    const int64_t n_wanted = step.n_logit_rows();
    std::memmove(rows + n_rows * hidden, rows + (token_idx + step.n_new() - n_wanted) * hidden,
                 n_wanted * hidden * sizeof(float));
    token_idx += step.n_new();
    n_rows += n_wanted;
  }
  {
    const ScopedTimer timer(&profile_.other);
    NormPlan norm = NormOf(config(), weights_->final_norm(), rows, n_rows, hidden);
    norm.out_type = activations_.compute_type;
    norm.out = activations_.normed.data();
    backend_->Normalise({&norm, 1});
  }
  const ScopedTimer timer(&profile_.linear);
  backend_->Project(
      ProductOf(weights_->lm_head(), {}, n_rows, activations_.normed.data(), logits_.data()));
}

}  // namespace kvlathe
