// Append of a machine on a GPU (machine/backend.h): new rows go into open blocks, and sinks are
// copied.
#pragma once

#include "cuda/memory/cuda_device.h"
#include "cuda/memory/cuda_stream.h"
#include "cuda/seal/row_flags.h"
#include "machine/backend.h"
#include "machine/plans.h"

namespace kvlathe {

class CudaAppender {
 public:
  // `memory` has the rows; blocks lie in the devices that plans name, which are CudaDevices too.
  // Both outlive the appender.
  CudaAppender(CudaStream* stream, CudaDevice* memory)
      : stream_(*stream), memory_(*memory), flags_(stream) {}

  void Append(const AppendPlan& plan);
  // Waits for the GPU, and adds the sequences whose rows could not be coded since the last call:
  // kDataLoss.
  void Report(StepReport* report) { flags_.Report(report); }

 private:
  CudaStream& stream_;
  const CudaDevice& memory_;
  RowFlags flags_;
};

}  // namespace kvlathe
