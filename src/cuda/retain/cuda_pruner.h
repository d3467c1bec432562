// Drops entries of caches on a GPU: the host chooses by their votes, and rows move where they lie.
#pragma once

#include <vector>

#include "cuda/memory/cuda_device.h"
#include "machine/plans.h"

namespace kvlathe {

class CudaPruner {
 public:
  // The device outlives it.
  explicit CudaPruner(CudaDevice* memory) : memory_(*memory) {}

  // Whether all entries lie in plain blocks and are not sorted by class.
  static bool Takes(const PrunePlan& plan);
  // Backend::Prune of such a plan. It waits for the votes.
  void Prune(const PrunePlan& plan);

 private:
  CudaDevice& memory_;
};

}  // namespace kvlathe
