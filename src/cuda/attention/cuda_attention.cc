#include "cuda/attention/cuda_attention.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/units.h"
#include "cuda/kernels/attend/attend_layout.h"
#include "cuda/kernels/retain/entry_scores.h"
#include "format/keys.h"

namespace kvlathe {
namespace {

using cuda::AttendLayout;
using cuda::DecodeItem;
using cuda::DecodeJob;
using cuda::DecodeRun;
using cuda::DecodeSplit;

// Of a multiprocessor. Only ratios matter: rows of an item are never so many that products take
// longer than reading.
constexpr CostModel kMultiprocessor = {
    .read_bytes_per_ns = 20, .flops_per_ns = 2000, .softmax_channels = 16, .item_ns = 4000};

// Of a multiprocessor, which have the registers of two blocks of threads with 8 rows.
constexpr int kItemsAtOnce = 2;
constexpr int32_t kAllBlocks = 1 << 24;

std::optional<AttendLayout> LayoutOf(const HeadJob& job, const SealedRun& run) {
  return cuda::LayoutOfRun(MakePackedShape(job.packed.format, job.shape, job.packed.storage,
                                           {.n_kv_heads = job.packed.n_kv_heads,
                                            .layer_rank_v = job.packed.layer_rank_v,
                                            .n_blocks = run.n_blocks,
                                            .is_prompt = run.is_prompt,
                                            .is_repaired = run.is_repaired,
                                            .entry_class = run.entry_class}));
}

bool LieAlike(const SealedRun& a, const SealedRun& b) {
  return a.is_prompt == b.is_prompt && a.is_repaired == b.is_repaired &&
         a.entry_class == b.entry_class;
}

bool HasLayouts(const HeadJob& job) {
  const SealedRun* before = nullptr;
  for (const SealedRun& run : job.packed.runs) {
    if ((before == nullptr || !LieAlike(*before, run)) && !LayoutOf(job, run).has_value()) {
      return false;
    }
    before = &run;
  }
  return true;
}

// Arrays that go to the device in one piece.
struct SentTogether {
  std::vector<std::byte> bytes;

  // Returns where the items begin.
  template <typename T>
  int64_t Add(std::span<const T> items) {
    const int64_t at = RoundUp(std::ssize(bytes), 16);
    bytes.resize(at);
    const auto from = std::as_bytes(items);
    bytes.insert(bytes.end(), from.begin(), from.end());
    return at;
  }
  template <typename T>
  int64_t Add(const std::vector<T>& items) {
    return Add(std::span<const T>(items));
  }
};

int TokensOfPart(const HeadJob& job) { return cuda::kMostDecodeRows / job.gqa_group; }

}  // namespace

// Memory stays from call to call: new pages would take longer than what is written to them.
struct CudaAttention::Plans {
  std::vector<uint32_t> places;
  std::vector<DecodeRun> runs;
  std::vector<AttendLayout> layouts;
  std::vector<DecodeJob> jobs;
  std::vector<DecodeItem> items;
  std::vector<DecodeSplit> splits;
  int64_t n_partial_floats = 0;
  // Of jobs that are scored.
  struct Votes {
    int job_idx;
    int64_t n_rows, stride;
  };
  std::vector<Votes> votes;
  SentTogether sent;

