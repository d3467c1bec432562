// What the kernels of sealing get of a batch: its heads with addresses, and the blocks that they
// take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/kernels/seal/lowrank.h"
#include "cuda/kernels/seal/sealed_head.h"
#include "cuda/memory/cuda_device.h"
#include "cuda/memory/cuda_stream.h"
#include "cuda/residents/cuda_residents.h"
#include "format/packed_layout.h"
#include "machine/plans.h"

namespace kvlathe {

// What a run of a head is stored as.
PackedShape ShapeOf(const SealBatch& batch, const SealRunPlan& run, const SealHeadPlan& head);

class SealLists {
 public:
  // `memory` has the angles of rotations. `residents` may be null where the batch has no codebooks.
  SealLists(const SealBatch& batch, const CudaDevice& memory, const CudaResidents* residents);

  // Sends all lists to the device and sets them in the parameters of kernels. False where the
  // system has no memory for them, which the stream's Finish tells.
  bool Send(CudaStream* stream, cuda::SealKernelParams* params);

  // Lays out what repairs need besides the objects, from `scratch` on; null only counts. Returns
  // the bytes, a multiple of 256. Before Send.
  int64_t LayOutRepairs(std::byte* scratch);
  // Both sides of heads whose runs have low-rank factors, with scratch of their own. Sends what
  // they begin with. Behind LayOutRepairs and before Send.
  bool SendFits(CudaStream* stream, cuda::LowRankParams* params) const;

  bool has_exact() const { return has_exact_; }
  bool has_lowrank() const { return has_lowrank_; }
  // Of all heads, in the order of the batch.
  int n_heads() const { return static_cast<int>(heads_.size()); }
  // Where blocks of K begin that share the scales of their channels.
  const std::vector<cuda::SealedPlace>& spans() const { return spans_; }
  // Every block of every run, with the first of the heads that share its layer record.
  const std::vector<cuda::SealedPlace>& layer_places() const { return layer_places_; }

 private:
  void AddRun(const SealBatch& batch, const SealRunPlan& run);
  cuda::SealedModel ModelOf(const SealBatch& batch, const SealRunPlan& run, int head) const;
  void AddBlocks(const SealRunPlan& run, const SealHeadPlan& head);

  // What draws the start of a head's factors.
  struct Draw {
    uint64_t seed = 0;
    uint64_t head_idx = 0;  // in the whole model
  };
  // A side of a head whose residual gets factors.
  struct FitPlace {
    int head = 0;
    bool is_key = true;
    std::byte* scratch = nullptr;
  };

  const CudaDevice& memory_;
  const CudaResidents* residents_;
  bool has_exact_ = false, has_lowrank_ = false;
  std::vector<cuda::SealedHeadRun> heads_;
  std::vector<Draw> draws_;  // [heads]
  std::vector<FitPlace> fits_;
  std::vector<const std::byte*> blocks_;  // of all heads, one behind the other
  std::vector<std::byte*> packed_;
  std::vector<cuda::SealedPlace> places_, spans_, layer_places_;
};

}  // namespace kvlathe
