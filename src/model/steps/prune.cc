#include "model/steps/prune.h"

#include "base/clock.h"
#include "format/entry_table.h"
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

namespace {

// Of the entries of each head that are sealed where the prompt ends, which it just has; none where
// there are no classes.
ClassSizes ClassesToSeal(const SequenceCache& cache, int layer_idx) {
  ClassSizes sizes;
  if (!cache.layout().HasClasses() || !cache.must_seal()) return sizes;
  for (const RunExtent& run : RunsByClass(cache.head(layer_idx, 0).run_to_seal())) {
    int64_t& size = run.entry_class == EntryClass::kMost     ? sizes.most
                    : run.entry_class == EntryClass::kMiddle ? sizes.middle
                                                             : sizes.least;
    size += run.n_blocks * kBlockSize;
  }
  return sizes;
}

}  // namespace

Status PruneStep::PruneSequence(SequenceCache* cache, ForwardState* state) {
  const bool reopens = cache->must_reopen(layer_.idx);
  const int n_kv_heads = layer_.rows.n_kv_heads;
  const CacheLayout& layout = cache->layout();
  std::vector<std::vector<ObjectId>> opened;
  if (reopens) {
    KVL_ASSIGN_OR_RETURN(opened, cache->TakeKeptBlocks(layer_.idx));
  }
  heads_.clear();
  for (int g = 0; g < n_kv_heads; ++g) {
    const CacheHead head = cache->head(layer_.idx, g);
    heads_.push_back({.shape = head.shape(),
                      .blocks = head.blocks(),
                      .entries = head.entries(),
                      .n_entries = head.n_entries()});
    if (layout.DropsByHead()) {
      heads_.back().n_kept = cache->n_to_keep(static_cast<size_t>(layer_.idx) * n_kv_heads + g);
    }
    if (!reopens) continue;
    heads_.back().packed = SealedHeadOf(layer_, layout, g, head.runs(), /*rotation=*/{});
    heads_.back().opened = opened[g];
  }
  // While decoding, a gap takes the last row; in a prompt, and in what is to be sealed, the order
  // of positions stays.
  const ClassSizes classes = ClassesToSeal(*cache, layer_.idx);
  const bool in_order = layout.seal.has_value() || cache->n_tokens() <= cache->n_prompt();
  state->backend->Prune({.device = &cache->device(),
                         .sequence = state->sequences->NumberOf(cache),
                         .heads = heads_,
                         .pool_kernel = layout.retention->pool_kernel,
                         .averages_votes = layout.retention->averages_votes,
                         .shares_heads = layout.retention->shares_heads,
                         .restarts_votes = layout.retention->votes == RetentionPlan::Votes::kLast,
                         .kept = cache->kept(),
                         .in_order = in_order,
                         .classes = classes,
                         .has_coded_rows = layout.CodesOpenRows(),
                         .keeps_sorted_positions = TurnWhenRead(layout.keys),
                         .has_wide_positions = SortedPositions::IsWide(cache->n_prompt())});
  if (reopens) cache->PlaceKeptBlocks(layer_.idx, opened);
  cache->DropPruned(layer_.idx);
  if (!reopens) return OkStatus();
  cache->mutable_reencoding()->n_times += layer_.idx == 0 ? 1 : 0;
  for (int g = 0; g < n_kv_heads; ++g) state->opened.push_back({cache, g});
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
      const CacheHead head = cache->head(layer_.idx, g);
      // Folded keys are in the basis: the first of their columns are those that stay.
      items_.push_back({.device = &cache->device(),
                        .whole = head.shape(),
                        .cut = cache->layout().shape(layer_.idx, g),
                        .blocks = head.blocks(),
                        .n_entries = head.n_entries(),
                        .map = layer_.rows.maps_keys() ? layer_.basis.KeyMap(g).id() : WeightId()});
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