  void Clear() {
    places.clear();
    runs.clear();
    layouts.clear();
    jobs.clear();
    items.clear();
    splits.clear();
    n_partial_floats = 0;
    votes.clear();
    sent.bytes.clear();
  }
  int LayoutIdx(const AttendLayout& layout) {
    const auto same = std::ranges::find_if(layouts, [&](const AttendLayout& other) {
      return std::memcmp(&layout, &other, sizeof(layout)) == 0;
    });
    if (same == layouts.end()) {
      layouts.push_back(layout);
      return static_cast<int>(layouts.size()) - 1;
    }
    return static_cast<int>(same - layouts.begin());
  }
};

CudaAttention::CudaAttention(CudaStream* stream, CudaDevice* memory, int n_multiprocessors,
                             int64_t shared_bytes)
    : stream_(*stream),
      memory_(*memory),
      n_multiprocessors_(n_multiprocessors),
      shared_bytes_(shared_bytes),
      planner_(kMultiprocessor),
      plans_(std::make_unique<Plans>()) {}

CudaAttention::~CudaAttention() {
  for (const Scratch& scratch : {partials_, scores_}) {
    if (scratch.region != 0) memory_.Free(scratch.region);
  }
}

bool CudaAttention::Takes(const HeadJob& job) const {
  const int n_rows = job.n_tokens * job.gqa_group;
  if (n_rows > kMostRows || job.gqa_group > cuda::kMostDecodeRows) return false;
  if (job.shape.row_type != DType::kBf16 || job.shape.has_one_side) return false;
  if (!job.latents.empty() || job.merged.n_closed != nullptr) return false;
  if (job.is_scored() && job.takes_largest) return false;
  if (!job.frames.maps.empty() || job.frames.n_pairs > kMostTurningPairs) return false;
  if (job.sinks.n > cuda::kMostSinks || job.output_width() % 16 != 0 || job.head_dim % 2 != 0) {
    return false;
  }
  if (job.packed.format.seals_keys_before_rope() || !HasLayouts(job)) return false;
  const cuda::DecodeParams params = {.max_rows = cuda::kMostDecodeRows,
                                     .max_rank_k = job.shape.rank_k,
                                     .max_rank_v = job.shape.rank_v,
                                     .max_sinks = job.sinks.n,
                                     .max_pairs = job.frames.n_pairs};
  return cuda::WarpsThatFit(params, shared_bytes_) > 0;
}

void CudaAttention::ListParts(std::span<const HeadJob> jobs) {
  parts_.clear();
  sizes_.clear();
  for (size_t i = 0; i < jobs.size(); ++i) {
    const HeadJob& job = jobs[i];
    const int step = TokensOfPart(job);
    for (int token = 0; token < job.n_tokens; token += step) {
      parts_.push_back({static_cast<int>(i), token});
      sizes_.push_back({.n_tokens = std::min(step, job.n_tokens - token),
                        .gqa_group = job.gqa_group,
                        .n_entries = job.n_entries,
                        .first_visible = job.first_visible + token,
                        .rank_k = job.shape.rank_k,
                        .rank_v = job.output_width()});
    }
  }
}

// One after the other, those that lie alike and have no records as one.
void CudaAttention::AddRuns(const HeadJob& job, Plans* plans) const {
  const auto& cache = static_cast<const CudaDevice&>(*job.device);
  const SealedRun* before = nullptr;
  int end = 0;
  for (const SealedRun& run : job.packed.runs) {
    const bool is_alone = run.record.is_null() && run.layer_record.is_null();
    end = run.first_block + run.n_blocks;
    if (before != nullptr && LieAlike(*before, run)) {
      DecodeRun& last = plans->runs.back();
      if (is_alone && last.record == nullptr && last.layer_record == nullptr) {
        last.n_blocks = end - last.first_block;
        continue;
      }
    }
    const std::optional<AttendLayout> layout = LayoutOf(job, run);
    plans->runs.push_back({.first_block = run.first_block,
                           .n_blocks = run.n_blocks,
                           .layout_idx = plans->LayoutIdx(*layout),
                           .record = cache.At(run.record),
                           .layer_record = cache.At(run.layer_record)});
    before = &run;
  }
  const AttendLayout open =
      job.packed.open.n_blocks > 0 ? cuda::CodedLayout(job.shape) : cuda::PlainLayout(job.shape);
  plans->runs.push_back(
      {.first_block = end, .n_blocks = kAllBlocks, .layout_idx = plans->LayoutIdx(open)});
}

void CudaAttention::AddJob(const HeadJob& job, Plans* plans) {
  const auto& cache = static_cast<const CudaDevice&>(*job.device);
  const auto first_place = static_cast<int32_t>(plans->places.size());
  const auto first_run = static_cast<int32_t>(plans->runs.size());
  const int n_blocks = (job.n_entries + kBlockSize - 1) / kBlockSize;
  for (int b = 0; b < n_blocks; ++b) plans->places.push_back(cache.PlaceOf(job.blocks[b]));
  AddRuns(job, plans);
  if (job.is_scored()) {
    plans->votes.push_back({.job_idx = static_cast<int>(plans->jobs.size()),
                            .n_rows = int64_t{job.n_tokens} * job.gqa_group,
                            .stride = RoundUp(job.n_entries, kBlockSize)});
  }
  const FrameIds& frames = job.frames;
  plans->jobs.push_back({.base = cache.base(),
                         .q = memory_.At(job.q),
                         .q_stride = job.q_stride,
                         .q_full = memory_.At(job.q_full),
                         .q_full_stride = job.q_full_stride,
                         .first_place = first_place,
                         .first_run = first_run,
                         .sink_k = cache.At(job.sinks.k),
                         .sink_v = cache.At(job.sinks.v),
                         .out = memory_.At(job.out),
                         .out_stride = job.out_stride,
                         .out_head_stride = job.out_head_stride,
                         .mean = {.mean = memory_.As<const float>(frames.turning_mean),
                                  .angles = memory_.As<const float>(frames.mean_angles),
                                  .cos = memory_.As<const float>(frames.cos),
                                  .sin = memory_.As<const float>(frames.sin),
                                  .n_pairs = frames.n_pairs,
                                  .n_joined = frames.n_joined,
                                  .half = frames.half,
                                  .head_dim = frames.head_dim,
                                  .first_position = frames.first_position,
                                  .way_back = frames.way_back},
                         .out_type = job.out_type,
                         .rank_k = job.shape.rank_k,
                         .rank_v = job.shape.rank_v,
                         .width = job.output_width(),
                         .head_dim = job.head_dim,
                         .gqa_group = job.gqa_group,
                         .first_visible = job.first_visible,
                         .window = job.window,
                         .n_sinks = job.sinks.n,
                         .first_sinks_visible = job.sinks.first_visible,
                         .sink_window = job.sinks.window,
                         .sink_logits = memory_.As<const float>(job.sink_logits),
                         .lost_keys = memory_.As<const float>(job.lost_keys)});
}

void CudaAttention::AddItems(const AttentionPlan& plan, std::span<const HeadJob> jobs,
                             Plans* plans) const {
  for (const WorkItem& item : plan.items) {
    const Part& part = parts_[item.job_idx];
    const DecodeRun* const runs = &plans->runs[plans->jobs[part.job_idx].first_run];
    int run = 0;
    const int block = item.entry_begin / kBlockSize;
    while (block >= runs[run].first_block + runs[run].n_blocks) ++run;
    plans->items.push_back(
        {.job_idx = part.job_idx,
         .row_begin = part.first_token * jobs[part.job_idx].gqa_group + item.row_begin,
         .n_rows = item.row_end - item.row_begin,
         .entry_begin = item.entry_begin,
         .entry_end = item.entry_end,
         .first_run = run,
         .partial_offset = item.partial_offset});
  }
  for (const SplitRows& split : plan.splits) {
    const Part& part = parts_[split.job_idx];
    plans->splits.push_back(
        {.job_idx = part.job_idx,
         .row_begin = part.first_token * jobs[part.job_idx].gqa_group + split.row_begin,
         .n_rows = split.row_end - split.row_begin,
         .n_parts = split.n_parts,
         .partial_offset = split.partial_offset});
  }
  plans->n_partial_floats = plan.workspace_floats;
}

float* CudaAttention::FloatsOf(Scratch* scratch, int64_t n_floats) {
  const int64_t n_bytes = n_floats * static_cast<int64_t>(sizeof(float));
  if (n_bytes > scratch->n_bytes) {
    if (scratch->region != 0) memory_.Free(scratch->region);
    const int64_t rounded = RoundUp(n_bytes, int64_t{1} << 20);
    scratch->region = memory_.Allocate(rounded);
    scratch->n_bytes = scratch->region == 0 ? 0 : rounded;
    if (scratch->region == 0) {
      stream_.Note(Error(StatusCode::kResourceExhausted,
                         "the GPU has no {} for attention's partial results and scores; give the "
                         "cache less of its memory",
                         FormatBytes(rounded)));
      return nullptr;
    }
  }
  return reinterpret_cast<float*>(memory_.At(ObjectId{.region = scratch->region}));
}

bool CudaAttention::PlaceScores(Plans* plans) {
  int64_t n_floats = 0;
  for (const Plans::Votes& votes : plans->votes) n_floats += votes.n_rows * (votes.stride + 2);
  if (n_floats == 0) return true;
  float* floats = FloatsOf(&scores_, n_floats);
  if (floats == nullptr) return false;
  for (const Plans::Votes& votes : plans->votes) {
    DecodeJob& job = plans->jobs[votes.job_idx];
    job.scores = floats;
    job.scores_stride = votes.stride;
    job.row_max = floats + votes.n_rows * votes.stride;
    job.row_sum = job.row_max + votes.n_rows;
    floats = job.row_sum + votes.n_rows;
  }
  return true;
}

void CudaAttention::AddVotes(std::span<const HeadJob> jobs, const ScoreRule& rule,
                             const Plans& plans) {
  std::vector<cuda::EntryScoreItem> items;
  int most_rows = 0, most_entries = 0;
  for (const Plans::Votes& votes : plans.votes) {
    const HeadJob& job = jobs[votes.job_idx];
    const DecodeJob& at = plans.jobs[votes.job_idx];
    const int first_row = job.first_scored * job.gqa_group;
    cuda::EntryScoreItem item = {
        .scores = at.scores + first_row * at.scores_stride,
        .stride = at.scores_stride,
        .n_rows = static_cast<int>(votes.n_rows) - first_row,
        .gqa_group = job.gqa_group,
        .first_visible = job.first_visible + job.first_scored,
        .n_entries = job.n_entries,
        .sm_scale = rule.scale,
        .row_max = at.row_max + first_row,
        .row_sum = at.row_sum + first_row,
        .has_noise = job.noise != nullptr,
        .table = static_cast<const CudaDevice&>(*job.device).At(job.scored.object)};
    if (job.noise != nullptr) {
      item.noise = *job.noise;
      item.noise.first_position += job.first_scored;
      item.noise.temperature += static_cast<float>(job.first_scored) * item.noise.temperature_step;
    }
    items.push_back(item);
    most_rows = std::max(most_rows, item.n_rows);
    most_entries = std::max(most_entries, item.n_entries);
  }
  const cuda::EntryScoreItem* const sent =
      stream_.Send(std::span<const cuda::EntryScoreItem>(items));
  if (sent == nullptr) return;  // none, or Finish tells
  cuda::AddEntryScores(stream_.get(), sent, static_cast<int>(items.size()), most_rows,
                       most_entries);
  stream_.Note(cudaGetLastError(), "votes");
}

void CudaAttention::Launch(Plans* of_call, const ScoreRule& rule) {
  const Plans& plans = *of_call;
  cuda::DecodeParams params;
  for (const DecodeJob& job : plans.jobs) {
    params.max_rank_k = std::max(params.max_rank_k, job.rank_k);
    params.max_rank_v = std::max(params.max_rank_v, job.rank_v);
    params.max_sinks = std::max(params.max_sinks, job.n_sinks);
    params.max_pairs = std::max(params.max_pairs, job.mean.n_pairs);
  }
  SentTogether& sent = of_call->sent;
  const int64_t places = sent.Add(plans.places), runs = sent.Add(plans.runs);
  const int64_t jobs = sent.Add(plans.jobs), items = sent.Add(plans.items);
  const int64_t splits = sent.Add(plans.splits), layouts = sent.Add(plans.layouts);
  static const cuda::AttendTables kTables = cuda::MakeAttendTables();
  const int64_t tables = sent.Add(std::span(&kTables, 1));
  const std::byte* const at = stream_.Send(std::span<const std::byte>(sent.bytes));
  params.partials = FloatsOf(&partials_, plans.n_partial_floats);
  if (at == nullptr || (plans.n_partial_floats > 0 && params.partials == nullptr)) {
    return;  // Finish tells
  }
  params.places = reinterpret_cast<const uint32_t*>(at + places);
  params.runs = reinterpret_cast<const DecodeRun*>(at + runs);
  params.jobs = reinterpret_cast<const DecodeJob*>(at + jobs);
  params.items = reinterpret_cast<const DecodeItem*>(at + items);
  params.n_items = static_cast<int32_t>(plans.items.size());
  params.splits = reinterpret_cast<const DecodeSplit*>(at + splits);
  params.n_splits = static_cast<int32_t>(plans.splits.size());
  params.layouts = reinterpret_cast<const AttendLayout*>(at + layouts);
  params.tables = reinterpret_cast<const cuda::AttendTables*>(at + tables);
  params.sm_scale = rule.scale;
  params.score_cap = rule.cap;
  // The warps of an item are as many whatever its rows, for their bits.
  params.max_rows = cuda::kMostDecodeRows;
  params.n_warps = cuda::WarpsThatFit(params, shared_bytes_);
  int most_rows = 0;
  for (const DecodeItem& item : plans.items) most_rows = std::max(most_rows, item.n_rows);
  if (most_rows <= 8) params.max_rows = 8;
  cuda::AttendDecode(stream_.get(), params);
  stream_.Note(cudaGetLastError(), "attention");
}

void CudaAttention::Attend(std::span<const HeadJob> jobs, const ScoreRule& rule,
                           Schedule schedule) {
  ListParts(jobs);
  if (is_deterministic_ && schedule == Schedule::kBalanced) schedule = Schedule::kLpt;
  const AttentionPlan& plan = planner_.Plan(sizes_, kItemsAtOnce * n_multiprocessors_, schedule);
  plans_->Clear();
  for (const HeadJob& job : jobs) AddJob(job, plans_.get());
  AddItems(plan, jobs, plans_.get());
  if (!PlaceScores(plans_.get())) return;
  Launch(plans_.get(), rule);
  AddVotes(jobs, rule, *plans_);
}

}  // namespace kvlathe
