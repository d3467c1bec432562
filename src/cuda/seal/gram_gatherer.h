// GatherGrams of a machine on a GPU (machine/backend.h): sums by which sequences find their bases.
#pragma once

#include <cstdint>
#include <span>

#include "cuda/memory/cuda_device.h"
#include "cuda/memory/cuda_stream.h"
#include "machine/plans.h"
#include "tensor/dtype.h"

namespace kvlathe {

class GramGatherer {
 public:
  // `memory` has the rows; grams lie in the devices that plans name, which are CudaDevices. Both
  // outlive the gatherer.
  GramGatherer(CudaStream* stream, const CudaDevice* memory) : stream_(*stream), memory_(*memory) {}

  // Plans of one call have grams of their own.
  void Gather(std::span<const GramPlan> plans, int64_t n_dims, DType type);

 private:
  CudaStream& stream_;
  const CudaDevice& memory_;
};

}  // namespace kvlathe
