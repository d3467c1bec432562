#include "cuda/attention/prompt_items.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <variant>

#include "base/units.h"
#include "cuda/attention/expand_runs.h"
#include "cuda/kernels/retain/entry_scores.h"

namespace kvlathe {
namespace {

using cuda::ExpandRun;
using cuda::PromptHead;
using cuda::PromptItem;
using cuda::PromptParams;

static_assert(cuda::kPlaceBytes == kDeviceAlignment);

// Blocks that a block of threads rebuilds.
constexpr int kRebuiltBlocks = 4;
// Rebuilt keys of a call take about so many bytes at most, but for those of a single part.
constexpr int64_t kMostRebuiltBytes = int64_t{256} << 20;

bool HasTurningKeys(const HeadJob& job) {
  return !job.frames.maps.empty() || job.frames.n_pairs > 0;
}

}  // namespace

PromptItems::~PromptItems() {
  for (const Held& held : {partials_, rebuilt_, scores_}) {
    if (held.region != 0) memory_.Free(held.region);
  }
}

std::vector<PromptPart> PromptItems::PartsOf(const HeadJob& job) const {
  PromptPart part = {.job = &job, .rank_k = job.shape.rank_k};
  if (!job.latents.empty()) {
    const CudaLatentMap& map = *residents_.At(job.latents.map);
    part.is_rebuilt = true;
    part.n_maps = map.head_dim / map.key_dim;
    part.rank_k = map.key_dim;
  } else if (HasTurningKeys(job)) {
    part.is_rebuilt = true;
    part.n_maps = static_cast<int>(job.rebuilt.keys.size());
    part.rank_k = job.rebuilt.head_dim;
  }
  part.row_end = job.n_tokens * part.group();
  std::vector<PromptPart> parts;
  for (part.map = 0; part.map < part.n_maps; ++part.map) {
    for (part.slice = 0; part.slice < part.n_slices(); ++part.slice) parts.push_back(part);
  }
  return parts;
}

bool PromptItems::Takes(const HeadJob& job) const {
  if (job.device != &memory_ || job.shape.row_type != DType::kBf16) return false;
  if (job.merged.n_closed != nullptr || !CanExpand(job.packed)) return false;
  if (job.is_scored() && job.takes_largest) return false;
  int64_t rebuild_bytes = 0;
  if (!job.latents.empty()) {
    const CudaLatentMap* const map = residents_.At(job.latents.map);
    if (map == nullptr || map->row_type != DType::kBf16) return false;
    const bool has_slices = !job.latents.slices.empty();
    if (has_slices && std::holds_alternative<SplitBitsCodec>(job.packed.format.codec)) return false;
    rebuild_bytes = cuda::RebuildSharedBytes(map->rank, map->key_dim);
  } else if (HasTurningKeys(job)) {
    if (job.rebuilt.keys.empty() || job.shape.has_one_side) return false;
    rebuild_bytes = cuda::RebuildSharedBytes(job.shape.rank_k, job.rebuilt.head_dim);
  }
  const std::vector<PromptPart> parts = PartsOf(job);
  const PromptParams most = LargestOf(parts);
  if (most.most_rank_k % 16 != 0 || most.most_rank_v % 16 != 0) return false;
  const int64_t bytes = cuda::PromptSharedBytes(1, most.most_rank_k, most.most_rank_v);
  return std::max(bytes, rebuild_bytes) <= limits_.shared_bytes;
}

std::vector<ExpandRun> PromptItems::RunsOf(const PromptPart& part) const {
  const HeadJob& job = *part.job;
  const SealedHead& head = part.packed();
  ExpandAddresses at = {.cos = memory_.As<const float>(head.rotation.cos),
                        .sin = memory_.As<const float>(head.rotation.sin)};
  if (const CudaCodebooks* const books = residents_.At(head.codebooks); books != nullptr) {
    at.key_book = &books->k;
    at.value_book = &books->v;
    at.key_scales = books->key_scales[head.kv_head_idx];
  }
  std::vector<ExpandRun> runs;
  for (const SealedRun& run : head.runs) {
    at.record = memory_.At(run.record);
    at.layer_record = memory_.At(run.layer_record);
    runs.push_back(MakeExpandRun(job.shape, head, run, at));
  }
  if (head.open.n_blocks > 0) runs.push_back(MakeOpenRun(job.shape, head.open));
  return runs;
}

PromptItems::Sent PromptItems::SendBlocks(const PromptPart& part) {
  const std::vector<ExpandRun> runs = RunsOf(part);
  std::vector<uint32_t> blocks;
  for (const ObjectId& block : part.blocks()) blocks.push_back(memory_.PlaceOf(block));
  CudaStream& stream = memory_.stream();
  return {stream.Send(std::span<const uint32_t>(blocks)),
          stream.Send(std::span<const ExpandRun>(runs)), static_cast<int>(runs.size())};
}

PromptHead PromptItems::HeadOf(const PromptPart& part, const Sent& sent) const {
  const HeadJob& job = *part.job;
  const int64_t head_stride = job.out_head_stride > 0 ? job.out_head_stride : job.output_width();
  const int64_t first_out = part.first_head() * head_stride + part.slice * part.width();
  const bool is_last = part.slice + 1 == part.n_slices();
  const ObjectPlace& sink_v =
      part.has_slices() ? job.latents.slices[part.slice].sink_v : job.sinks.v;
  const auto* const whole =
      memory_.As<const uint16_t>(job.q_full) + part.first_head() * job.q_full_stride;
  PromptHead head = {.rank_k = part.rank_k,
                     .rank_v = job.shape.rank_v,
                     .width = part.width(),
                     .gqa_group = part.group(),
                     .stored_rank_k = job.shape.rank_k,
                     .q = memory_.As<const uint16_t>(job.q),
                     .q_stride = job.q_stride,
                     .q_token_stride = job.gqa_group * job.q_stride,
                     .blocks = sent.blocks,
                     .runs = sent.runs,
                     .n_runs = sent.n_runs,
                     .first_visible = job.first_visible,
                     .window = job.window,
                     .q_full = whole,
                     .q_full_stride = job.q_full_stride,
                     .q_full_token_stride = job.gqa_group * job.q_full_stride,
                     .head_dim = job.head_dim,
                     .sink_k = memory_.As<const uint16_t>(job.sinks.k),
                     .sink_v = memory_.As<const uint16_t>(sink_v),
                     .n_sinks = job.sinks.n,
                     .sinks_visible = job.sinks.first_visible,
                     .sink_window = job.sinks.window,
                     .sink_logits = memory_.As<const float>(job.sink_logits),
                     .lost_keys = memory_.As<const float>(job.lost_keys),
                     .out = memory_.At(job.out + first_out * SizeOf(job.out_type)),
                     .out_type = job.out_type,
                     .out_stride = job.out_stride,
                     .out_head_stride = head_stride,
                     .n_cleared = is_last ? static_cast<int>(head_stride) - job.output_width() : 0};
  if (head.sink_logits != nullptr) head.sink_logits += part.first_head();
  if (part.is_rebuilt) {  // queries of one KV head of the model lie behind zeros for the others
    head.q = whole + part.map * part.rank_k;
    head.q_stride = head.q_full_stride;
    head.q_token_stride = head.q_full_token_stride;
  }
  return head;
}

void PromptItems::AddFrames(const PromptPart& part, cuda::RebuildHead* head) const {
  const FrameIds& frames = part.job->frames;
  const int64_t of_part = int64_t{part.map} * frames.head_dim;
  const auto floats_of_part = [&](const ObjectPlace& place) {
    return place.is_null() ? nullptr : memory_.As<const float>(place) + of_part;
  };
  const CudaMatrix& map = *residents_.At(part.job->rebuilt.keys[part.map]);
  head->map = map.data;
  head->map_row_bytes = map.row_bytes;
  if (!frames.maps.empty()) {
    head->turn = cuda::KeyTurn::kFrames;
    head->offset = floats_of_part(frames.key_offset);
  }
  head->cos = memory_.As<const float>(frames.cos);
  head->sin = memory_.As<const float>(frames.sin);
  head->half = frames.half;
  head->n_absolute = frames.n_absolute;
  head->unit = std::sqrt(frames.way_back);
  head->turning_mean = floats_of_part(frames.turning_mean);
  head->n_pairs = frames.n_pairs;
  head->first_position = frames.first_position;
  head->first_place = frames.first_place;
}

void PromptItems::AddLatents(const PromptPart& part, cuda::RebuildHead* head) const {
  const LatentIds& latents = part.job->latents;
  const CudaLatentMap& map = *residents_.At(latents.map);
  const int64_t first = int64_t{part.map} * map.key_dim;
  head->map_row_bytes = int64_t{2} * map.rank;
  head->map = map.columns + first * head->map_row_bytes;
  head->offset = map.offset + first;
  head->half = latents.rotation.half;
  if (head->half == 0) return;
  const bool has_positions = !latents.positions.empty() || latents.sorted.n_blocks > 0;
  head->turn = has_positions ? cuda::KeyTurn::kPositions : cuda::KeyTurn::kBlocks;
  head->cos = memory_.As<const float>(latents.cos);
  head->sin = memory_.As<const float>(latents.sin);
  head->block_cos = memory_.As<const float>(latents.rotation.cos);
  head->block_sin = memory_.As<const float>(latents.rotation.sin);
  head->table = memory_.At(latents.positions.object);
  head->has_sums = latents.positions.has_sums;
  head->sorted = memory_.At(latents.sorted.object);
  head->n_sorted_blocks = latents.sorted.n_blocks;
  head->is_sorted_wide = latents.sorted.is_wide;
}

cuda::RebuildHead PromptItems::RebuildHeadOf(const PromptPart& part) const {
  cuda::RebuildHead head = {.n_slices = part.n_slices(),
                            .slice_rank = part.job->shape.rank_k,
                            .n_entries = part.job->n_entries,
                            .head_dim = part.rank_k};
  if (part.job->latents.empty()) {
    AddFrames(part, &head);
  } else {
    AddLatents(part, &head);
  }
  return head;
}

void PromptItems::Rebuild(std::span<const PromptPart> parts, std::span<const Sent> sent,
                          std::span<PromptHead> heads) {
  cuda::RebuildParams params = {.base = memory_.base(), .tables = MakeWindowTables()};
  CudaStream& stream = memory_.stream();
  std::vector<cuda::RebuildHead> rebuilt;
  std::vector<cuda::RebuildItem> items;
  int64_t offset = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const PromptPart& part = parts[i];
    if (!part.is_rebuilt) continue;
    if (part.slice > 0) {
      heads[i].rebuilt_keys = heads[i - 1].rebuilt_keys;
      continue;
    }
    const SeenBlocks seen = BlocksSeen(part, part.row_begin, part.row_end);
    for (int block = seen.begin; block < seen.end; block += kRebuiltBlocks) {
      items.push_back({.head = static_cast<int>(rebuilt.size()),
                       .first_block = block,
                       .n_blocks = std::min(kRebuiltBlocks, seen.end - block),
                       .first_run = RunAt(part.packed(), block)});
    }
    rebuilt.push_back(RebuildHeadOf(part));
    rebuilt.back().slices = stream.Send(sent.subspan(i, part.n_slices()));
    rebuilt.back().keys = memory_.At(ObjectPlace{{.region = rebuilt_.region}, offset});
    heads[i].rebuilt_keys = rebuilt.back().keys;
    offset += RebuiltBytes(part);
    params.most_rank_k = std::max(params.most_rank_k, part.n_slices() * part.job->shape.rank_k);
    params.most_head_dim = std::max(params.most_head_dim, part.rank_k);
  }
  if (items.empty()) return;
  params.heads = stream.Send(std::span<const cuda::RebuildHead>(rebuilt));
  params.items = stream.Send(std::span<const cuda::RebuildItem>(items));
  params.n_items = static_cast<int>(items.size());
  if (params.heads == nullptr || params.items == nullptr) return;  // the stream tells
  cuda::RebuildKeys(stream.get(), params);
}

