// Attention on a GPU by the kernel that expands blocks (cuda/kernels/attend/prefill.h): jobs of
// many rows, and those of any codec that no faster kernel reads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cuda/attention/prompt_plan.h"
#include "cuda/kernels/attend/prefill.h"
#include "cuda/kernels/attend/rebuild.h"
#include "cuda/memory/cuda_device.h"
#include "cuda/residents/cuda_residents.h"
#include "machine/attention/head_job.h"

namespace kvlathe {

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
  void Attend(std::span<const HeadJob> jobs, const ScoreRule& rule);

 private:
  // Memory that is kept from call to call.
  struct Held {
    uint32_t region = 0;
    int64_t n_bytes = 0;
  };
  // What a part reads, on the GPU.
  using Sent = cuda::RebuildSlice;

  std::vector<PromptPart> PartsOf(const HeadJob& job) const;
  // Attends parts, as many at a time as rebuilt keys and scores leave room for.
  void AttendInTurns(std::span<const std::vector<PromptPart>> jobs, const ScoreRule& rule);
  // Attends parts whose rebuilt keys have room at once.
  void AttendParts(std::span<const PromptPart> parts, const ScoreRule& rule);
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
                const ScoreRule& rule);
  // False where the GPU has no memory for so much.
  bool Hold(Held* held, int64_t n_bytes);

  CudaDevice& memory_;
  const CudaResidents& residents_;
  PromptLimits limits_;
  bool is_deterministic_ = false;
  Held partials_, rebuilt_, scores_;
};

}  // namespace kvlathe
