// The stream in which everything on a GPU happens, one thing after the other, and how plans get
// there.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
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
  // Makes the GPU of the stream current on the calling thread. Who launches kernels or asks for
  // memory calls it first: threads begin with GPU 0, and others may have chosen another one since.
  void Enter();

  // Copies items to the device, for kernels that are launched before the next call of Finish or
  // kSentBytes / 2 of other calls; returns their address there, a multiple of 256, and null where
  // there are none or the system has no memory (Finish tells). The host's may go when the call
  // returns.
  template <typename T>
  const T* Send(std::span<const T> items) {
    return reinterpret_cast<const T*>(SendBytes(std::as_bytes(items)));
  }
  // From here until work is waited for, or something is asked for that cannot be put off, work is
  // collected and then handed over at once, as a graph: that takes the host a fraction of the time.
  // `shape` says what the work is like: the graph of the last work of this shape is taken again,
  // with other numbers, where it has as many launches. What is sent meanwhile travels in one piece,
  // in front of the work. Nothing where work is collected already.
  void Collect(int64_t shape);
  // Hands over what was collected. Whoever waits for the stream, or copies to it what the host may
  // change, calls this first.
  void HandOver();
  // Waits for all work that was asked for.
  void Wait(std::string_view what);
  // Waits for all work and returns the first failure since the last call.
  Status Finish();
  int64_t n_graphs_made() const { return n_graphs_made_; }

  // Memory of the GPU outside of a CudaDevice, which the caller frees by cudaFree; null where there
  // is none, which is no failure of the stream.
  std::byte* TryAllocate(int64_t n_bytes);
  // Notes a failure, which Finish returns; nothing for cudaSuccess.
  void Note(cudaError_t error, std::string_view what);
  void Note(const Status& failure);

  static constexpr int64_t kSentBytes = int64_t{32} << 20;
  static constexpr int kMostGraphs = 256;

 private:
  // A shape, and how many launches the work has: a step that seals too has more than others.
  using GraphKey = std::pair<int64_t, size_t>;
  struct Graph {
    cudaGraphExec_t exec = nullptr;
    int64_t last_use = 0;
  };

  CudaStream() = default;
  const std::byte* SendBytes(std::span<const std::byte> bytes);
  const std::byte* SendApart(std::span<const std::byte> bytes);
  // Copies [begin, end) of the ring to the device.
  void CopyRing(int64_t begin, int64_t end);
  void LaunchGraph(cudaGraph_t collected);
  // The graph of the key with the numbers of `collected`; null where it cannot be made.
  cudaGraphExec_t GraphOf(const GraphKey& key, cudaGraph_t collected);
  // Notes what launches have met on this thread.
  void NoteLaunches();

  int device_ = 0;
  cudaStream_t stream_ = nullptr;
  bool is_collecting_ = false;
  int64_t shape_ = 0;                 // of what is collected
  int64_t first_unsent_ = 0;          // of the ring, while work is collected
  std::map<GraphKey, Graph> graphs_;  // kMostGraphs at most
  int64_t n_graphs_made_ = 0, n_graphs_launched_ = 0;
  Status failure_;
  std::byte* pinned_ = nullptr;   // [kSentBytes] on the host
  std::byte* sent_ = nullptr;     // [kSentBytes] on the device
  int64_t head_ = 0;              // in both
  std::deque<std::byte*> apart_;  // device memory of what is larger than the ring; until Finish
};

}  // namespace kvlathe