bool PromptItems::Hold(Held* held, int64_t n_bytes) {
  if (n_bytes <= held->n_bytes) return true;
  if (held->region != 0) memory_.Free(held->region);
  held->region = memory_.Allocate(n_bytes);
  held->n_bytes = held->region == 0 ? 0 : n_bytes;
  return held->region != 0;
}

bool PromptItems::PlaceScores(std::span<const PromptPart> parts, std::span<PromptHead> heads) {
  if (!Hold(&scores_, ScoreFloats(parts) * int64_t{sizeof(float)})) return false;
  int64_t offset = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].is_scored) continue;
    PromptHead& head = heads[i];
    head.scores_stride = ScoreStride(*parts[i].job);
    head.scores = memory_.As<float>(ObjectPlace{{.region = scores_.region}}) + offset;
    head.row_max = head.scores + parts[i].n_rows() * head.scores_stride;
    head.row_sum = head.row_max + RoundUp(parts[i].n_rows(), 4);
    head.first_scored_row = parts[i].row_begin;
    offset += ScoreFloats(parts[i]);
  }
  return true;
}

void PromptItems::AddVotes(std::span<const PromptPart> parts, std::span<const PromptHead> heads,
                           const ScoreRule& rule) {
  std::vector<cuda::EntryScoreItem> items;
  int most_rows = 0, most_entries = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].is_scored) continue;
    const PromptPart& part = parts[i];
    const HeadJob& job = *part.job;
    const int token = part.row_begin / part.group();
    cuda::EntryScoreItem item = {.scores = heads[i].scores,
                                 .stride = heads[i].scores_stride,
                                 .n_rows = part.n_rows(),
                                 .gqa_group = part.group(),
                                 .first_visible = job.first_visible + token,
                                 .n_entries = job.n_entries,
                                 .sm_scale = rule.scale,
                                 .row_max = heads[i].row_max,
                                 .row_sum = heads[i].row_sum,
                                 .has_noise = job.noise != nullptr,
                                 .table = memory_.At(job.scored.object)};
    if (item.has_noise) {
      item.noise = *job.noise;
      item.noise.first_head += part.first_head();
      item.noise.first_position += token;
      item.noise.temperature += static_cast<float>(token) * item.noise.temperature_step;
    }
    most_rows = std::max(most_rows, item.n_rows);
    most_entries = std::max(most_entries, item.n_entries);
    items.push_back(item);
  }
  if (items.empty()) return;
  CudaStream& stream = memory_.stream();
  const auto* const sent = stream.Send(std::span<const cuda::EntryScoreItem>(items));
  if (sent == nullptr) return;  // the stream tells
  cuda::AddEntryScores(stream.get(), sent, static_cast<int>(items.size()), most_rows, most_entries);
}

