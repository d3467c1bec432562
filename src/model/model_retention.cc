// What retention adds to a layer: votes and prunes; and where positions become one entry of the
// cache, who joins, with what weight, and the rows that the cache and attention see of an entry
// while it grows (docs/methods/dmc.md).
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "kv/retention/cut_keys.h"
#include "kv/retention/merge.h"
#include "kv/retention/prune.h"
#include "kv/retention/reopen.h"
#include "model/model.h"

namespace kvlathe {

bool Model::SplitsSharedLatents() const {
  return heads_per_latent_ > 1 && layout_.DropsEntries() && layout_.retention->HasVotes() &&
         !layout_.retention->shares_heads;
}

// Says which rows of the job vote for entries, and how.
void Model::ScoreEntries(int layer_idx, int kv_head_idx, const SequenceStep& step, HeadJob* job) {
  const RetentionPlan& plan = *layout_.retention;
  const SequenceCache& cache = *step.cache;
  const int n_new = job->n_tokens, first = cache.n_tokens() - n_new;
  switch (plan.votes) {
    case RetentionPlan::Votes::kNone:
      return;
    case RetentionPlan::Votes::kAll:
      job->first_scored = 0;
      break;
    case RetentionPlan::Votes::kLast:
      job->first_scored = cache.must_prune() ? n_new - 1 : n_new;
      break;
    case RetentionPlan::Votes::kPromptTail:
      job->first_scored = static_cast<int>(
          first >= cache.n_prompt()
              ? n_new
              : std::clamp<int64_t>(cache.n_prompt() - plan.n_recent - first, 0, n_new));
      break;
  }
  job->scored = cache.entries(layer_idx, kv_head_idx);
  if (!plan.is_noisy) return;
  const PromptPlace place = {layout_.n_sink, cache.n_prompt()};
  const auto temperature = [&](int position) {
    return static_cast<float>(TemperatureAt(plan, place, position, cache.n_generated()));
  };
  noises_.push_back({.key = MixBits(static_cast<uint64_t>(layer_idx)),
                     .first_head = kv_head_idx * job->gqa_group,
                     .first_position = first,
                     .temperature = temperature(first),
                     .temperature_step = temperature(first + 1) - temperature(first),
                     .max_temperature = static_cast<float>(std::max(plan.tau_init, plan.tau_end))});
  job->noise = &noises_.back();
}

void Model::Prune(int layer_idx, std::span<const SequenceStep> steps) {
  const ScopedTimer timer(&profile_.prune);
  opened_.clear();
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!steps[i].cache->must_prune() || !failures_[i].ok()) continue;
    Status pruned = PruneSequence(layer_idx, steps[i].cache);
    if (!pruned.ok()) FailSequence(steps, steps[i].cache, std::move(pruned));
  }
}

Status Model::PruneSequence(int layer_idx, SequenceCache* cache) {
  const bool reopens = cache->must_reopen(layer_idx);
  std::vector<PackedHead> packed;
  for (int g = 0; reopens && g < layout_.n_kv_heads; ++g) {
    packed.push_back(PackedHeadOf(cache->layout(), layer_idx, g, cache->runs(layer_idx, g), {}));
  }
  KVL_ASSIGN_OR_RETURN(const std::vector<int> n_sealed,
                       PruneLayer(cache->layout(), layer_idx, packed, pool_, cache));
  if (!reopens) return OkStatus();
  cache->mutable_reencoding()->n_times += layer_idx == 0 ? 1 : 0;
  for (int g = 0; g < layout_.n_kv_heads; ++g) opened_.push_back({cache, g, n_sealed[g]});
  return OkStatus();
}

void Model::CutKeys(int layer_idx, std::span<const SequenceStep> steps) {
  const ScopedTimer timer(&profile_.prune);
  std::vector<SequenceCache*> caches;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].cache->must_cut_keys() && failures_[i].ok()) caches.push_back(steps[i].cache);
  }
  if (caches.empty()) return;
  const int n_kv_heads = layout_.n_kv_heads;
  pool_->Run([&](int worker_id) {
    const Range items = ShareOf(std::ssize(caches) * n_kv_heads, 1, worker_id, pool_->n_workers());
    for (int64_t i = items.begin; i < items.end; ++i) {
      CutKeysOfHead(layer_idx, static_cast<int>(i % n_kv_heads), *caches[i / n_kv_heads],
                    worker_id);
    }
  });
  for (SequenceCache* cache : caches) {
    Status shrunk = cache->ShrinkBlocks(layer_idx);
    if (!shrunk.ok()) FailSequence(steps, cache, std::move(shrunk));
  }
}

