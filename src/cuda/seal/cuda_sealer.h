// Seal of a machine on a GPU (machine/backend.h): runs become packed blocks with the bytes that the
// CPU writes (cpu/kernels/seal/seal.h).
#pragma once

#include "cuda/memory/cuda_device.h"
#include "cuda/memory/cuda_stream.h"
#include "cuda/seal/row_flags.h"
#include "machine/backend.h"
#include "machine/plans.h"

namespace kvlathe {

class CudaSealer {
 public:
  // Blocks lie in the devices that plans name, which are CudaDevices. The stream outlives the
  // sealer.
  explicit CudaSealer(CudaStream* stream) : stream_(*stream), flags_(stream) {}

  // Whether there are kernels for such runs. Another machine has to seal the others.
  static bool Takes(const SealBatch& batch);
  // A batch that it takes.
  void Seal(const SealBatch& batch);
  // Waits for the GPU, and adds the sequences whose rows were not finite since the last call:
  // kDataLoss, and which head.
  void Report(StepReport* report) { flags_.Report(report); }

 private:
  CudaStream& stream_;
  RowFlags flags_;
};

}  // namespace kvlathe
