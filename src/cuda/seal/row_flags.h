// Flags on a GPU by which kernels tell of rows that cannot be kept, and what the host makes of them
// when it waits for the GPU anyway.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cuda/memory/cuda_stream.h"
#include "machine/backend.h"

namespace kvlathe {

class RowFlags {
 public:
  // Adds to a report what flags say that a verb was given, in the order in which it was.
  using Reader = std::function<void(std::span<const int32_t> flags, StepReport* report)>;

  // `stream` outlives the flags.
  explicit RowFlags(CudaStream* stream);
  ~RowFlags();
  RowFlags(const RowFlags&) = delete;
  RowFlags& operator=(const RowFlags&) = delete;

  // n flags on the device, which are 0; `reader` gets
  // what they have become. Null where the system has no memory for them, which the stream's Finish
  // tells. Waits for the GPU where very many flags are in use.
  int32_t* Take(int64_t n, Reader reader);
  // Waits for the GPU, and adds what all flags say that were taken since the last call.
  void Report(StepReport* report);

 private:
  struct Taken {
    int64_t first = 0, n = 0;
    Reader reader;
  };

  void Allocate(int64_t n);  // in place of those that there are
  void Clear(int64_t n);
  // Ends the use of all flags, and notes what they say.
  void Collect();

  CudaStream& stream_;
  int32_t* flags_ = nullptr;  // on the device
  int64_t n_flags_ = 0;
  int64_t n_taken_ = 0;
  std::vector<Taken> taken_;
  StepReport collected_;
};

}  // namespace kvlathe
