// Seal of a machine on a GPU (machine/backend.h): runs become packed blocks with the bytes that the
// CPU writes (cpu/kernels/seal/seal.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/memory/cuda_device.h"
#include "cuda/memory/cuda_stream.h"
#include "cuda/residents/cuda_residents.h"
#include "cuda/seal/row_flags.h"
#include "cuda/seal/seal_lists.h"
#include "machine/backend.h"
#include "machine/plans.h"

namespace kvlathe {

class CudaSealer {
 public:
  // Blocks lie in the devices that plans name, which are CudaDevices; `memory` has the angles of
  // rotations. All outlive the sealer.
  CudaSealer(CudaStream* stream, const CudaDevice* memory, const CudaResidents* residents)
      : stream_(*stream), memory_(*memory), residents_(*residents), flags_(stream) {}
  ~CudaSealer();
  CudaSealer(const CudaSealer&) = delete;
  CudaSealer& operator=(const CudaSealer&) = delete;

  // Whether there are kernels for such runs. Another machine has to seal the others.
  bool Takes(const SealBatch& batch) const;
  // A batch that it takes.
  void Seal(const SealBatch& batch);
  // Waits for the GPU, and adds the sequences whose rows were not finite since the last call:
  // kDataLoss, and which head. kResourceExhausted for all of a batch where the system had no memory
  // for what codes lose.
  void Report(StepReport* report) { flags_.Report(report); }

  // Bytes on the device besides caches: what codes lose of the largest batch that is repaired.
  int64_t scratch_bytes() const { return n_scratch_; }

 private:
  // Scratch of at least n_bytes; its contents are lost. Null where the system has no memory.
  std::byte* Scratch(int64_t n_bytes);

  // All kernels, behind the lists that they read.
  void SealRuns(const SealBatch& batch, const SealLists& lists,
                const cuda::SealKernelParams& params);

  CudaStream& stream_;
  const CudaDevice& memory_;
  const CudaResidents& residents_;
  RowFlags flags_;
  std::byte* scratch_ = nullptr;
  int64_t n_scratch_ = 0;
};

}  // namespace kvlathe
