// Attention of steps that decode on a GPU: the planner (machine/attention/plan.h) shares the jobs
// out as if every multiprocessor were a worker, and the kernels of cuda/kernels/attend/decode.h do
// the rest, in two launches.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cuda/kernels/attend/decode.h"
#include "cuda/memory/cuda_device.h"
#include "cuda/memory/cuda_stream.h"
#include "machine/attention/head_job.h"
#include "machine/attention/plan.h"
#include "machine/attention/schedule.h"

namespace kvlathe {

class CudaAttention {
 public:
  // Jobs of more rows are a prompt's.
  static constexpr int kMostRows = 64;

  // All outlive it. Queries and outputs of jobs lie in `memory`, and their caches in CudaDevices.
  // The GPU has n_multiprocessors, and shared_bytes are what a block of threads may have.
  CudaAttention(CudaStream* stream, CudaDevice* memory, int n_multiprocessors,
                int64_t shared_bytes = kUsualSharedBytes);
  ~CudaAttention();
  CudaAttention(const CudaAttention&) = delete;
  CudaAttention& operator=(const CudaAttention&) = delete;

  // What every GPU since sm_80 has.
  static constexpr int64_t kUsualSharedBytes = 99 << 10;

  // With true, entries of a row are not split where others of the batch say so: every row gets the
  // bits that it has alone.
  void set_deterministic(bool deterministic) { is_deterministic_ = deterministic; }

  // Whether the kernels take the job: few rows in Bf16 over plain blocks, codes of even steps
  // without repairs, split bits, or coded rows; with windows, sinks and means that turn. Not:
  // votes, merged rows, latents, frames, tables, codebooks, rotations, rows with one side.
  bool Takes(const HeadJob& job) const;
  // Jobs that it takes. Finish of the stream fails where there is no memory for partial results.
  void Attend(std::span<const HeadJob> jobs, const ScoreRule& rule, Schedule schedule);

 private:
  struct Plans;  // what a call sends
  // A stretch of a job's tokens whose rows make an item.
  struct Part {
    int job_idx;
    int first_token;
  };

  void ListParts(std::span<const HeadJob> jobs);
  void AddJob(const HeadJob& job, Plans* plans);
  void AddRuns(const HeadJob& job, Plans* plans) const;
  void AddItems(const AttentionPlan& plan, std::span<const HeadJob> jobs, Plans* plans) const;
  void Launch(Plans* plans, const ScoreRule& rule);
  // Gives scored jobs their scores; false where there is no memory.
  bool PlaceScores(Plans* plans);
  void AddVotes(std::span<const HeadJob> jobs, const ScoreRule& rule, const Plans& plans);

  // Memory of the GPU that grows.
  struct Scratch {
    uint32_t region = 0;
    int64_t n_bytes = 0;
  };
  // Null where there is no memory.
  float* FloatsOf(Scratch* scratch, int64_t n_floats);

  CudaStream& stream_;
  CudaDevice& memory_;
  int n_multiprocessors_;
  int64_t shared_bytes_;
  bool is_deterministic_ = false;
  Planner planner_;
  std::unique_ptr<Plans> plans_;
  std::vector<Part> parts_;
  std::vector<JobSize> sizes_;
  Scratch partials_, scores_;
};

}  // namespace kvlathe
