#include "cpu/attention/attention.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/units.h"
#include "cpu/attention/addresses.h"
#include "cpu/attention/frames.h"
#include "cpu/attention/job_parts.h"
#include "cpu/attention/latents.h"
#include "cpu/attention/merged_rows.h"
#include "cpu/attention/partial.h"
#include "cpu/attention/rebuilt.h"
#include "cpu/attention/turning_mean.h"
#include "cpu/kernels/attend/attend.h"
#include "cpu/kernels/attend/entry_scores.h"
#include "cpu/kernels/elementwise/elementwise.h"
#include "machine/attention/plan.h"
#include "tensor/buffer.h"

namespace kvlathe {
namespace {

int MostRows(const AttentionPlan& plan) {
  int most = 0;
  for (const WorkItem& item : plan.items) most = std::max(most, item.row_end - item.row_begin);
  return most;
}

// What all items of a call share.
struct AttentionRun {
  ScoreRule rule;
  bool is_deterministic = false;
  bool is_exact = false;
};

// Whether a cap has to be told what all keys of a job have lost.
bool IsToldOffsets(const HeadJob& job, const ScoreRule& rule) {
  return rule.cap > 0 && !job.lost_keys.is_null();
}

// Scores of the rows of an item; null where none are wanted.
struct ScoreRows {
  float* rows = nullptr;  // of the item's first row and entry
  int64_t stride = 0;
};

// A job's window as kernels take it.
int WindowOf(int window) { return window > 0 ? window : kNoWindow; }

AttendParams BlockParams(const HeadJob& job, const JobAddresses& at, const WorkItem& item,
                         const AttentionRun& run, const PartialRows& partial,
                         const ScoreRows& scores) {
  return {.shape = job.shape,
          .gqa_group = job.gqa_group,
          .n_rows = item.row_end - item.row_begin,
          .q = RowAt(at.q(), item.row_begin, job.q_stride, job.shape.row_type),
          .q_stride = job.q_stride,
          .blocks = at.blocks(),
          .packed = at.packed(),
          .kv_begin = item.entry_begin,
          .kv_end = item.entry_end,
          .first_visible = job.first_visible + item.row_begin / job.gqa_group,
          .window = WindowOf(job.window),
          .sm_scale = run.rule.scale,
          .score_cap = run.rule.cap,
          .is_deterministic = run.is_deterministic,
          .is_exact = run.is_exact,
          .o = partial.o,
          .o_stride = job.output_width(),
          .row_max = partial.row_max,
          .row_sum = partial.row_sum,
          .scores = scores.rows,
          .scores_stride = scores.stride};
}

int64_t LatentScratchBytes(const CpuResidents& residents, const HeadJob& job,
                           int64_t max_item_floats) {
  // Of the head only sizes are asked.
  const std::vector<LatentSlice> slices(job.latents.slices.size());
  const LatentHead head = {.map = residents.At(job.latents.map),
                           .slices = slices,
                           .rotation = {.half = job.latents.rotation.half}};
  return LatentScratchBytes(job.shape, head, max_item_floats);
}

// The frames of an item's rows.
FramesOfHead FramesOfItem(const HeadJob& job, const JobAddresses& at, const WorkItem& item) {
  FramesOfHead frames = at.frames();
  frames.q = RowAt(at.q_full(), item.row_begin, job.q_full_stride, job.shape.row_type);
  frames.q_stride = job.q_full_stride;
  return frames;
}

bool IsRotated(const HeadJob& job) {
  return !job.packed.runs.empty() && FactsOf(job.packed.format.codec).brings_bases;
}

// Adds what the scored ones of rows [row_begin, row_end) attend to. `partial` is final, and it and
// `scores` begin with row_begin and the first entry.
void AddScores(const EntryScoreKernels& kernels, const CpuAccess& access, const HeadJob& job,
               int row_begin, int row_end, const ScoreRule& rule, const PartialRows& partial,
               const ScoreRows& scores) {
  const int begin = std::max(row_begin, job.first_scored * job.gqa_group);
  if (begin >= row_end) return;
  const int skipped = begin - row_begin, token = begin / job.gqa_group;
  ScoreNoise noise;
  if (job.noise != nullptr) {
    noise = *job.noise;
    noise.first_position += token;
    noise.temperature += static_cast<float>(token) * noise.temperature_step;
  }
  kernels.add({.scores = scores.rows + skipped * scores.stride,
               .stride = scores.stride,
               .n_rows = row_end - begin,
               .gqa_group = job.gqa_group,
               .first_visible = job.first_visible + token,
               .n_entries = job.n_entries,
               .sm_scale = rule.scale,
               .row_max = partial.row_max + skipped,
               .row_sum = partial.row_sum + skipped,
               .noise = job.noise != nullptr ? &noise : nullptr,
               .takes_largest = job.takes_largest,
               .table = EntryTableAt(access, job.scored)});
}

// A line more than the blocks: rows a power of two apart would fight for the same sets of the
// caches.
int64_t ScoreStride(const HeadJob& job) { return RoundUp(job.n_entries, kBlockSize) + 16; }

// `blocks` are the params of the item's blocks.
void AttendSink(const AttendKernels& kernels, const HeadJob& job, const JobAddresses& at,
                const WorkItem& item, const SinkQueries& queries, const AttendParams& blocks,
                const PartialRows& partial) {
  const DType row_type = job.shape.row_type;
  AttendRowsParams params = {
      .row_type = row_type,
      .head_dim = job.head_dim,
      .rank_v = job.latents.slices.empty() ? job.output_width() : job.shape.rank_v,
      .gqa_group = queries.group,
      .n_rows = item.row_end - item.row_begin,
      .q = queries.q,
      .q_stride = queries.stride,
      .k = at.sink_k(),
      .v = at.sink_v(),
      .n_entries = job.sinks.n,
      .first_visible = job.sinks.first_visible + item.row_begin / queries.group,
      .window = WindowOf(job.sinks.window),
      .sm_scale = blocks.sm_scale,
      .score_cap = blocks.score_cap,
      .score_offsets = blocks.score_offsets,
      .o = partial.o,
      .o_stride = job.output_width(),
      .row_max = partial.row_max,
      .row_sum = partial.row_sum};
  if (job.latents.slices.empty()) return kernels.attend_rows(params);
  // Sinks are few: scores of their own for each slice cost nothing.
  for (const LatentSlice& slice : at.latents().slices) {
    params.v = slice.sink_v;
    kernels.attend_rows(params);
    params.o += params.rank_v;
  }
}

}  // namespace

struct Attention::State {
  ThreadPool* pool;
  Isa isa;
  CpuDevice* memory;
  const CpuResidents& residents;
  bool is_deterministic = false;
  bool is_exact = false;
  Planner planner;
  Linear linear;                          // maps queries of frames
  const ElementwiseKernels& elementwise;  // likewise
  const EntryScoreKernels& score_kernels;
  std::vector<JobSize> sizes;
  // Per worker: kAttendScratchBytes, two partial results, and score_offsets of an item.
  Buffer scratch;
  Buffer workspace;  // partial results of split rows
  Buffer scores;     // of the item at work, per worker; then of the split rows
  int64_t worker_bytes = 0;
  int64_t latent_bytes = 0;                 // of worker_bytes, from their start
  int64_t offset_bytes = 0;                 // of worker_bytes, at their end
  int64_t worker_scores = 0;                // floats
  std::vector<int64_t> split_score_offset;  // [n_splits] floats in `scores`

