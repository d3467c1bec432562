// How jobs of many rows are cut for a GPU: into parts, pieces and items. Sizes alone decide.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/kernels/attend/prefill.h"
#include "machine/attention/head_job.h"

namespace kvlathe {

// What a GPU has.
struct PromptLimits {
  int n_processors = 132;
  int64_t shared_bytes = int64_t{99} << 10;  // that a block of threads may take
};

// A job, or a piece of it where keys are rebuilt: the query heads that share a KV head of the
// model, and of latents that several heads share the values of one slice. Rows of a part are
// numbered as those of a job with so many heads.
struct PromptPart {
  const HeadJob* job = nullptr;
  bool is_rebuilt = false;
  int map = 0;     // KV head of the model of those that the head joins
  int n_maps = 1;  // of these
  int slice = 0;
  int rank_k = 0;  // of keys that queries meet
  int row_begin = 0, row_end = 0;
  bool is_scored = false;  // whether its entries get the votes of its rows

  int group() const { return job->gqa_group / n_maps; }  // query heads
  int first_head() const { return map * group(); }
  int n_rows() const { return row_end - row_begin; }
  int n_slices() const { return std::max<int>(1, static_cast<int>(job->latents.slices.size())); }
  bool has_slices() const { return !job->latents.slices.empty(); }
  std::span<const ObjectId> blocks() const {
    return has_slices() ? job->latents.slices[slice].blocks : job->blocks;
  }
  const SealedHead& packed() const {
    return has_slices() ? job->latents.slices[slice].packed : job->packed;
  }
  int width() const { return has_slices() ? job->shape.rank_v : job->output_width(); }
};

// The blocks that rows [begin, end) of a part see.
struct SeenBlocks {
  int begin = 0, end = 0;  // of blocks
  int entry_end = 0;
  int n() const { return std::max(0, end - begin); }
};
SeenBlocks BlocksSeen(const PromptPart& part, int row_begin, int row_end);

// The last run of a head that begins at or before a block.
int RunAt(const SealedHead& head, int block);

// The largest sizes of parts, and nothing else.
cuda::PromptParams LargestOf(std::span<const PromptPart> parts);

// Bytes of the keys that are rebuilt for parts; slices share them.
int64_t RebuiltBytes(const PromptPart& part);
int64_t RebuiltBytes(std::span<const PromptPart> parts);

// Scores of a call take about so many floats at most, but for those of a single token.
inline constexpr int64_t kMostScoreFloats = int64_t{16} << 20;
// From row to row of scores.
int64_t ScoreStride(const HeadJob& job);
// Floats of the scores of parts, with the maxima and sums of their rows behind them.
int64_t ScoreFloats(const PromptPart& part);
int64_t ScoreFloats(std::span<const PromptPart> parts);

// Cuts the scored rows of a job off its parts, in pieces whose scores have room. Parts of the same
// rows stay together.
std::vector<std::vector<PromptPart>> ScoredPieces(std::vector<PromptPart>* parts);

// How many rows a full item has. `most`: LargestOf the parts.
int RowsOfItems(std::span<const PromptPart> parts, const cuda::PromptParams& most,
                const PromptLimits& limits);

struct PromptPlan {
  std::vector<cuda::PromptItem> items;  // long ones first
  std::vector<cuda::PromptSplit> splits;
  int64_t n_floats = 0;  // of partial results
};
// `rows`: RowsOfItems. `splits`: whether entries are split where there are few items.
PromptPlan PlanPromptItems(std::span<const PromptPart> parts, int rows, bool splits,
                           const PromptLimits& limits);

}  // namespace kvlathe
