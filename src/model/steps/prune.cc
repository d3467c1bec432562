#include "model/steps/prune.h"

#include "base/clock.h"
#include "model/steps/sealed_head.h"

namespace kvlathe {

Status PruneStep::Run(ForwardState* state) {
  const ScopedTimer timer(&state->profile->prune);
  state->opened.clear();
  for (size_t i = 0; i < state->steps().size(); ++i) {
    SequenceCache* const cache = state->steps()[i].cache;
    if (!cache->must_prune() || state->sequences->has_failed(i)) continue;
    const Status pruned = PruneSequence(cache, state);
    if (!pruned.ok()) state->sequences->Fail(cache, pruned);
  }
  return OkStatus();
}

Status PruneStep::PruneSequence(SequenceCache* cache, ForwardState* state) const {
  const bool reopens = cache->must_reopen(layer_.idx);
  const int n_kv_heads = layer_.rows.n_kv_heads;
  std::vector<SealedHead> packed;
  for (int g = 0; reopens && g < n_kv_heads; ++g) {
    packed.push_back(
        SealedHeadOf(layer_, cache->layout(), g, cache->runs(layer_.idx, g), /*rotation=*/{}));
  }
  KVL_ASSIGN_OR_RETURN(const std::vector<int> n_sealed,
                       state->backend->Prune(cache->layout(), layer_.idx, packed, cache));
  if (!reopens) return OkStatus();
  cache->mutable_reencoding()->n_times += layer_.idx == 0 ? 1 : 0;
  for (int g = 0; g < n_kv_heads; ++g) state->opened.push_back({cache, g, n_sealed[g]});
  return OkStatus();
}

Status CutKeysStep::Run(ForwardState* state) {
  const ScopedTimer timer(&state->profile->prune);
  std::vector<SequenceCache*> caches;
  items_.clear();
  for (size_t i = 0; i < state->steps().size(); ++i) {
    SequenceCache* const cache = state->steps()[i].cache;
    if (!cache->must_cut_keys() || state->sequences->has_failed(i)) continue;
    caches.push_back(cache);
    for (int g = 0; g < layer_.rows.n_kv_heads; ++g) {
      // Folded keys are in the basis: the first of their columns are those that stay.
      items_.push_back({.device = &cache->device(),
                        .whole = cache->shape(layer_.idx, g),
                        .cut = cache->layout().shape(layer_.idx, g),
                        .blocks = cache->blocks(layer_.idx, g),
                        .n_entries = cache->n_entries(layer_.idx, g),
                        .map = layer_.rows.maps_keys ? &layer_.basis.KeyMap(g) : nullptr});
    }
  }
  if (caches.empty()) return OkStatus();
  state->backend->CutKeys(items_);
  for (SequenceCache* cache : caches) {
    const Status shrunk = cache->ShrinkBlocks(layer_.idx);
    if (!shrunk.ok()) state->sequences->Fail(cache, shrunk);
  }
  return OkStatus();
}

}  // namespace kvlathe
