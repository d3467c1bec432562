// Sealing in a layer: the runs that a step ended become packed blocks, each sequence's on its own
// where one of them fails.
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/random.h"
#include "model/model.h"

namespace kvlathe {
namespace {

// The oldest blocks of a run may have left the window before it ends. Nothing reads their codes any
// more, so the first block of the run that is still there stands in their place: scales and factors
// are then those of rows that are seen. `lists` keeps the new list of blocks. Where the whole run
// has left the window its blocks stay null.
void ReplaceUnseenBlocks(int64_t n_blocks, SealHead* head,
                         std::vector<std::vector<const std::byte*>>* lists) {
  if (n_blocks == 0 || head->blocks[0] != nullptr) return;
  std::vector<const std::byte*>& list = lists->emplace_back(head->blocks, head->blocks + n_blocks);
  const auto is_there = [](const std::byte* block) { return block != nullptr; };
  const auto first = std::ranges::find_if(list, is_there);
  if (first != list.end()) std::fill(list.begin(), first, *first);
  head->blocks = list.data();
}

}  // namespace

std::vector<OnlineSvdHead> Model::OnlineSvdHeads(int layer_idx,
                                                 std::span<SequenceCache* const> caches,
                                                 std::span<const SealJob> jobs) const {
  std::vector<OnlineSvdHead> heads;
  for (size_t i = 0; i < caches.size(); ++i) {
    for (int g = 0; g < layout_.n_kv_heads; ++g) {
      const SealHead& head = jobs[i].heads[g];
      const RunExtent run = caches[i]->run_to_seal(layer_idx, g);
      heads.push_back({.shape = PackedShapeOf(caches[i]->layout(), layer_idx, g, run),
                       .blocks = head.blocks,
                       .packed = head.packed,
                       .record = head.record});
      if (head.record == nullptr) {
        heads.back().rotations = caches[i]->runs(layer_idx, g).front().record;
      } else if (online_.has_value()) {
        heads.back().query_gram = caches[i]->query_gram(layer_idx, g);
        heads.back().output_gram = &online_->output_grams[layer_idx * layout_.n_kv_heads + g];
        heads.back().is_normalised = online_->is_normalised;
      }
    }
  }
  return heads;
}

// The runs of the layer of one cache, at most one for each of `heads`, which it fills.
void Model::AddSealJobs(int layer_idx, const SequenceCache& cache,
                        const SequenceCache::RunObjects& objects, const KeyRotation& rotation,
                        std::vector<SealHead>* heads, std::vector<SealJob>* jobs) const {
  const int n_heads_per_run = layout_.n_heads_per_run();
  for (int g = 0; g < layout_.n_kv_heads; ++g) {
    const BlockShape& shape = cache.layout().shape(layer_idx, g);
    heads->push_back(
        {.rank_k = shape.rank_k,
         .rank_v = shape.rank_v,
         .blocks = cache.blocks(layer_idx, g).data() + cache.run_to_seal(layer_idx, g).first_block,
         .packed = objects.packed[g].data(),
         .record = objects.records[g],
         .k_bits = shape.k_bits,
         .v_bits = shape.v_bits,
         .has_coded_rows = shape.has_coded_rows});
  }
  for (int g = 0; g < layout_.n_kv_heads; g += n_heads_per_run) {
    const RunExtent run = cache.run_to_seal(layer_idx, g);
    if (run.n_blocks == 0) continue;
    jobs->push_back({.heads = std::span(*heads).subspan(g, n_heads_per_run),
                     .first_head = g,
                     .layer_record = objects.layer_records[g],
                     .n_blocks = static_cast<int>(run.n_blocks),
                     .is_prompt = run.is_prompt,
                     .is_repaired = run.is_repaired,
                     .seed = MixBits(static_cast<uint64_t>(run.first_block)) + layer_idx,
                     .codebooks = CodebooksOf(layer_idx),
                     .rotation = rotation.From(run.first_block)});
  }
}

Status Model::SealTogether(int layer_idx, std::span<SequenceCache* const> caches,
                           std::span<const SequenceCache::RunObjects> objects) {
  std::vector<std::vector<SealHead>> heads(caches.size());
  std::vector<SealJob> jobs;
  std::vector<std::vector<const std::byte*>> block_lists;
  int64_t n_run_blocks = 0;  // to the end of the last run
  for (const SequenceCache* cache : caches) {
    for (int g = 0; g < layout_.n_kv_heads; g += layout_.n_heads_per_run()) {
      const RunExtent run = cache->run_to_seal(layer_idx, g);
      n_run_blocks = std::max(n_run_blocks, run.first_block + run.n_blocks);
    }
  }
  const KeyRotation rotation = RotationOf(layer_idx, n_run_blocks);
  for (size_t i = 0; i < caches.size(); ++i) {
    AddSealJobs(layer_idx, *caches[i], objects[i], rotation, &heads[i], &jobs);
    for (int g = 0; g < layout_.n_kv_heads; ++g) {
      ReplaceUnseenBlocks(caches[i]->run_to_seal(layer_idx, g).n_blocks, &heads[i][g],
                          &block_lists);
    }
  }
  std::erase_if(jobs, [](const SealJob& job) {
    return job.heads.front().blocks[job.n_blocks - 1] == nullptr;  // nothing is left to seal
  });
  const Status sealed = layout_.seal->format.is_rotated
                            ? SealByOnlineSvd(OnlineSvdHeads(layer_idx, caches, jobs),
                                              {elementwise_, &linear_, pool_})
                            : sealer_->Run(jobs);
  if (sealed.ok()) return sealed;
  return Error(sealed.code(), "layer {}: {}", layer_idx, MessageOf(sealed));
}

std::vector<Status> Model::SealEach(int layer_idx, std::span<SequenceCache* const> caches) {
  std::vector<Status> statuses(caches.size());
  if (caches.empty()) return statuses;
  const ScopedTimer timer(&profile_.seal);
  std::vector<size_t> indices;  // in `caches`, of those that got objects
  std::vector<SequenceCache*> sealed;
  std::vector<SequenceCache::RunObjects> objects;
  for (size_t i = 0; i < caches.size(); ++i) {
    StatusOr<SequenceCache::RunObjects> taken = caches[i]->TakeRunObjects(layer_idx);
    statuses[i] = taken.status();
    if (!taken.ok()) continue;
    indices.push_back(i);
    sealed.push_back(caches[i]);
    objects.push_back(*std::move(taken));
  }
  const Status together = SealTogether(layer_idx, sealed, objects);
  if (!together.ok()) {
    // What was written is undefined, and plain rows are still there: each again alone, which tells
    // whose rows they are.
    for (size_t i = indices.size(); i-- > 0;) {
      Status& status = statuses[indices[i]];
      status = indices.size() == 1 ? together
                                   : SealTogether(layer_idx, {&sealed[i], 1}, {&objects[i], 1});
      if (status.ok()) continue;
      sealed[i]->DropRunObjects(objects[i]);
      sealed.erase(sealed.begin() + static_cast<int64_t>(i));
      objects.erase(objects.begin() + static_cast<int64_t>(i));
    }
  }
  if (!opened_.empty()) MeasureReencodings(layer_idx, sealed, objects);
  for (size_t i = 0; i < sealed.size(); ++i) sealed[i]->PlaceRun(layer_idx, objects[i]);
  return statuses;
}

void Model::SealStep(int layer_idx, std::span<const SequenceStep> steps) {
  const std::vector<SequenceCache*> caches = sealing_;  // which loses those that fail
  const std::vector<Status> statuses = SealEach(layer_idx, caches);
  for (size_t i = 0; i < caches.size(); ++i) {
    if (!statuses[i].ok()) FailSequence(steps, caches[i], statuses[i]);
  }
}

Status Model::SealRuns(int layer_idx, std::span<SequenceCache* const> caches) {
  for (const Status& status : SealEach(layer_idx, caches)) KVL_RETURN_IF_ERROR(status);
  return OkStatus();
}

}  // namespace kvlathe
