// Attention on a GPU by the kernel that expands blocks (cuda/kernels/attend/prefill.h): jobs of
// many rows, and those of any codec that no faster kernel reads.
#pragma once

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

// A job, or its query heads that share a KV head of the model, where keys are rebuilt for each of
// these. Rows of a part are numbered as those of a job with so many heads.
struct PromptPart {
  const HeadJob* job = nullptr;
  int map = -1;  // of the KV head; negative: all of the job

  bool is_rebuilt() const { return map >= 0; }
  int group() const {  // query heads
    return is_rebuilt() ? job->gqa_group / static_cast<int>(job->rebuilt.keys.size())
                        : job->gqa_group;
  }
  int first_head() const { return is_rebuilt() ? map * group() : 0; }
  int rank_k() const { return is_rebuilt() ? job->rebuilt.head_dim : job->shape.rank_k; }
  int n_rows() const { return job->n_tokens * group(); }
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
  struct Sent {
    const uint32_t* blocks;
    const cuda::ExpandRun* runs;
    int n_runs;
  };

  // Attends parts whose rebuilt keys have room at once.
  void AttendParts(std::span<const PromptPart> parts, float sm_scale);
  Sent SendBlocks(const HeadJob& job);
  std::vector<cuda::ExpandRun> RunsOf(const HeadJob& job) const;
  cuda::PromptHead HeadOf(const PromptPart& part, const Sent& sent) const;
  cuda::RebuildHead RebuildHeadOf(const PromptPart& part, const Sent& sent) const;
  void Rebuild(std::span<const PromptPart> parts, std::span<const Sent> sent,
               std::span<cuda::PromptHead> heads);
  int RowsOfItems(std::span<const PromptPart> parts, const cuda::PromptParams& most) const;
  Plan PlanItems(std::span<const PromptPart> parts, int rows, bool splits) const;
  // False where the GPU has no memory for so much.
  bool Hold(Held* held, int64_t n_bytes);

  CudaDevice& memory_;
  const CudaResidents& residents_;
  PromptLimits limits_;
  bool is_deterministic_ = false;
  Held partials_, rebuilt_;
};

}  // namespace kvlathe
