// Finds the largest numbers of rows on a GPU.
#pragma once

#include <vector>

#include "cuda/memory/cuda_device.h"
#include "machine/machine_buffer.h"
#include "machine/plans.h"

namespace kvlathe {

class LargestFinder {
 public:
  // The device outlives it.
  explicit LargestFinder(CudaDevice* memory) : memory_(*memory) {}

  // Backend::FindLargest; nothing where there is no memory for it.
  std::vector<LargestNumbers> Find(const LargestPlan& plan);

 private:
  CudaDevice& memory_;
  MachineBuffer scratch_;
};

}  // namespace kvlathe
