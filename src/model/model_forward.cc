// A step from its tokens to its logits, layer by layer (model_layer.cc), and which of its sequences
// failed.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "model/model.h"

namespace kvlathe {

Status Model::ReserveActivations(int64_t n_tokens, int64_t n_logit_rows) {
  const ModelConfig& c = config();
  int64_t max_rank_k = 0, max_rank_v = 0;  // sums over the KV heads of a layer
  for (const LayerOffsets& o : offsets_) {
    max_rank_k = std::max(max_rank_k, o.rank_k.back());
    max_rank_v = std::max(max_rank_v, o.rank_v.back());
  }
  const int64_t row = SizeOf(row_type_), f32 = sizeof(float), group = c.gqa_group();
  const int64_t d = c.head_dim;
  const char* what = "activations";
  KVL_RETURN_IF_ERROR(hidden_.EnsureSize(n_tokens * c.hidden_dim * f32, what));
  KVL_RETURN_IF_ERROR(normed_.EnsureSize(n_tokens * c.hidden_dim * row, what));
  KVL_RETURN_IF_ERROR(qk_.EnsureSize(n_tokens * (c.n_heads + c.n_kv_heads) * d * f32, what));
  KVL_RETURN_IF_ERROR(v_.EnsureSize(n_tokens * max_rank_v * f32, what));
  if (!needs_no_turn_) {
    KVL_RETURN_IF_ERROR(q_full_.EnsureSize(n_tokens * c.n_heads * d * row, what));
    KVL_RETURN_IF_ERROR(k_full_.EnsureSize(n_tokens * c.n_kv_heads * d * row, what));
  }
  if (!bases_.empty()) {
    if (!layout_.has_latent_keys) {
      KVL_RETURN_IF_ERROR(q_rows_.EnsureSize(n_tokens * group * max_rank_k * row, what));
    }
    KVL_RETURN_IF_ERROR(k_rows_.EnsureSize(n_tokens * max_rank_k * row, what));
  }
  KVL_RETURN_IF_ERROR(
      attended_.EnsureSize(n_tokens * group * heads_per_latent_ * max_rank_v * row, what));
  if (heads_per_latent_ > 1) {
    KVL_RETURN_IF_ERROR(outputs_.EnsureSize(n_tokens * c.n_heads * d * row, what));
  }
  KVL_RETURN_IF_ERROR(mlp_in_.EnsureSize(n_tokens * c.mlp_rows() * f32, what));
  KVL_RETURN_IF_ERROR(gated_.EnsureSize(n_tokens * c.ffn_dim * row, what));
  if (c.output_norms) {
    KVL_RETURN_IF_ERROR(added_.EnsureSize(n_tokens * c.hidden_dim * f32, what));
  }
  return logits_.EnsureSize(n_logit_rows * c.vocab_size * f32, "logits");
}

Status Model::PlaceTokens(std::span<const SequenceStep> steps) {
  tokens_.clear();
  int n_positions = 0;
  for (const SequenceStep& step : steps) {
    const int n_new = static_cast<int>(step.token_ids.size());
    const int first = step.cache->n_tokens() - n_new;
    KVL_CHECK_GE(first, 0);
    for (int t = 0; t < n_new; ++t) {
      KVL_CHECK_LT(static_cast<uint32_t>(step.token_ids[t]),
                   static_cast<uint32_t>(config().vocab_size));
      tokens_.push_back({step.token_ids[t], first + t, step.cache->has_whole_keys(0)});
    }
    n_positions = std::max(n_positions, first + n_new);
  }
  n_tokens_ = static_cast<int64_t>(tokens_.size());
  if (config().positions == PositionKind::kLearned && n_positions > config().max_seq_len) {
    return Error(
        StatusCode::kInvalidArgument,
        "position {} is past the {} positions that the model has learned; shorten the text",
        n_positions - 1, config().max_seq_len);
  }
  ropes_.Extend(n_positions);
  return OkStatus();
}

Status Model::Begin(std::span<const SequenceStep> steps) {
  n_logit_rows_ = 0;
  KVL_RETURN_IF_ERROR(PlaceTokens(steps));
  for (const SequenceStep& step : steps) {
    if (step.logits == SequenceStep::Logits::kLast) n_logit_rows_ += 1;
    if (step.logits == SequenceStep::Logits::kAll) n_logit_rows_ += step.token_ids.size();
  }
  failures_.assign(steps.size(), OkStatus());
  sealing_.clear();
  for (const SequenceStep& step : steps) {
    if (step.cache->must_seal()) sealing_.push_back(step.cache);
  }
  return ReserveActivations(n_tokens_, n_logit_rows_);
}

Status Model::RunStep(std::span<const SequenceStep> steps, QkvObserver* observer,
                      std::vector<std::vector<float>>* streams) {
  KVL_RETURN_IF_ERROR(Begin(steps));
  if (n_tokens_ == 0) return OkStatus();
  EmbedTokens();
  if (streams != nullptr) streams->resize(layout_.n_layers);
  for (int l = 0; l < layout_.n_layers; ++l) {
    if (streams != nullptr) {
      const float* stream = hidden_.as<float>();
      (*streams)[l].insert((*streams)[l].end(), stream, stream + n_tokens_ * config().hidden_dim);
    }
    KVL_RETURN_IF_ERROR(RunLayer(l, steps, observer));
    if (AllFailed()) return OkStatus();
  }
  if (n_logit_rows_ > 0) ComputeLogits(steps);
  return OkStatus();
}

Status Model::Forward(std::span<const SequenceStep> steps, QkvObserver* observer,
                      std::vector<std::vector<float>>* streams) {
  KVL_RETURN_IF_ERROR(RunStep(steps, observer, streams));
  return FirstFailure();
}

Status Model::ForwardEach(std::span<const SequenceStep> steps, std::vector<Status>* failures) {
  KVL_RETURN_IF_ERROR(RunStep(steps, nullptr, nullptr));
  *failures = failures_;
  return OkStatus();
}

void Model::FailSequence(std::span<const SequenceStep> steps, const SequenceCache* cache,
                         Status status) {
  const auto step = std::ranges::find(steps, cache, &SequenceStep::cache);
  KVL_CHECK(step != steps.end() && !status.ok());
  failures_[step - steps.begin()].Update(status);  // the first error stays
  std::erase(sealing_, cache);
}

bool Model::AllFailed() const {
  return std::ranges::none_of(failures_, [](const Status& s) { return s.ok(); });
}

Status Model::FirstFailure() const {
  const auto failed = std::ranges::find_if(failures_, [](const Status& s) { return !s.ok(); });
  return failed == failures_.end() ? OkStatus() : *failed;
}

Status Model::ForwardFrom(int first_layer, std::span<const float> stream,
                          std::span<const SequenceStep> steps) {
  KVL_RETURN_IF_ERROR(Begin(steps));
  KVL_CHECK_EQ(std::ssize(stream), n_tokens_ * config().hidden_dim);
  std::copy(stream.begin(), stream.end(), hidden_.as<float>());
  for (int l = 0; l < first_layer; ++l) SkipLayer(l, steps);
  for (int l = first_layer; l < layout_.n_layers; ++l) {
    KVL_RETURN_IF_ERROR(RunLayer(l, steps, nullptr));
  }
  if (n_logit_rows_ > 0) ComputeLogits(steps);
  return FirstFailure();
}

void Model::SkipLayer(int layer_idx, std::span<const SequenceStep> steps) {
  for (const SequenceCache* cache : sealing_) {
    for (int g = 0; g < layout_.n_kv_heads; ++g) {
      const RunExtent run = cache->run_to_seal(layer_idx, g);
      for (int64_t b = run.first_block; b < run.first_block + run.n_blocks; ++b) {
        std::memset(cache->blocks(layer_idx, g)[b], 0,
                    BlockBytes(cache->layout().shape(layer_idx, g)));
      }
    }
  }
  SealStep(layer_idx, steps);
}

std::span<const float> Model::logits(int64_t row) const {
  KVL_CHECK_LT(row, n_logit_rows_);
  const int64_t n = config().vocab_size;
  return {logits_.as<float>() + row * n, static_cast<size_t>(n)};
}

void Model::EmbedTokens() {
  const ScopedTimer timer(&profile_.other);
  const int64_t hidden = config().hidden_dim;
  ForRowShares(n_tokens_, [&](Range tokens) {
    for (int64_t t = tokens.begin; t < tokens.end; ++t) {
      weights_->Embed(tokens_[t].token_id, tokens_[t].position, hidden_.as<float>() + t * hidden);
    }
  });
}

}  // namespace kvlathe