void PromptItems::Attend(std::span<const HeadJob> jobs, const ScoreRule& rule) {
  std::vector<std::vector<PromptPart>> all, scored;
  for (const HeadJob& job : jobs) {
    all.push_back(PartsOf(job));
    if (!job.is_scored()) continue;
    std::ranges::move(ScoredPieces(&all.back()), std::back_inserter(scored));
  }
  AttendInTurns(all, rule);
  AttendInTurns(scored, rule);
}

void PromptItems::AttendInTurns(std::span<const std::vector<PromptPart>> jobs,
                                const ScoreRule& rule) {
  std::vector<PromptPart> parts;
  for (const std::vector<PromptPart>& of_job : jobs) {
    if (RebuiltBytes(parts) + RebuiltBytes(of_job) > kMostRebuiltBytes ||
        ScoreFloats(parts) + ScoreFloats(of_job) > kMostScoreFloats) {
      AttendParts(parts, rule);
      parts.clear();
    }
    parts.insert(parts.end(), of_job.begin(), of_job.end());
  }
  AttendParts(parts, rule);
}

void PromptItems::AttendParts(std::span<const PromptPart> parts, const ScoreRule& rule) {
  if (parts.empty()) return;
  CudaStream& stream = memory_.stream();
  if (!Hold(&rebuilt_, RebuiltBytes(parts))) {
    return stream.Note(cudaErrorMemoryAllocation, "keys of the model for attention");
  }
  PromptParams params = LargestOf(parts);
  const int rows = RowsOfItems(parts, params, limits_);
  PromptPlan plan = PlanPromptItems(parts, rows, !is_deterministic_, limits_);
  if (!Hold(&partials_, plan.n_floats * int64_t{sizeof(float)})) {
    plan = PlanPromptItems(parts, rows, /*splits=*/false, limits_);
  }
  std::vector<PromptHead> heads;
  std::vector<Sent> sent;
  for (const PromptPart& part : parts) {
    // With the part of the same slice before, if there is one.
    const int before = static_cast<int>(sent.size()) - part.n_slices();
    const bool is_sent = before >= 0 && parts[before].job == part.job;
    sent.push_back(is_sent ? sent[before] : SendBlocks(part));
    heads.push_back(HeadOf(part, sent.back()));
    params.most_rows = std::max(params.most_rows, std::min(rows, part.n_rows()));
  }
  if (!PlaceScores(parts, heads)) {
    return stream.Note(cudaErrorMemoryAllocation, "scores for votes");
  }
  Rebuild(parts, sent, heads);
  params.base = memory_.base();
  params.heads = stream.Send(std::span<const PromptHead>(heads));
  params.items = stream.Send(std::span<const PromptItem>(plan.items));
  params.n_items = static_cast<int>(plan.items.size());
  params.splits = stream.Send(std::span<const cuda::PromptSplit>(plan.splits));
  params.n_splits = static_cast<int>(plan.splits.size());
  params.sm_scale = rule.scale;
  params.score_cap = rule.cap;
  if (partials_.region != 0) {
    params.partials = memory_.As<float>(ObjectPlace{{.region = partials_.region}});
  }
  params.tables = MakeWindowTables();
  if (params.heads == nullptr || params.items == nullptr) return;  // the stream tells
  cuda::AttendPrompt(stream.get(), params);
  AddVotes(parts, heads, rule);
  stream.Note(cudaGetLastError(), "attention of many rows");
}

}  // namespace kvlathe
