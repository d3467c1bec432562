#include "model/steps/attend.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/random.h"
#include "model/steps/sealed_head.h"

namespace kvlathe {

Status AttendStep::Run(ForwardState* state) {
  const ScopedTimer timer(&state->profile->attention);
  Activations& a = *state->activations;
  const CacheLayout& layout = *layer_.layout;
  const int n_kv_heads = layer_.rows.n_kv_heads;
  int64_t n_blocks = 0;
  for (const SequenceStep& step : state->steps()) {
    n_blocks = std::max(n_blocks, BlocksFor(layout, step.cache->n_tokens()));
  }
  KVL_ASSIGN_OR_RETURN(const KeyRotationId rotation,
                       layer_.rotations->BlocksOf(layer_.idx, n_blocks));
  frame_maps_.clear();
  if (HasFrames(layout.keys)) {
    for (const Weight& map : layer_.basis.query) frame_maps_.push_back(map.id());
  }
  ListRebuilt();
  jobs_.clear();
  noises_.clear();
  noises_.reserve(state->steps().size() * n_kv_heads);  // jobs point to them
  slices_.clear();
  slices_.reserve(state->steps().size() * n_kv_heads);  // and to these
  int64_t token_idx = 0;
  for (const SequenceStep& step : state->steps()) {
    // Runs of packed blocks are numbered from the first of all.
    const int64_t first_block =
        layout.seal.has_value() ? 0 : BlocksOutOfWindow(layout, layer_.idx, step.first_position());
    const Place place = {step, token_idx, static_cast<int>(first_block), rotation};
    for (int g = 0; g < n_kv_heads; ++g) {
      jobs_.push_back(JobOf(place, g, &a));
      if (layer_.rows.heads_per_latent() > 1) ShareLatents(g);
    }
    token_idx += step.n_new();
  }
  const ModelConfig& c = *layer_.config;
  const ScoreRule rule = {.scale = c.scale_of_scores(), .cap = c.score_cap};
  state->backend->Attend(jobs_, rule, state->schedule);
  return OkStatus();
}

HeadJob AttendStep::JobOf(const Place& place, int kv_head_idx, Activations* a) {
  const CacheLayout& layout = *layer_.layout;
  const LayerRows& rows = layer_.rows;
  const SequenceCache& cache = *place.step.cache;
  const int g = kv_head_idx, n_new = place.step.n_new();
  const CacheHead head = cache.head(layer_.idx, g);
  const int n_entries = head.n_entries() - place.first_block * kBlockSize;
  HeadJob job;
  job.device = &cache.device();
  job.shape = head.shape();
  job.head_dim = rows.key_dim();
  job.gqa_group = rows.gqa_group();
  job.n_tokens = n_new;
  AddQueries(place, g, a, &job);
  if (TurnWhenRead(layout.keys)) job.latents = LatentsOf(place, g);
  if (HasFrames(layout.keys) || TurningPairs(layout.keys) > 0) job.frames = FramesOf(place, g);
  if (!cache.has_whole_keys(layer_.idx)) job.rebuilt = RebuiltOf(g);
  const std::span<const ObjectId> blocks = head.blocks();
  job.blocks = blocks.subspan(std::min<size_t>(place.first_block, blocks.size()));
  if (layout.seal.has_value()) AddPacked(place, g, &job);
  job.n_entries = std::max(0, n_entries);
  job.first_visible = n_entries - n_new + 1;
  if (layout.DropsEntries()) AddScores(place.step, g, &job);
  if (layout.MergesEntries()) AddMergedRows(place, g, a, &job);
  job.window = layer_.window;
  AddSinks(place, g, &job);
  if (layer_.config->has_sink_logits) {
    const int64_t first = int64_t{g} * rows.gqa_group() * int64_t{sizeof(float)};
    job.sink_logits = layer_.sink_logits + first;
  }
  // Attention turns latents and keys of frames itself, and gives them back what they have lost.
  const bool gives_back = TurnWhenRead(layout.keys) || HasFrames(layout.keys);
  if (layer_.config->scores_are_absolute() && !gives_back && !layer_.basis.key_offset.empty()) {
    job.lost_keys = layer_.basis.key_offset[g].place();
  }
  job.out_stride = rows.OutputStride();
  job.out_head_stride = rows.OutputWidth(g);
  job.out_type = a->types.activations;
  job.out = a->attended.place() +
            (place.token_idx * job.out_stride + rows.OutputOffset(g)) * SizeOf(job.out_type);
  return job;
}

void AttendStep::AddQueries(const Place& place, int kv_head_idx, Activations* a,
                            HeadJob* job) const {
  const LayerRows& rows = layer_.rows;
  const int64_t element = SizeOf(a->types.rows), first_row = place.token_idx * rows.gqa_group();
  const HeadRows whole = rows.WholeQueries(a, kv_head_idx);
  const HeadRows q =
      place.step.cache->has_whole_keys(layer_.idx) ? whole : rows.Queries(a, kv_head_idx);
  job->q = q.first + first_row * q.stride * element;
  job->q_stride = q.stride;
  job->q_full = whole.first + first_row * whole.stride * element;
  job->q_full_stride = whole.stride;
}

void AttendStep::AddPacked(const Place& place, int kv_head_idx, HeadJob* job) const {
  const SequenceCache& cache = *place.step.cache;
  const CacheHead head = cache.head(layer_.idx, kv_head_idx);
  const std::span<const SealedRun> runs = head.runs();
  job->packed = SealedHeadOf(layer_, cache.layout(), kv_head_idx, runs, place.rotation);
  if (!cache.layout().CodesOpenRows()) return;
  const int n_sealed = runs.empty() ? 0 : runs.back().first_block + runs.back().n_blocks;
  const auto n_blocks = static_cast<int>(head.blocks().size());
  job->packed.open = {.first_block = n_sealed, .n_blocks = n_blocks - n_sealed};
}

void AttendStep::AddSinks(const Place& place, int kv_head_idx, HeadJob* job) const {
  const CacheLayout& layout = *layer_.layout;
  const SequenceCache& cache = *place.step.cache;
  const CacheHead head = cache.head(layer_.idx, kv_head_idx);
  if (head.sink_k().is_null()) return;  // there are none, or no token sees them any more
  job->sinks.n = std::min(layout.n_sink, cache.n_tokens());
  job->sinks.k = head.sink_k();
  job->sinks.v = head.sink_v();
  job->sinks.first_visible = place.step.first_position() + 1;
  if (!layout.SparesSinks()) job->sinks.window = job->window;
}

FrameIds AttendStep::FramesOf(const Place& place, int kv_head_idx) const {
  const LayerRows& rows = layer_.rows;
  const RotationTables& rotations = *layer_.rotations;
  const int n_joined = rows.heads_per_map(), n_before = place.first_block * kBlockSize;
  FrameIds frames = {.maps = {},
                     .key_offset = {},
                     .n_joined = n_joined,
                     .n_pairs = TurningPairs(rows.keys),
                     .cos = rotations.cos(layer_.idx),
                     .sin = rotations.sin(layer_.idx),
                     .half = rotations.rope_dim(layer_.idx) / 2,
                     .n_absolute = rotations.absolute_pairs(layer_.idx),
                     .way_back = rotations.way_back(layer_.idx),
                     .head_dim = rows.head_dim,
                     .first_position = layer_.layout->n_sink + n_before,
                     .first_place = n_before % kFramePositions};
  if (HasFrames(rows.keys)) {
    frames.maps = std::span(frame_maps_).subspan(kv_head_idx * n_joined, n_joined);
    frames.key_offset = layer_.basis.key_offset[kv_head_idx].place();
  }
  if (frames.n_pairs == 0) return frames;
  frames.turning_mean = layer_.basis.turning_mean[kv_head_idx].place();
  frames.mean_angles = rotations.mean_angles(layer_.idx);
  return frames;
}

void AttendStep::ListRebuilt() {
  const LayerBasis& basis = layer_.basis;
  rebuilt_keys_.clear();
  rebuilt_values_.clear();
  rebuilt_outputs_.clear();
  for (const Weight& key : basis.rebuilt_key) rebuilt_keys_.push_back(key.id());
  for (const Weight& output : basis.rebuilt_output) rebuilt_outputs_.push_back(output.id());
  if (rebuilt_outputs_.empty()) return;
  for (const Weight& value : basis.output) rebuilt_values_.push_back(value.id());
}

RebuildIds AttendStep::RebuiltOf(int kv_head_idx) const {
  if (rebuilt_keys_.empty()) return {};
  const size_t n_joined = layer_.rows.heads_per_map(), first = kv_head_idx * n_joined;
  RebuildIds rebuilt = {.keys = std::span(rebuilt_keys_).subspan(first, n_joined),
                        .values = {},
                        .outputs = {},
                        .head_dim = layer_.rows.head_dim};
  if (rebuilt_outputs_.empty()) return rebuilt;
  rebuilt.values = std::span(rebuilt_values_).subspan(first, n_joined);
  rebuilt.outputs = std::span(rebuilt_outputs_).subspan(first, n_joined);
  return rebuilt;
}

LatentIds AttendStep::LatentsOf(const Place& place, int kv_head_idx) const {
  const KeyRotationId rotation = place.rotation.From(place.first_block);
  const LatentsOfHead& latents = layer_.basis.latents[kv_head_idx];
  LatentIds head = {.map = latents.map.id(), .key_dim = latents.key_dim, .rotation = rotation};
  if (layer_.layout->DropsEntries() && rotation.half > 0) {
    const CacheHead cached = place.step.cache->head(layer_.idx, kv_head_idx);
    if (layer_.layout->HasClasses()) {
      head.sorted = cached.sorted_positions();
    } else {
      head.positions = cached.entries();
    }
    head.cos = layer_.rotations->cos(layer_.idx);
    head.sin = layer_.rotations->sin(layer_.idx);
  }
  return head;
}

void AttendStep::AddScores(const SequenceStep& step, int kv_head_idx, HeadJob* job) {
  const RetentionPlan& plan = *layer_.layout->retention;
  const SequenceCache& cache = *step.cache;
  const int n_new = step.n_new(), first = step.first_position();
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
    case RetentionPlan::Votes::kRepeat:
      job->first_scored = cache.reads_again() ? 0 : n_new;
      job->takes_largest = true;
      break;
  }
  job->scored = cache.head(layer_.idx, kv_head_idx).entries();
  if (!plan.is_noisy) return;
  const PromptPlace place = {layer_.layout->n_sink, cache.n_prompt()};
  const auto temperature = [&](int position) {
    return static_cast<float>(TemperatureAt(plan, place, position, cache.n_generated()));
  };
  noises_.push_back({.key = MixBits(static_cast<uint64_t>(layer_.whole_idx)),
                     .first_head = (layer_.first_kv_head + kv_head_idx) * job->gqa_group,
                     .first_position = first,
                     .temperature = temperature(first),
                     .temperature_step = temperature(first + 1) - temperature(first),
                     .max_temperature = static_cast<float>(std::max(plan.tau_init, plan.tau_end))});
  job->noise = &noises_.back();
}