void Model::CutKeysOfHead(int layer_idx, int kv_head_idx, const SequenceCache& cache,
                          int worker_id) {
  const BlockShape whole = cache.shape(layer_idx, kv_head_idx);
  const BlockShape& cut = cache.layout().shape(layer_idx, kv_head_idx);
  const int64_t element = SizeOf(row_type_), width = KeyWidth(layer_idx, kv_head_idx);
  std::vector<std::byte> rows(kBlockSize * whole.rank_k * element);
  std::vector<std::byte> mapped(kBlockSize * width * element);
  LinearParams params;
  params.x = rows.data();
  params.x_stride = whole.rank_k;
  params.y = mapped.data();
  params.y_stride = width;
  params.y_type = row_type_;
  int64_t n_left = cache.n_entries(layer_idx, kv_head_idx);
  for (std::byte* const block : cache.blocks(layer_idx, kv_head_idx)) {
    // Folded keys are in the basis: the first of their columns are those that stay.
    if (!bases_.empty() && n_left > 0) {
      params.n_rows = std::min<int64_t>(n_left, kBlockSize);
      ReadKeys(whole, static_cast<int>(params.n_rows), block, rows.data());
      params.w = &KeyMap(layer_idx, kv_head_idx);
      linear_.RunOnWorker(params, worker_id);
      WriteKeys(cut, {mapped.data(), width, static_cast<int>(params.n_rows)}, block);
    }
    MoveValuesTo(cut, whole, block);
    n_left -= kBlockSize;
  }
}

void Model::MeasureReencodings(int layer_idx, std::span<SequenceCache* const> caches,
                               std::span<const SequenceCache::RunObjects> packed) {
  std::vector<Reencoding> sums(opened_.size());
  pool_->Run([&](int worker_id) {
    const Range share = ShareOf(std::ssize(opened_), 1, worker_id, pool_->n_workers());
    for (int64_t i = share.begin; i < share.end; ++i) {
      const auto& [cache, g, n_rows] = opened_[i];
      const auto found = std::ranges::find(caches, cache);
      if (found == caches.end()) continue;  // what stays does not fill a block
      const SequenceCache::RunObjects& objects = packed[found - caches.begin()];
      const auto n_blocks = static_cast<int>(objects.packed[g].size());
      const PackedRun run = {.n_blocks = n_blocks,
                             .record = objects.records[g],
                             .layer_record = objects.layer_records[g]};
      sums[i] =
          MeasureReencoding({.shape = cache->layout().shape(layer_idx, g),
                             .packed = PackedHeadOf(cache->layout(), layer_idx, g, {&run, 1}, {}),
                             .blocks = objects.packed[g]},
                            cache->blocks(layer_idx, g), std::min(n_rows, n_blocks * kBlockSize));
    }
  });
  for (size_t i = 0; i < opened_.size(); ++i) opened_[i].cache->mutable_reencoding()->Add(sums[i]);
}

void Model::TakeDecisions() {
  const ModelConfig& c = config();
  const int64_t n_rows = n_tokens_ * (c.n_heads + c.n_kv_heads);
  const int channel = c.dmc->is_last ? c.head_dim - 1 : 0;
  decisions_.resize(n_rows);
  for (int64_t i = 0; i < n_rows; ++i) {
    decisions_[i] = std::exchange(qk_.as<float>()[i * c.head_dim + channel], 0.0f);
  }
}

void Model::MergeRows(int layer_idx, std::span<const SequenceStep> steps) {
  const ScopedTimer timer(&profile_.prune);
  const int n_kv_heads = layout_.n_kv_heads;
  n_closed_.resize(n_kv_heads * n_tokens_);
  const int64_t n_items = std::ssize(steps) * n_kv_heads;
  pool_->Run([&](int worker_id) {
    const Range items = ShareOf(n_items, 1, worker_id, pool_->n_workers());
    int64_t first_row = 0;
    for (int64_t item = 0; item < items.end; ++item) {
      const SequenceStep& step = steps[item / n_kv_heads];
      const int g = static_cast<int>(item % n_kv_heads);
      if (item >= items.begin) MergeHead(layer_idx, g, step, first_row);
      if (g + 1 == n_kv_heads) first_row += std::ssize(step.token_ids);
    }
  });
  int64_t end = 0;
  for (const SequenceStep& step : steps) {
    if (step.token_ids.empty()) continue;
    end += std::ssize(step.token_ids);
    for (int g = 0; g < n_kv_heads; ++g) {
      step.cache->SetMerged(layer_idx, g, n_closed_[g * n_tokens_ + end - 1] + 1);
    }
  }
}

