#include "cuda/attention/prompt_plan.h"

#include <algorithm>
#include <functional>

#include "base/units.h"
#include "machine/attention/plan.h"

namespace kvlathe {
namespace {

static_assert(cuda::PromptPartialFloats(20, 48) == PartialFloats(20, 48));

// Parts of fewer blocks would take longer to merge than they save.
constexpr int kFewestPartBlocks = 8;
// Items for each processor that make splits pointless.
constexpr int kItemsOfProcessor = 2;

}  // namespace

int64_t RebuiltBytes(const PromptPart& part) {
  if (!part.is_rebuilt || part.slice > 0) return 0;  // slices share them
  const int64_t n_blocks = (part.job->n_entries + kBlockSize - 1) / kBlockSize;
  return n_blocks * KeyBytes({.rank_k = part.rank_k});
}
int64_t RebuiltBytes(std::span<const PromptPart> parts) {
  int64_t n_bytes = 0;
  for (const PromptPart& part : parts) n_bytes += RebuiltBytes(part);
  return n_bytes;
}

int64_t ScoreStride(const HeadJob& job) { return RoundUp(job.n_entries, kBlockSize); }
int64_t ScoreFloats(const PromptPart& part) {
  if (!part.is_scored) return 0;
  return part.n_rows() * ScoreStride(*part.job) + 2 * RoundUp(part.n_rows(), 4);
}
int64_t ScoreFloats(std::span<const PromptPart> parts) {
  int64_t n_floats = 0;
  for (const PromptPart& part : parts) n_floats += ScoreFloats(part);
  return n_floats;
}

std::vector<std::vector<PromptPart>> ScoredPieces(std::vector<PromptPart>* parts) {
  const HeadJob& job = *parts->front().job;
  const int group = parts->front().group(), first = std::max(0, job.first_scored) * group;
  const int64_t row_floats = ScoreStride(job) + 4;
  const int n_tokens =
      static_cast<int>(std::max<int64_t>(1, kMostScoreFloats / row_floats / group));
  std::vector<std::vector<PromptPart>> pieces;
  for (size_t i = 0; i < parts->size(); i += (*parts)[i].n_slices()) {
    for (int row = first; row < job.n_tokens * group; row += n_tokens * group) {
      pieces.emplace_back();
      for (int slice = 0; slice < (*parts)[i].n_slices(); ++slice) {
        PromptPart piece = (*parts)[i + slice];
        piece.row_begin = row;
        piece.row_end = std::min(row + n_tokens * group, job.n_tokens * group);
        piece.is_scored = slice == 0;
        pieces.back().push_back(piece);
      }
    }
  }
  for (PromptPart& part : *parts) part.row_end = first;
  if (first == 0) parts->clear();
  return pieces;
}

SeenBlocks BlocksSeen(const PromptPart& part, int row_begin, int row_end) {
  const HeadJob& job = *part.job;
  const int first = job.first_visible + row_begin / part.group();
  const int last = job.first_visible + (row_end - 1) / part.group();
  SeenBlocks seen;
  seen.entry_end = std::clamp(last, 0, job.n_entries);
  seen.end = (seen.entry_end + kBlockSize - 1) / kBlockSize;
  if (job.window > 0) seen.begin = std::max(0, first - job.window) / kBlockSize;
  return seen;
}

int RunAt(const SealedHead& head, int block) {
  const auto behind = std::ranges::upper_bound(head.runs, block, {}, &SealedRun::first_block);
  return static_cast<int>(std::max<int64_t>(0, behind - head.runs.begin() - 1));
}

cuda::PromptParams LargestOf(std::span<const PromptPart> parts) {
  cuda::PromptParams most;
  for (const PromptPart& part : parts) {
    const HeadJob& job = *part.job;
    most.most_rank_k = std::max(most.most_rank_k, part.rank_k);
    if (job.sinks.n > 0) most.most_rank_k = std::max(most.most_rank_k, job.head_dim);
    most.most_rank_v = std::max({most.most_rank_v, job.shape.rank_v, part.width()});
    most.most_width = std::max(most.most_width, part.width());
  }
  return most;
}

int RowsOfItems(std::span<const PromptPart> parts, const cuda::PromptParams& most,
                const PromptLimits& limits) {
  // More rows of an item share a block that was expanded, and fewer leave more items.
  int rows = cuda::kMostPromptRows;
  const auto n_items = [&] {
    int n = 0;
    for (const PromptPart& part : parts) n += (part.n_rows() + rows - 1) / rows;
    return n;
  };
  const auto fits = [&] {
    return cuda::PromptSharedBytes(rows, most.most_rank_k, most.most_rank_v) <= limits.shared_bytes;
  };
  const int fewest = cuda::kMostPromptRows / 2;
  while (rows > fewest && (!fits() || n_items() < kItemsOfProcessor * limits.n_processors)) {
    rows /= 2;
  }
  return rows;
}

PromptPlan PlanPromptItems(std::span<const PromptPart> parts, int rows, bool splits,
                           const PromptLimits& limits) {
  int n_items = 0;
  for (const PromptPart& part : parts) n_items += (part.n_rows() + rows - 1) / rows;
  const int wanted = kItemsOfProcessor * limits.n_processors;
  const int most_parts = splits && n_items > 0 ? std::max(1, wanted / n_items) : 1;
  PromptPlan plan;
  for (int j = 0; j < static_cast<int>(parts.size()); ++j) {
    const int end = parts[j].row_end;
    for (int row = parts[j].row_begin; row < end; row += rows) {
      const int n = std::min(rows, end - row);
      const SeenBlocks seen = BlocksSeen(parts[j], row, row + n);
      const int n_parts =
          parts[j].is_scored ? 1 : std::clamp(seen.n() / kFewestPartBlocks, 1, most_parts);
      if (n_parts > 1) {
        plan.splits.push_back({.head = j,
                               .row_begin = row,
                               .n_rows = n,
                               .n_parts = n_parts,
                               .partial_offset = plan.n_floats});
      }
      for (int part = 0; part < n_parts; ++part) {
        const auto begin_of = [&](int i) { return seen.begin + seen.n() * i / n_parts; };
        cuda::PromptItem item = {.head = j, .row_begin = row, .n_rows = n};
        item.entry_begin = part == 0 ? 0 : begin_of(part) * kBlockSize;
        item.entry_end = std::min(seen.entry_end, begin_of(part + 1) * kBlockSize);
        item.first_run = RunAt(parts[j].packed(), begin_of(part));
        if (n_parts > 1) {
          item.partial_offset = plan.n_floats;
          plan.n_floats += PartialFloats(n, parts[j].width());
        }
        plan.items.push_back(item);
      }
    }
  }
  // Long ones first, so that none is left over at the end.
  std::ranges::stable_sort(plan.items, std::greater(), [](const cuda::PromptItem& item) {
    return item.entry_end - item.entry_begin;
  });
  return plan;
}

}  // namespace kvlathe
