#include "model/steps/evict.h"

#include <algorithm>
#include <span>

#include "base/clock.h"
#include "format/eviction_flags.h"
#include "model/steps/normalise.h"
#include "model/steps/project.h"

namespace kvlathe {

Status TakeQueryChannelStep::Run(ForwardState* state) {
  Activations& a = *state->activations;
  const LayerRows& rows = layer_.rows;
  a.decisions =
      state->backend->TakeChannel({.rows = a.qk.place(),
                                   .n_rows = a.n_tokens,
                                   .n_dims = rows.QkStride(),
                                   .channel = rows.head_dim - 1,
                                   .n_channels = rows.n_model_kv_heads(),
                                   .channels_apart = rows.queries_per_key() * rows.head_dim});
  return OkStatus();
}

std::vector<float> EvictStep::ProjectStream(ForwardState* state) const {
  Activations& a = *state->activations;
  const ModelConfig& c = *layer_.config;
  const LayerWeights& w = *layer_.weights;
  NormPlan norm = NormOf(c, w.dms_norm, a.hidden.place(), a.n_tokens, c.hidden_dim);
  norm.out_type = DType::kF32;
  norm.out = a.dms_normed.place();
  state->backend->Normalise({&norm, 1});
  state->backend->Project(ProductOf(w.dms, w.dms_bias, a.n_tokens, a.dms_normed.place(),
                                    DType::kF32, a.dms_logits.place()));
  return state->backend->TakeChannel({.rows = a.dms_logits.place(),
                                      .n_rows = a.n_tokens * layer_.rows.n_kv_heads,
                                      .n_dims = 1,
                                      .channel = 0});
}

std::vector<float> EvictStep::Decide(ForwardState* state) const {
  const ModelConfig& c = *layer_.config;
  std::vector<float> logits =
      c.decides_in_queries() ? state->activations->decisions : ProjectStream(state);
  const std::optional<double>& offset = layer_.layout->retention->sweep->offset;
  const float less = offset.has_value() ? static_cast<float>(*offset) : c.dms->offset;
  for (float& logit : logits) logit = logit * c.dms->scale - less;
  return logits;
}

void EvictStep::WriteFlags(const Place& place, int kv_head_idx, std::span<const float> decisions,
                           std::vector<std::byte>* flags) const {
  EvictionFlags of_head(*flags, MostUnsettled(*layer_.layout->retention));
  const int first = place.step.first_position();
  const int n_back = layer_.config->dms->decides_of_itself ? 0 : 1;
  for (int t = 0; t < place.step.n_new(); ++t) {
    const int position = first + t - n_back;  // of which this token decides
    if (position < layer_.layout->n_sink) continue;
    const int64_t row = place.first_row + t;
    of_head.Set(position, decisions[row * layer_.rows.n_kv_heads + kv_head_idx] > 0);
  }
}

void EvictStep::SweepSequence(SequenceCache* cache, ForwardState* state,
                              std::span<const std::vector<std::byte>> flags) {
  const RetentionPlan& plan = *cache->layout().retention;
  const PromptPlace place = {cache->layout().n_sink, cache->n_prompt()};
  const int64_t n_tokens = cache->n_tokens();
  const int64_t begin = FirstUnsettled(plan, place, n_tokens - 1);
  const int64_t end = FirstUnsettled(plan, place, n_tokens);
  const int n_kv_heads = layer_.rows.n_kv_heads;
  std::vector<std::vector<int>> dropped(n_kv_heads);
  heads_.clear();
  for (int g = 0; g < n_kv_heads; ++g) {
    const CacheHead head = cache->head(layer_.idx, g);
    // Rows move behind what was settled before, in the block where that ends.
    const int64_t first = head.n_entries() - (n_tokens - begin);
    const int64_t first_block = first / kBlockSize;
    std::vector<std::byte> bytes = flags[g];
    const EvictionFlags of_head(bytes, MostUnsettled(plan));
    for (int64_t p = begin; p < end; ++p) {
      if (!of_head.at(p)) continue;
      dropped[g].push_back(static_cast<int>(first + p - begin - first_block * kBlockSize));
    }
    if (dropped[g].empty()) continue;
    heads_.push_back({.shape = head.shape(),
                      .blocks = head.blocks().subspan(static_cast<size_t>(first_block)),
                      .n_entries = static_cast<int>(head.n_entries() - first_block * kBlockSize),
                      .dropped = dropped[g]});
  }
  if (!heads_.empty()) {
    state->backend->Prune({.device = &cache->device(),
                           .sequence = state->sequences->NumberOf(cache),
                           .heads = heads_,
                           .in_order = true});
  }
  for (int g = 0; g < n_kv_heads; ++g) {
    const int64_t n_kept =
        std::max(0, cache->head(layer_.idx, g).n_entries()) - std::ssize(dropped[g]);
    cache->SetMerged(layer_.idx, g, n_kept);
  }
}

Status EvictStep::Run(ForwardState* state) {
  const ScopedTimer timer(&state->profile->prune);
  const std::vector<float> decisions = Decide(state);
  const RetentionPlan& plan = *layer_.layout->retention;
  std::vector<std::vector<std::byte>> flags(layer_.rows.n_kv_heads);
  int64_t first_row = 0;
  for (size_t i = 0; i < state->steps().size(); ++i) {
    const SequenceStep& step = state->steps()[i];
    const Place place = {step, first_row};
    first_row += step.n_new();
    if (step.n_new() == 0) continue;
    SequenceCache* const cache = step.cache;
    for (int g = 0; g < layer_.rows.n_kv_heads; ++g) {
      const ObjectPlace kept = {cache->head(layer_.idx, g).flags()};
      flags[g].resize(static_cast<size_t>(EvictionFlagBytes(cache->layout())));
      cache->device().Download(kept, flags[g]);
      WriteFlags(place, g, decisions, &flags[g]);
      cache->device().Upload(kept, flags[g]);
    }
    const PromptPlace prompt = {layer_.layout->n_sink, cache->n_prompt()};
    const bool may_sweep = !state->sequences->has_failed(i) && !cache->is_on_trial();
    if (may_sweep && IsPrunePoint(plan, prompt, cache->n_tokens())) {
      SweepSequence(cache, state, flags);
    }
  }
  return OkStatus();
}

}  // namespace kvlathe