void Model::MergeHead(int layer_idx, int kv_head_idx, const SequenceStep& step, int64_t first_row) {
  const int d = layout_.head_dim, n_qk = config().n_heads + config().n_kv_heads;
  const int rank_v = step.cache->layout().shape(layer_idx, kv_head_idx).rank_v;
  const LayerOffsets& offsets = offsets_[layer_idx];
  const int n_new = static_cast<int>(step.token_ids.size());
  OpenEntry open(step.cache->open_entry(layer_idx, kv_head_idx), *layout_.retention->merge, d,
                 rank_v);
  int n_entries = std::max(0, step.cache->n_entries(layer_idx, kv_head_idx) - n_new);
  std::vector<float> value(rank_v);
  for (int64_t row = first_row; row < first_row + n_new; ++row) {
    int& n_closed = n_closed_[kv_head_idx * n_tokens_ + row];
    n_closed = -1;
    if (tokens_[row].position < layout_.n_sink) continue;
    const bool joins = open.n_positions() > 0 && JoinsEntry(kv_head_idx, row);
    if (!joins) {
      open.Close();
      ++n_entries;
    }
    n_closed = n_entries - 1;
    float* key = qk_.as<float>() + (row * n_qk + config().n_heads + kv_head_idx) * d;
    std::byte* stored =
        v_.data() + (row * offsets.rank_v.back() + offsets.rank_v[kv_head_idx]) * SizeOf(row_type_);
    ConvertToFloat(row_type_, stored, rank_v, value.data());
    open.Add(WeightInEntry(kv_head_idx, row), key, value.data());
    if (!joins) continue;  // the mean of one row is the row
    open.Mean(key, value.data());
    elementwise_->convert(value.data(), rank_v, row_type_, stored);
  }
}

bool Model::JoinsEntry(int kv_head_idx, int64_t row) const {
  const int every = layout_.retention->merge->every;
  if (every > 0) return (tokens_[row].position - layout_.n_sink) % every != 0;
  const ModelConfig& c = config();
  return decisions_[row * (c.n_heads + c.n_kv_heads) + c.n_heads + kv_head_idx] > c.dmc->offset;
}

float Model::WeightInEntry(int kv_head_idx, int64_t row) const {
  if (layout_.retention->merge->every > 0) return 1;
  const ModelConfig& c = config();
  const int group = c.gqa_group();
  const float* of_queries = &decisions_[row * (c.n_heads + c.n_kv_heads) + kv_head_idx * group];
  float sum = 0;
  for (int h = 0; h < group; ++h) sum += of_queries[h];
  const float logit = sum / static_cast<float>(group) + c.dmc->offset;
  constexpr float kLeast = 1e-20f;  // an entry of weight 0 would have no mean
  return std::max(kLeast, 1 / (1 + std::exp(-logit)) + c.dmc->epsilon);
}

void Model::SeeMergedRows(int layer_idx, int kv_head_idx, int64_t token_idx, HeadJob* job) {
  const LayerOffsets& offsets = offsets_[layer_idx];
  const int64_t rank_v = offsets.rank_v.back();
  const HeadRows k = KeyRows(layer_idx, kv_head_idx);
  const int* n_closed = &n_closed_[kv_head_idx * n_tokens_ + token_idx];
  job->merged = {
      .n_closed = n_closed,
      .k = k.first + token_idx * k.stride * SizeOf(row_type_),
      .k_stride = k.stride,
      .v = v_.data() + (token_idx * rank_v + offsets.rank_v[kv_head_idx]) * SizeOf(row_type_),
      .v_stride = rank_v};
  job->n_entries = std::max(0, n_closed[job->n_tokens - 1]);
  job->first_visible = std::max(0, n_closed[0]);
}

}  // namespace kvlathe
