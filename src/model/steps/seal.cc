#include "model/steps/seal.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/random.h"
#include "model/steps/sealed_head.h"

namespace kvlathe {
namespace {

constexpr int kMaxRunsAtOnce = 3;  // of a head: one for each class of entries

}  // namespace

void SealStep::AddRuns(const SealedCache& sealed, const KeyRotationId& rotation, Heads* heads,
                       std::vector<SealRunPlan>* runs) const {
  const SequenceCache* const cache = sealed.cache;
  const RunObjects& objects = sealed.objects;
  const int n_kv_heads = layer_.rows.n_kv_heads, n_heads_per_run = layer_.layout->n_heads_per_run();
  heads->reserve(size_t{kMaxRunsAtOnce} * n_kv_heads);  // runs point to them
  for (int g = 0; g < n_kv_heads; g += n_heads_per_run) {
    const RunExtent all = cache->head(layer_.idx, g).run_to_seal();
    for (const RunExtent& run : RunsByClass(all)) {
      const size_t first = heads->size(), in_packed = run.first_block - all.first_block;
      for (int h = g; h < g + n_heads_per_run; ++h) {
        const std::span<const ObjectId> packed = objects.packed[h];
        heads->push_back(
            {.shape = cache->layout().shape(layer_.idx, h),
             .storage = cache->layout().storage(layer_.idx, h),
             .blocks = cache->head(layer_.idx, h).blocks().subspan(run.first_block, run.n_blocks),
             .packed = packed.subspan(in_packed, run.n_blocks),
             .record = objects.records[h]});
      }
      if (run.n_blocks == 0) continue;
      runs->push_back({.device = &cache->device(),
                       .sequence = sealed.sequence,
                       .heads = std::span(*heads).subspan(first, n_heads_per_run),
                       .first_head = layer_.first_kv_head + g,
                       .layer_record = objects.layer_records[g],
                       .n_blocks = static_cast<int>(run.n_blocks),
                       .is_prompt = run.is_prompt,
                       .is_repaired = run.is_repaired,
                       .entry_class = run.entry_class,
                       .seed = MixBits(static_cast<uint64_t>(run.first_block)) + layer_.whole_idx,
                       .codebooks = layer_.codebooks,
                       .rotation = rotation.From(run.first_block)});
    }
  }
}

std::vector<RotatedHeadPlan> SealStep::RotatedHeads(std::span<const SealedCache> sealed,
                                                    std::span<const Heads> heads) const {
  const int n_kv_heads = layer_.rows.n_kv_heads;
  std::vector<RotatedHeadPlan> plans;
  for (size_t i = 0; i < sealed.size(); ++i) {
    const SequenceCache& cache = *sealed[i].cache;
    for (int g = 0; g < n_kv_heads; ++g) {
      const RunExtent run = cache.head(layer_.idx, g).run_to_seal();
      RotatedHeadPlan& plan = plans.emplace_back(
          RotatedHeadPlan{.device = &cache.device(),
                          .sequence = sealed[i].sequence,
                          .packed_shape = PackedShapeOf(cache.layout(), layer_.idx, g, run),
                          .head = heads[i][g]});
      if (plan.head.record.is_null()) {
        plan.rotations = cache.head(layer_.idx, g).runs().front().record;
      } else if (layer_.online != nullptr) {
        plan.query_gram = cache.head(layer_.idx, g).query_gram();
        if (!layer_.output_grams.empty()) plan.output_gram = layer_.output_grams[g].place();
        plan.is_normalised = layer_.online->is_normalised;
      }
    }
  }
  return plans;
}

Status SealStep::SealAll(std::span<const SealedCache> sealed, ForwardState* state) const {
  const SealPlan& plan = *layer_.layout->seal;
  std::vector<Heads> heads(sealed.size());
  std::vector<SealRunPlan> runs;
  int64_t n_run_blocks = 0;  // to the end of the last run
  for (const SealedCache& of : sealed) {
    for (int g = 0; g < layer_.rows.n_kv_heads; g += layer_.layout->n_heads_per_run()) {
      const RunExtent run = of.cache->head(layer_.idx, g).run_to_seal();
      n_run_blocks = std::max(n_run_blocks, run.first_block + run.n_blocks);
    }
  }
  KVL_ASSIGN_OR_RETURN(const KeyRotationId rotation,
                       layer_.rotations->BlocksOf(layer_.idx, n_run_blocks));
  for (size_t i = 0; i < sealed.size(); ++i) AddRuns(sealed[i], rotation, &heads[i], &runs);
  std::erase_if(runs, [](const SealRunPlan& run) {
    return run.heads.front().blocks.back().is_null();  // nothing is left to seal
  });
  if (FactsOf(plan.format.codec).brings_bases) {
    state->backend->SealRotated({layer_.idx, RotatedHeads(sealed, heads)});
  } else {
    state->backend->Seal({layer_.idx, plan.format, layer_.row_type, plan.power_loops, runs});
  }
  return OkStatus();
}

void SealStep::MeasureReencodings(std::span<const SealedCache> sealed, ForwardState* state) const {
  std::vector<ReencodedRun> runs;
  std::vector<SealedRun> as_runs;
  as_runs.reserve(state->opened.size());  // `runs` point to them
  for (const auto& [cache, g] : state->opened) {
    const auto found = std::ranges::find(sealed, cache, &SealedCache::cache);
    if (found == sealed.end()) continue;  // what stays does not fill a block
    const RunObjects& objects = found->objects;
    const auto n_blocks = static_cast<int>(objects.packed[g].size());
    as_runs.push_back({.n_blocks = n_blocks,
                       .record = objects.records[g],
                       .layer_record = objects.layer_records[g]});
    const CacheLayout& layout = cache->layout();
    runs.push_back({.device = &cache->device(),
                    .sequence = found->sequence,
                    .kv_head_idx = g,
                    .shape = layout.shape(layer_.idx, g),
                    .sealed = SealedHeadOf(layer_, layout, g, {&as_runs.back(), 1}, {}),
                    .blocks = objects.packed[g],
                    .plain = cache->head(layer_.idx, g).blocks(),
                    .max_rows = n_blocks * kBlockSize});
  }
  state->backend->MeasureReencodings(runs);
}

StatusOr<std::vector<Status>> SealStep::SealEach(std::span<SequenceCache* const> caches,
                                                 std::span<const int> sequences,
                                                 ForwardState* state) const {
  std::vector<Status> statuses(caches.size());
  if (caches.empty()) return statuses;
  const ScopedTimer timer(&state->profile->seal);
  std::vector<SealedCache> sealed;  // those that got objects
  for (size_t i = 0; i < caches.size(); ++i) {
    StatusOr<RunObjects> taken = caches[i]->TakeRunObjects(layer_.idx);
    statuses[i] = taken.status();
    if (taken.ok()) sealed.push_back({caches[i], sequences[i], *std::move(taken)});
  }
  KVL_RETURN_IF_ERROR(SealAll(sealed, state));
  if (!state->opened.empty()) MeasureReencodings(sealed, state);
  // Plain blocks go back to the pool: what reads them has been asked for before what will write
  // them.
  for (const SealedCache& of : sealed) of.cache->PlaceRun(layer_.idx, of.objects);
  return statuses;
}

Status SealStep::Run(ForwardState* state) {
  const std::vector<SequenceCache*> caches = state->sequences->sealing();  // loses those that fail
  std::vector<int> sequences;
  for (const SequenceCache* cache : caches) {
    sequences.push_back(state->sequences->NumberOf(cache));
  }
  KVL_ASSIGN_OR_RETURN(const std::vector<Status> statuses, SealEach(caches, sequences, state));
  for (size_t i = 0; i < caches.size(); ++i) {
    if (!statuses[i].ok()) state->sequences->Fail(caches[i], statuses[i]);
  }
  return OkStatus();
}

}  // namespace kvlathe
