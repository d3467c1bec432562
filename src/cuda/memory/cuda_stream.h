// The stream in which everything on a GPU happens, one thing after the other, and how plans get
// there.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace kvlathe {

// OK, or what the runtime says: "CUDA: WHAT: out of memory". kResourceExhausted where memory was
// short, else kUnavailable.
Status StatusOfCuda(cudaError_t error, std::string_view what);

class CudaStream {
 public:
  // For the current device. kUnavailable, kResourceExhausted.
  static StatusOr<std::unique_ptr<CudaStream>> Create();
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  cudaStream_t get() const { return stream_; }

  // Copies items to the device, for kernels that are launched before the next call of Finish or
  // kSentBytes / 2 of other calls; returns their address there, a multiple of 256, and null where
  // there are none or the system has no memory (Finish tells). The host's may go when the call
  // returns.
  template <typename T>
  const T* Send(std::span<const T> items) {
    return reinterpret_cast<const T*>(SendBytes(std::as_bytes(items)));
  }
  // Waits for all work and returns the first failure since the last call.
  Status Finish();
  // Notes a failure, which Finish returns; nothing for cudaSuccess.
  void Note(cudaError_t error, std::string_view what);
  void Note(const Status& failure);

  static constexpr int64_t kSentBytes = int64_t{32} << 20;

 private:
  CudaStream() = default;
  const std::byte* SendBytes(std::span<const std::byte> bytes);
  const std::byte* SendApart(std::span<const std::byte> bytes);

  cudaStream_t stream_ = nullptr;
  Status failure_;
  std::byte* pinned_ = nullptr;   // [kSentBytes] on the host
  std::byte* sent_ = nullptr;     // [kSentBytes] on the device
  int64_t head_ = 0;              // in both
  std::deque<std::byte*> apart_;  // device memory of what is larger than the ring; until Finish
};

}  // namespace kvlathe
