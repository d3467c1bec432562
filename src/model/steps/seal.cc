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

void SealStep::AddRuns(SequenceCache* cache, const RunObjects& objects,
                       const KeyRotationId& rotation, Heads* heads,
                       std::vector<SealRunPlan>* runs) const {
  const int n_kv_heads = layer_.rows.n_kv_heads, n_heads_per_run = layer_.layout->n_heads_per_run();
  heads->reserve(size_t{kMaxRunsAtOnce} * n_kv_heads);  // runs point to them
  for (int g = 0; g < n_kv_heads; g += n_heads_per_run) {
    const RunExtent all = cache->head(layer_.idx, g).run_to_seal();
    for (const RunExtent& run : RunsByClass(all)) {
      const size_t first = heads->size(), in_packed = run.first_block - all.first_block;
      for (int h = g; h < g + n_heads_per_run; ++h) {
        const std::span<const ObjectId> packed = objects.packed[h];
        heads->push_back(
            {.shape = ShapeOfClass(cache->layout().shape(layer_.idx, h), run.entry_class),
             .blocks = cache->head(layer_.idx, h).blocks().subspan(run.first_block, run.n_blocks),
             .packed = packed.subspan(in_packed, run.n_blocks),
             .record = objects.records[h]});
      }
      if (run.n_blocks == 0) continue;
      runs->push_back({.device = &cache->device(),
                       .heads = std::span(*heads).subspan(first, n_heads_per_run),
                       .first_head = g,
                       .layer_record = objects.layer_records[g],
                       .n_blocks = static_cast<int>(run.n_blocks),
                       .is_prompt = run.is_prompt,
                       .is_repaired = run.is_repaired,
                       .seed = MixBits(static_cast<uint64_t>(run.first_block)) + layer_.idx,
                       .codebooks = layer_.codebooks,
                       .rotation = rotation.From(run.first_block)});
    }
  }
}

std::vector<RotatedHeadPlan> SealStep::RotatedHeads(std::span<SequenceCache* const> caches,
                                                    std::span<const Heads> heads) const {
  const int n_kv_heads = layer_.rows.n_kv_heads;
  std::vector<RotatedHeadPlan> plans;
  for (size_t i = 0; i < caches.size(); ++i) {
    for (int g = 0; g < n_kv_heads; ++g) {
      const RunExtent run = caches[i]->head(layer_.idx, g).run_to_seal();
      RotatedHeadPlan& plan = plans.emplace_back(
          RotatedHeadPlan{.device = &caches[i]->device(),
                          .packed_shape = PackedShapeOf(caches[i]->layout(), layer_.idx, g, run),
                          .head = heads[i][g]});
      if (plan.head.record.is_null()) {
        plan.rotations = caches[i]->head(layer_.idx, g).runs().front().record;
      } else if (layer_.online != nullptr) {
        plan.query_gram = caches[i]->head(layer_.idx, g).query_gram();
        plan.output_gram = layer_.output_grams[g].place();
        plan.is_normalised = layer_.online->is_normalised;
      }
    }
  }
  return plans;
}

Status SealStep::SealTogether(std::span<SequenceCache* const> caches,
                              std::span<const RunObjects> objects, ForwardState* state) const {
  const SealPlan& plan = *layer_.layout->seal;
  std::vector<Heads> heads(caches.size());
  std::vector<SealRunPlan> runs;
  int64_t n_run_blocks = 0;  // to the end of the last run
  for (const SequenceCache* cache : caches) {
    for (int g = 0; g < layer_.rows.n_kv_heads; g += layer_.layout->n_heads_per_run()) {
      const RunExtent run = cache->head(layer_.idx, g).run_to_seal();
      n_run_blocks = std::max(n_run_blocks, run.first_block + run.n_blocks);
    }
  }
  KVL_ASSIGN_OR_RETURN(const KeyRotationId rotation,
                       layer_.rotations->BlocksOf(layer_.idx, n_run_blocks));
  for (size_t i = 0; i < caches.size(); ++i) {
    AddRuns(caches[i], objects[i], rotation, &heads[i], &runs);
  }
  std::erase_if(runs, [](const SealRunPlan& run) {
    return run.heads.front().blocks.back().is_null();  // nothing is left to seal
  });
  const Status sealed =
      plan.format.Is<RotatedCodec>()
          ? state->backend->SealRotated(RotatedHeads(caches, heads))
          : state->backend->Seal({plan.format, layer_.row_type, plan.power_loops, runs});
  if (sealed.ok()) return sealed;
  return Error(sealed.code(), "layer {}: {}", layer_.idx, MessageOf(sealed));
}