void AttendStep::AddMergedRows(const Place& place, int kv_head_idx, Activations* a,
                               HeadJob* job) const {
  const int64_t element = SizeOf(a->types.rows), token_idx = place.token_idx;
  const HeadRows k = layer_.rows.Keys(a, kv_head_idx), v = layer_.rows.Values(a, kv_head_idx);
  const int* const n_closed = &a->n_closed[kv_head_idx * a->n_tokens + token_idx];
  job->merged = {.n_closed = n_closed,
                 .k = k.first + token_idx * k.stride * element,
                 .k_stride = k.stride,
                 .v = v.first + token_idx * v.stride * element,
                 .v_stride = v.stride};
  job->n_entries = std::max(0, n_closed[job->n_tokens - 1]);
  job->first_visible = std::max(0, n_closed[0]);
}

void AttendStep::ShareLatents(int kv_head_idx) {
  const HeadJob& newest = jobs_.back();
  slices_.push_back({newest.blocks, newest.packed, newest.sinks.v});
  const int n = layer_.rows.heads_per_latent();
  if ((kv_head_idx + 1) % n != 0) return;
  for (auto job = jobs_.end() - n; job != jobs_.end(); ++job) {
    job->latents.slices = std::span(slices_).last(n);
  }
}

}  // namespace kvlathe
