// A GPU as a machine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "base/cpu_features.h"
#include "base/status.h"
#include "base/threads.h"
#include "cpu/cpu_backend.h"
#include "cuda/cuda_backend.h"
#include "machine/machine.h"

namespace kvlathe {

struct CudaOptions {
  int device = 0;  // number of the GPU, as CUDA counts them
  // Bytes of its memory for weights, activations and caches; 0: all that is free but for what the
  // runtime and kernels need themselves.
  int64_t memory_bytes = 0;
  // False: every verb runs on the host, for tests.
  bool uses_kernels = true;
  // Called with the name of a verb the first time that it runs on the host, because it has no
  // kernel for what is asked of it. Null: nobody is told.
  std::function<void(std::string_view verb)> on_host_verb;
  // For tests: what the block pool takes back becomes NaN, and so is memory of the host that stands
  // in for the GPU's, where a verb does not say that it reads.
  bool looks_for_mistakes = false;
};

class CudaMachine : public Machine {
 public:
  // Takes the memory at once. What has no kernel runs on the workers of `pool`, which outlives the
  // machine, with the CPU's kernels of `isa`. kUnavailable where there is no GPU, no driver or one
  // that is too old; kInvalidArgument for a number or a size that does not exist;
  // kResourceExhausted.
  static StatusOr<std::shared_ptr<CudaMachine>> Create(const CudaOptions& options, ThreadPool* pool,
                                                       Isa isa);

  // CpuBackend::set_ranks.
  void set_ranks(Communicator* ranks) { host_verbs_->set_ranks(ranks); }

  Device& memory() override { return *memory_; }
  Residents& residents() override { return *residents_; }
  Backend& backend() override { return *backend_; }
  ThreadPool& host_threads() override { return pool_; }

  // For kernels' tests.
  CudaDevice& cuda_memory() { return *memory_; }
  CudaResidents& cuda_residents() { return *residents_; }

 private:
  explicit CudaMachine(ThreadPool* pool) : pool_(*pool) {}

  ThreadPool& pool_;
  std::unique_ptr<CudaStream> stream_;
  std::unique_ptr<CudaDevice> memory_;
  // The host's side: address space for copies of residents, and what verbs without kernels run in.
  CpuDevice host_memory_;
  CpuResidents host_residents_{&host_memory_};
  std::unique_ptr<CudaResidents> residents_;
  std::unique_ptr<ShadowDevice> shadow_;
  std::unique_ptr<CpuBackend> host_verbs_;
  std::unique_ptr<Mirror> mirror_;
  std::unique_ptr<CudaBackend> backend_;
};

}  // namespace kvlathe
