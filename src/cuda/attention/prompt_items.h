// Attention on a GPU by the kernel that expands blocks (cuda/kernels/attend/prefill.h): jobs of
// many rows, and those of any codec that no faster kernel reads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/kernels/attend/prefill.h"
#include "cuda/kernels/attend/rebuild.h"
#include "cuda/memory/cuda_device.h"
#include "cuda/residents/cuda_residents.h"
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

class PromptItems {
 public:
  // Both outlive it.
  PromptItems(CudaDevice* memory, const CudaResidents* residents, const PromptLimits& limits)
      : memory_(*memory), residents_(*residents), limits_(limits) {}
  ~PromptItems();
  PromptItems(const PromptItems&) = delete;
  PromptItems& operator=(const PromptItems&) = delete;

  // With true, the bits of a row do not depend on the other jobs of a call.
  void set_deterministic(bool deterministic) { is_deterministic_ = deterministic; }
  // Whether the kernel can compute a job.
  bool Takes(const HeadJob& job) const;
  // Puts the attention of jobs that it takes, all of one layer, into the stream.
  void Attend(std::span<const HeadJob> jobs, float sm_scale);

 private:
  struct Plan {
    std::vector<cuda::PromptItem> items;
    std::vector<cuda::PromptSplit> splits;
    int64_t n_floats = 0;  // of partial results
  };
  // Memory that is kept from call to call.
  struct Held {
    uint32_t region = 0;
    int64_t n_bytes = 0;
  };
  // What a part reads, on the GPU.
  using Sent = cuda::RebuildSlice;

  std::vector<PromptPart> PartsOf(const HeadJob& job) const;
  // Attends parts, as many at a time as rebuilt keys and scores leave room for.
  void AttendInTurns(std::span<const std::vector<PromptPart>> jobs, float sm_scale);
  // Attends parts whose rebuilt keys have room at once.
  void AttendParts(std::span<const PromptPart> parts, float sm_scale);
  Sent SendBlocks(const PromptPart& part);
  std::vector<cuda::ExpandRun> RunsOf(const PromptPart& part) const;
  cuda::PromptHead HeadOf(const PromptPart& part, const Sent& sent) const;
  cuda::RebuildHead RebuildHeadOf(const PromptPart& part) const;
  void AddFrames(const PromptPart& part, cuda::RebuildHead* head) const;
  void AddLatents(const PromptPart& part, cuda::RebuildHead* head) const;
  void Rebuild(std::span<const PromptPart> parts, std::span<const Sent> sent,
               std::span<cuda::PromptHead> heads);
  // Sets where the scores of parts go; false where the GPU has no memory for them.
  bool PlaceScores(std::span<const PromptPart> parts, std::span<cuda::PromptHead> heads);
  void AddVotes(std::span<const PromptPart> parts, std::span<const cuda::PromptHead> heads,
                float sm_scale);
  int RowsOfItems(std::span<const PromptPart> parts, const cuda::PromptParams& most) const;
  Plan PlanItems(std::span<const PromptPart> parts, int rows, bool splits) const;
  // False where the GPU has no memory for so much.
  bool Hold(Held* held, int64_t n_bytes);

  CudaDevice& memory_;
  const CudaResidents& residents_;
  PromptLimits limits_;
  bool is_deterministic_ = false;
  Held partials_, rebuilt_, scores_;
};

}  // namespace kvlathe
