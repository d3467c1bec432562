#include "cuda/attention/prompt_items.h"

#include <algorithm>
#include <functional>

#include "cuda/attention/expand_runs.h"
#include "machine/attention/plan.h"

namespace kvlathe {
namespace {

using cuda::ExpandRun;
using cuda::PromptHead;
using cuda::PromptItem;
using cuda::PromptParams;

// Parts of fewer blocks would take longer to merge than they save.
constexpr int kFewestPartBlocks = 8;
// Items for each processor that make splits pointless.
constexpr int kItemsOfProcessor = 2;

int RowCount(const HeadJob& job) { return job.n_tokens * job.gqa_group; }

// The blocks that rows [begin, end) of a job see.
struct SeenBlocks {
  int begin = 0, end = 0;  // of blocks
  int entry_end = 0;
  int n() const { return std::max(0, end - begin); }
};
SeenBlocks BlocksSeen(const HeadJob& job, int row_begin, int row_end) {
  const int first = job.first_visible + row_begin / job.gqa_group;
  const int last = job.first_visible + (row_end - 1) / job.gqa_group;
  SeenBlocks seen;
  seen.entry_end = std::clamp(last, 0, job.n_entries);
  seen.end = (seen.entry_end + kBlockSize - 1) / kBlockSize;
  if (job.window > 0) seen.begin = std::max(0, first - job.window) / kBlockSize;
  return seen;
}

// The last run of a head that begins at or before a block.
int RunAt(const SealedHead& head, int block) {
  const auto behind = std::ranges::upper_bound(head.runs, block, {}, &SealedRun::first_block);
  return static_cast<int>(std::max<int64_t>(0, behind - head.runs.begin() - 1));
}

PromptParams LargestOf(std::span<const HeadJob> jobs) {
  PromptParams most;
  for (const HeadJob& job : jobs) {
    most.most_rank_k = std::max(most.most_rank_k, job.shape.rank_k);
    if (job.sinks.n > 0) most.most_rank_k = std::max(most.most_rank_k, job.head_dim);
    most.most_rank_v = std::max({most.most_rank_v, job.shape.rank_v, job.output_width()});
    most.most_width = std::max(most.most_width, job.output_width());
  }
  return most;
}

}  // namespace

PromptItems::~PromptItems() {
  if (partials_ != 0) memory_.Free(partials_);
}

bool PromptItems::Takes(const HeadJob& job) const {
  if (job.device != &memory_ || job.shape.row_type != DType::kBf16) return false;
  if (!job.latents.empty() || !job.frames.maps.empty() || job.frames.n_pairs > 0) return false;
  if (job.is_scored() || job.merged.n_closed != nullptr || !CanExpand(job.packed)) return false;
  const PromptParams most = LargestOf({&job, 1});
  if (most.most_rank_k % 16 != 0 || most.most_rank_v % 16 != 0) return false;
  return cuda::PromptSharedBytes(1, most.most_rank_k, most.most_rank_v) <= limits_.shared_bytes;
}

std::vector<ExpandRun> PromptItems::RunsOf(const HeadJob& job) const {
  const SealedHead& head = job.packed;
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

PromptHead PromptItems::HeadOf(const HeadJob& job) {
  const std::vector<ExpandRun> runs = RunsOf(job);
  std::vector<uint32_t> blocks;
  for (const ObjectId& block : job.blocks) blocks.push_back(memory_.PlaceOf(block));
  CudaStream& stream = memory_.stream();
  const int width = job.output_width();
  return {.rank_k = job.shape.rank_k,
          .rank_v = job.shape.rank_v,
          .width = width,
          .gqa_group = job.gqa_group,
          .q = memory_.As<const uint16_t>(job.q),
          .q_stride = job.q_stride,
          .blocks = stream.Send(std::span<const uint32_t>(blocks)),
          .runs = stream.Send(std::span<const ExpandRun>(runs)),
          .n_runs = static_cast<int>(runs.size()),
          .first_visible = job.first_visible,
          .window = job.window,
          .q_full = memory_.As<const uint16_t>(job.q_full),
          .q_full_stride = job.q_full_stride,
          .head_dim = job.head_dim,
          .sink_k = memory_.As<const uint16_t>(job.sinks.k),
          .sink_v = memory_.As<const uint16_t>(job.sinks.v),
          .n_sinks = job.sinks.n,
          .sinks_visible = job.sinks.first_visible,
          .sink_window = job.sinks.window,
          .out = memory_.At(job.out),
          .out_type = job.out_type,
          .out_stride = job.out_stride,
          .out_head_stride = job.out_head_stride > 0 ? job.out_head_stride : width};
}

int PromptItems::RowsOfItems(std::span<const HeadJob> jobs, const PromptParams& most) const {
  // More rows of an item share a block that was expanded, and fewer leave more items.
  int rows = cuda::kMostPromptRows;
  const auto n_items = [&] {
    int n = 0;
    for (const HeadJob& job : jobs) n += (RowCount(job) + rows - 1) / rows;
    return n;
  };
  const auto fits = [&] {
    return cuda::PromptSharedBytes(rows, most.most_rank_k, most.most_rank_v) <=
           limits_.shared_bytes;
  };
  const int fewest = cuda::kMostPromptRows / 2;
  while (rows > fewest && (!fits() || n_items() < kItemsOfProcessor * limits_.n_processors)) {
    rows /= 2;
  }
  return rows;
}

PromptItems::Plan PromptItems::PlanItems(std::span<const HeadJob> jobs, int rows,
                                         bool splits) const {
  int n_items = 0;
  for (const HeadJob& job : jobs) n_items += (RowCount(job) + rows - 1) / rows;
  const int wanted = kItemsOfProcessor * limits_.n_processors;
  const int most_parts = splits && n_items > 0 ? std::max(1, wanted / n_items) : 1;
  Plan plan;
  for (int j = 0; j < static_cast<int>(jobs.size()); ++j) {
    const HeadJob& job = jobs[j];
    const int n_rows = RowCount(job);
    for (int row = 0; row < n_rows; row += rows) {
      const int n = std::min(rows, n_rows - row);
      const SeenBlocks seen = BlocksSeen(job, row, row + n);
      const int n_parts = std::clamp(seen.n() / kFewestPartBlocks, 1, most_parts);
      if (n_parts > 1) {
        plan.splits.push_back({.head = j,
                               .row_begin = row,
                               .n_rows = n,
                               .n_parts = n_parts,
                               .partial_offset = plan.n_floats});
      }
      for (int part = 0; part < n_parts; ++part) {
        const auto begin_of = [&](int i) { return seen.begin + seen.n() * i / n_parts; };
        PromptItem item = {.head = j, .row_begin = row, .n_rows = n};
        item.entry_begin = part == 0 ? 0 : begin_of(part) * kBlockSize;
        item.entry_end = std::min(seen.entry_end, begin_of(part + 1) * kBlockSize);
        item.first_run = RunAt(job.packed, begin_of(part));
        if (n_parts > 1) {
          item.partial_offset = plan.n_floats;
          plan.n_floats += PartialFloats(n, job.output_width());
        }
        plan.items.push_back(item);
      }
    }
  }
  // Long ones first, so that none is left over at the end.
  std::ranges::stable_sort(plan.items, std::greater(), [](const PromptItem& item) {
    return item.entry_end - item.entry_begin;
  });
  return plan;
}

bool PromptItems::HoldPartials(int64_t n_floats) {
  if (n_floats <= n_floats_) return true;
  if (partials_ != 0) memory_.Free(partials_);
  partials_ = memory_.Allocate(n_floats * int64_t{sizeof(float)});
  n_floats_ = partials_ == 0 ? 0 : n_floats;
  return partials_ != 0;
}

void PromptItems::Attend(std::span<const HeadJob> jobs, float sm_scale) {
  if (jobs.empty()) return;
  CudaStream& stream = memory_.stream();
  PromptParams params = LargestOf(jobs);
  const int rows = RowsOfItems(jobs, params);
  Plan plan = PlanItems(jobs, rows, !is_deterministic_);
  if (!HoldPartials(plan.n_floats)) plan = PlanItems(jobs, rows, /*splits=*/false);
  std::vector<PromptHead> heads;
  for (const HeadJob& job : jobs) {
    heads.push_back(HeadOf(job));
    params.most_rows = std::max(params.most_rows, std::min(rows, RowCount(job)));
  }
  params.base = memory_.base();
  params.heads = stream.Send(std::span<const PromptHead>(heads));
  params.items = stream.Send(std::span<const PromptItem>(plan.items));
  params.n_items = static_cast<int>(plan.items.size());
  params.splits = stream.Send(std::span<const cuda::PromptSplit>(plan.splits));
  params.n_splits = static_cast<int>(plan.splits.size());
  params.sm_scale = sm_scale;
  if (partials_ != 0) params.partials = memory_.As<float>(ObjectPlace{{.region = partials_}});
  params.tables = MakeWindowTables();
  if (params.heads == nullptr || params.items == nullptr) return;  // the stream tells
  cuda::AttendPrompt(stream.get(), params);
  stream.Note(cudaGetLastError(), "attention of many rows");
}

}  // namespace kvlathe