  std::vector<JobAddresses> addresses;  // [n_workers]

  double planning = 0;             // seconds, since TakeSeconds
  std::vector<double> rebuilding;  // likewise, [n_workers]

  // The call at work.
  std::span<const HeadJob> jobs;
  std::vector<JobPart> parts;  // what items and splits of the plan name as jobs
  const CpuAccesses* accesses = nullptr;
  const CpuAccess* own = nullptr;  // of `memory`
  const AttentionPlan* plan = nullptr;
  ScoreRule rule;

  const AttendKernels& KernelsFor(DType row_type) const {
    return GetAttendKernels(is_deterministic && isa == Isa::kAmx ? Isa::kAvx512Bf16 : isa,
                            row_type);
  }
  const HeadJob& JobOf(int part_idx) const { return jobs[parts[part_idx].job_idx]; }
  Status PlaceScores();
  ScoreRows ScoresOf(const WorkItem& item, int worker_id);
  void RunItems(int worker_id);
  void MergeSplits(int worker_id);
  void ScoreSplits(int worker_id);
};

// Lays out `scores`.
Status Attention::State::PlaceScores() {
  worker_scores = 0;
  for (const WorkItem& item : plan->items) {
    const HeadJob& job = JobOf(item.job_idx);
    if (!job.is_scored() || item.partial_offset >= 0) continue;
    worker_scores = std::max(worker_scores, (item.row_end - item.row_begin) * ScoreStride(job));
  }
  int64_t n_floats = worker_scores * pool->n_workers();
  split_score_offset.clear();
  for (const SplitRows& split : plan->splits) {
    split_score_offset.push_back(n_floats);
    const HeadJob& job = JobOf(split.job_idx);
    if (job.is_scored()) n_floats += (split.row_end - split.row_begin) * ScoreStride(job);
  }
  return scores.EnsureSize(4 * n_floats, "attention scores");
}

ScoreRows Attention::State::ScoresOf(const WorkItem& item, int worker_id) {
  const HeadJob& job = JobOf(item.job_idx);
  if (!job.is_scored() || item.row_end <= job.first_scored * job.gqa_group) return {};
  float* floats = scores.as<float>();
  if (item.partial_offset < 0) return {floats + worker_id * worker_scores, ScoreStride(job)};
  const auto split = std::ranges::find_if(plan->splits, [&](const SplitRows& s) {
    return s.job_idx == item.job_idx && s.row_begin == item.row_begin;
  });
  return {floats + split_score_offset[split - plan->splits.begin()] + item.entry_begin,
          ScoreStride(job)};
}

void Attention::State::RunItems(int worker_id) {
  std::byte* const latent_scratch = scratch.data() + worker_id * worker_bytes;
  std::byte* const kernel_scratch = latent_scratch + latent_bytes;
  float* item_floats = reinterpret_cast<float*>(kernel_scratch + kAttendScratchBytes);
  float* sink = item_floats + plan->max_item_floats;
  JobAddresses& at = addresses[worker_id];
  double* const rebuilding_seconds = &rebuilding[worker_id];
  for (const WorkItem& item : plan->ItemsOf(worker_id)) {
    const HeadJob& job = JobOf(item.job_idx);
    const CpuAccess& access = accesses->Of(job.device);
    // Tokens of merged rows see entries behind those of the item that adds their own row.
    const bool is_merged = job.merged.n_closed != nullptr;
    at.Resolve({access, *own, residents}, job, item.entry_begin,
               is_merged ? job.n_entries : item.entry_end);
    const AttendKernels& kernels = KernelsFor(job.shape.row_type);
    const int n_rows = item.row_end - item.row_begin, width = job.output_width();
    const bool is_part = item.partial_offset >= 0;
    const PartialRows partial = PartialAt(
        is_part ? workspace.as<float>() + item.partial_offset : item_floats, n_rows, width);
    const ScoreRows item_scores = ScoresOf(item, worker_id);
    const JobPart& part = parts[item.job_idx];
    AttendParams params =
        BlockParams(job, at, item, {rule, is_deterministic, is_exact}, partial, item_scores);
    if (IsToldOffsets(job, rule)) {
      const std::span<float> lost(sink + plan->max_item_floats, n_rows);
      FindLostProducts(*own, job, part, item.row_begin, lost);
      params.score_offsets = lost.data();
    }
    if (width >
        job.latents.output_width(job.shape.rank_v)) {  // what entries of blocks do not write
      std::fill_n(partial.o, int64_t{n_rows} * width, 0.0f);
      if (is_merged) std::fill_n(sink, int64_t{n_rows} * width, 0.0f);
    }
    if (!job.latents.empty()) {
      AttendLatents(kernels, {GetLatentReader(isa, job.shape.row_type), GetSealedReader(isa)},
                    at.latents(), params, {kernel_scratch, latent_scratch, rebuilding_seconds});
    } else if (part.is_rebuilt()) {
      params.gqa_group = part.Group(job);
      const int first_token = item.row_begin / params.gqa_group;
      params.first_visible = job.first_visible + first_token;
      AttendRebuilt({kernels, elementwise, &linear, worker_id},
                    {GetSealedReader(isa), GetRebuildKernels(isa)}, at.rebuilt(part.map),
                    at.frames(), QueriesOfPart(job, at, part, first_token), params,
                    {kernel_scratch, latent_scratch, rebuilding_seconds});
    } else if (!job.frames.maps.empty()) {
      AttendFrames({kernels, elementwise, &linear, worker_id}, FramesOfItem(job, at, item), params,
                   {kernel_scratch, latent_scratch});
    } else if (job.frames.n_pairs > 0) {
      AttendLessMean({kernels, elementwise, &linear, worker_id}, FramesOfItem(job, at, item),
                     params, {kernel_scratch, latent_scratch});
    } else if (IsRotated(job)) {
      AttendRotatedRuns(kernels, GetLatentReader(isa, job.shape.row_type), params,
                        {kernel_scratch, latent_scratch, rebuilding_seconds});
    } else if (!is_merged) {
      kernels.attend(params, kernel_scratch);
    } else {
      AttendMerged({kernels, job, at, item, PartialAt(sink, n_rows, width), kernel_scratch},
                   params);
    }
    if (item.entry_begin == 0 && job.sinks.n > 0) {
      const PartialRows sink_partial = PartialAt(sink, n_rows, width);
      AttendSink(kernels, job, at, item, QueriesOfSink(job, at, part, item, latent_scratch), params,
                 sink_partial);
      MergePartial(sink_partial, n_rows, width, partial);
    }
    if (is_part) continue;
    AddSinkLogits(*own, job, part, item.row_begin, rule, partial, n_rows);
    WriteRows(*own, job, part, item.row_begin, n_rows, partial);
    if (item_scores.rows == nullptr) continue;
    AddScores(score_kernels, access, job, item.row_begin, item.row_end, rule, partial, item_scores);
  }
}

// Merges the parts of this worker's share of all split rows into their first part and writes them.
void Attention::State::MergeSplits(int worker_id) {
  const Range share = ShareOf(plan->n_split_rows, 1, worker_id, pool->n_workers());
  for (const SplitRows& split : plan->splits) {
    const int n_rows = split.row_end - split.row_begin;
    const int begin = static_cast<int>(std::max<int64_t>(0, share.begin - split.n_rows_before));
    const int end = static_cast<int>(std::min<int64_t>(n_rows, share.end - split.n_rows_before));
    if (begin >= end) continue;
    const HeadJob& job = JobOf(split.job_idx);
    const int width = job.output_width();
    const auto rows_of_part = [&](int part) -> PartialRows {
      float* const parts = workspace.as<float>() + split.partial_offset;
      const PartialRows all = PartialAt(parts + part * PartialFloats(n_rows, width), n_rows, width);
      return {all.o + int64_t{begin} * width, all.row_max + begin, all.row_sum + begin};
    };
    const PartialRows merged = rows_of_part(0);
    for (int part = 1; part < split.n_parts; ++part) {
      MergePartial(rows_of_part(part), end - begin, width, merged);
    }
    AddSinkLogits(*own, job, parts[split.job_idx], split.row_begin + begin, rule, merged,
                  end - begin);
    WriteRows(*own, job, parts[split.job_idx], split.row_begin + begin, end - begin, merged);
  }
}

void Attention::State::ScoreSplits(int worker_id) {
  const Range share = ShareOf(plan->splits.size(), 1, worker_id, pool->n_workers());
  for (int64_t i = share.begin; i < share.end; ++i) {
    const SplitRows& split = plan->splits[i];
    const HeadJob& job = JobOf(split.job_idx);
    if (!job.is_scored()) continue;
    const PartialRows merged = PartialAt(workspace.as<float>() + split.partial_offset,
                                         split.row_end - split.row_begin, job.output_width());
    AddScores(score_kernels, accesses->Of(job.device), job, split.row_begin, split.row_end, rule,
              merged, {scores.as<float>() + split_score_offset[i], ScoreStride(job)});
  }
}

Attention::Attention(ThreadPool* pool, Isa isa, CpuDevice* memory, const CpuResidents* residents)
    : state_(new State{.pool = pool,
                       .isa = isa,
                       .memory = memory,
                       .residents = *residents,
                       .planner = Planner(CostModelFor(isa)),
                       .linear = Linear(pool, isa),
                       .elementwise = GetElementwiseKernels(isa),
                       .score_kernels = GetEntryScoreKernels(isa)}) {}

Attention::~Attention() = default;

void Attention::set_deterministic(bool deterministic) {
  state_->is_deterministic = deterministic;
  state_->linear.set_deterministic(deterministic);
}

void Attention::set_exact(bool exact) { state_->is_exact = exact; }

AttentionSeconds Attention::TakeSeconds() {
  State& s = *state_;
  const double rebuilding = std::accumulate(s.rebuilding.begin(), s.rebuilding.end(), 0.0);
  std::ranges::fill(s.rebuilding, 0);
  return {std::exchange(s.planning, 0), rebuilding / s.pool->n_workers()};
}

void Attention::Begin(std::span<const HeadJob> jobs, const ScoreRule& rule) {
  State& s = *state_;
  s.jobs = jobs;
  s.rule = rule;
  const bool rebuilds = !s.is_deterministic && HasBf16Dots(s.isa);
  ListParts(jobs, s.pool->n_workers(), rebuilds, &s.parts, &s.sizes);
}

Status Attention::Run(std::span<const HeadJob> jobs, const ScoreRule& rule, Schedule schedule) {
  State& s = *state_;
  const Stopwatch planning;
  Begin(jobs, rule);
  if (s.is_deterministic && schedule == Schedule::kBalanced) schedule = Schedule::kLpt;
  const AttentionPlan& plan = s.planner.Plan(s.sizes, s.pool->n_workers(), schedule);
  s.planning += planning.Seconds();
  return RunPlan(plan);
}

Status Attention::RunAs(std::span<const HeadJob> jobs, const ScoreRule& rule,
                        const PlanMaker& make_plan) {
  Begin(jobs, rule);
  return RunPlan(make_plan(state_->sizes, state_->pool->n_workers()));
}

Status Attention::RunPlan(const AttentionPlan& plan) {
  State& s = *state_;
  const std::span<const HeadJob> jobs = s.jobs;
  if (plan.items.empty()) return OkStatus();
  s.plan = &plan;
  s.latent_bytes = 0;
  for (const HeadJob& job : jobs) {
    const int64_t n_floats = plan.max_item_floats;
    if (!job.latents.empty()) {
      s.latent_bytes = std::max(s.latent_bytes, LatentScratchBytes(s.residents, job, n_floats));
    } else if (IsRotated(job)) {
      s.latent_bytes = std::max(s.latent_bytes, RotatedScratchBytes(job.shape, n_floats));
    }
    if (!job.frames.maps.empty()) {
      s.latent_bytes = std::max(s.latent_bytes, FrameScratchBytes(job.shape, job.frames.head_dim,
                                                                  MostRows(plan), n_floats));
    } else if (job.frames.n_pairs > 0) {
      s.latent_bytes = std::max(
          s.latent_bytes, LessMeanScratchBytes(job.frames.head_dim, MostRows(plan), n_floats));
    }
  }
  for (const JobPart& part : s.parts) {
    const int64_t n_bytes = PartScratchBytes(jobs[part.job_idx], part, MostRows(plan));
    s.latent_bytes = std::max(s.latent_bytes, n_bytes);
  }
  const auto is_told = [&s](const HeadJob& job) { return IsToldOffsets(job, s.rule); };
  s.offset_bytes = std::ranges::any_of(jobs, is_told) ? RoundUp(4 * MostRows(plan), 64) : 0;
  s.worker_bytes =
      s.latent_bytes + kAttendScratchBytes + 2 * 4 * plan.max_item_floats + s.offset_bytes;
  KVL_RETURN_IF_ERROR(
      s.scratch.EnsureSize(s.worker_bytes * s.pool->n_workers(), "attention scratch"));
  KVL_RETURN_IF_ERROR(
      s.workspace.EnsureSize(4 * plan.workspace_floats, "attention partial results"));
  const bool is_scored = std::ranges::any_of(jobs, &HeadJob::is_scored);
  if (is_scored) KVL_RETURN_IF_ERROR(s.PlaceScores());
  CpuAccesses accesses;
  for (const HeadJob& job : jobs) accesses.Open(job.device);
  s.accesses = &accesses;
  const CpuAccess own(*s.memory);
  s.own = &own;
  s.addresses.resize(s.pool->n_workers());
  s.rebuilding.resize(s.pool->n_workers());
  s.pool->Run([&s](int worker_id) { s.RunItems(worker_id); });
  if (plan.splits.empty()) return OkStatus();
  s.pool->Run([&s](int worker_id) { s.MergeSplits(worker_id); });
  if (is_scored) s.pool->Run([&s](int worker_id) { s.ScoreSplits(worker_id); });
  return OkStatus();
}

}  // namespace kvlathe