void SealStep::MeasureReencodings(std::span<SequenceCache* const> caches,
                                  std::span<const RunObjects> packed, ForwardState* state) const {
  std::vector<ReencodedRun> runs;
  std::vector<SealedRun> sealed;
  sealed.reserve(state->opened.size());  // `runs` point to them
  std::vector<SequenceCache*> measured;
  for (const auto& [cache, g, n_rows] : state->opened) {
    const auto found = std::ranges::find(caches, cache);
    if (found == caches.end()) continue;  // what stays does not fill a block
    const RunObjects& objects = packed[found - caches.begin()];
    const auto n_blocks = static_cast<int>(objects.packed[g].size());
    sealed.push_back({.n_blocks = n_blocks,
                      .record = objects.records[g],
                      .layer_record = objects.layer_records[g]});
    const CacheLayout& layout = cache->layout();
    runs.push_back({.device = &cache->device(),
                    .shape = layout.shape(layer_.idx, g),
                    .sealed = SealedHeadOf(layer_, layout, g, {&sealed.back(), 1}, {}),
                    .blocks = objects.packed[g],
                    .plain = cache->head(layer_.idx, g).blocks(),
                    .n_rows = std::min(n_rows, n_blocks * kBlockSize)});
    measured.push_back(cache);
  }
  std::vector<Reencoding> errors(runs.size());
  state->backend->MeasureReencodings(runs, errors);
  for (size_t i = 0; i < errors.size(); ++i) measured[i]->mutable_reencoding()->Add(errors[i]);
}

std::vector<Status> SealStep::SealEach(std::span<SequenceCache* const> caches,
                                       ForwardState* state) const {
  std::vector<Status> statuses(caches.size());
  if (caches.empty()) return statuses;
  const ScopedTimer timer(&state->profile->seal);
  std::vector<size_t> indices;  // in `caches`, of those that got objects
  std::vector<SequenceCache*> sealed;
  std::vector<RunObjects> objects;
  for (size_t i = 0; i < caches.size(); ++i) {
    StatusOr<RunObjects> taken = caches[i]->TakeRunObjects(layer_.idx);
    statuses[i] = taken.status();
    if (!taken.ok()) continue;
    indices.push_back(i);
    sealed.push_back(caches[i]);
    objects.push_back(*std::move(taken));
  }
  const Status together = SealTogether(sealed, objects, state);
  if (!together.ok()) {
    // What was written is undefined, and plain rows are still there: each again alone, which tells
    // whose rows they are.
    for (size_t i = indices.size(); i-- > 0;) {
      Status& status = statuses[indices[i]];
      status =
          indices.size() == 1 ? together : SealTogether({&sealed[i], 1}, {&objects[i], 1}, state);
      if (status.ok()) continue;
      sealed[i]->DropRunObjects(objects[i]);
      sealed.erase(sealed.begin() + static_cast<int64_t>(i));
      objects.erase(objects.begin() + static_cast<int64_t>(i));
    }
  }
  if (!state->opened.empty()) MeasureReencodings(sealed, objects, state);
  for (size_t i = 0; i < sealed.size(); ++i) sealed[i]->PlaceRun(layer_.idx, objects[i]);
  return statuses;
}

Status SealStep::Run(ForwardState* state) {
  const std::vector<SequenceCache*> caches = state->sequences->sealing();  // loses those that fail
  const std::vector<Status> statuses = SealEach(caches, state);
  for (size_t i = 0; i < caches.size(); ++i) {
    if (!statuses[i].ok()) state->sequences->Fail(caches[i], statuses[i]);
  }
  return OkStatus();
}

}  // namespace kvlathe
