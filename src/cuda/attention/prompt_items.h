// Attention on a GPU by the kernel that expands blocks (cuda/kernels/attend/prefill.h): jobs of
// many rows, and those of any codec that no faster kernel reads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cuda/kernels/attend/prefill.h"
#include "cuda/memory/cuda_device.h"
#include "cuda/residents/cuda_residents.h"
#include "machine/attention/head_job.h"

namespace kvlathe {

// What a GPU has.
struct PromptLimits {
  int n_processors = 132;
  int64_t shared_bytes = int64_t{99} << 10;  // that a block of threads may take
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

  cuda::PromptHead HeadOf(const HeadJob& job);
  std::vector<cuda::ExpandRun> RunsOf(const HeadJob& job) const;
  int RowsOfItems(std::span<const HeadJob> jobs, const cuda::PromptParams& most) const;
  Plan PlanItems(std::span<const HeadJob> jobs, int rows, bool splits) const;
  // False where the GPU has no memory for them.
  bool HoldPartials(int64_t n_floats);

  CudaDevice& memory_;
  const CudaResidents& residents_;
  PromptLimits limits_;
  bool is_deterministic_ = false;
  uint32_t partials_ = 0;  // a region
  int64_t n_floats_ = 0;   // that it has
};

}  // namespace kvlathe
