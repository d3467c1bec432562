#include "cuda/memory/cuda_stream.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/units.h"

namespace kvlathe {
namespace {

constexpr int64_t kAlignment = 256;

}  // namespace

Status StatusOfCuda(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return OkStatus();
  const StatusCode code = error == cudaErrorMemoryAllocation ? StatusCode::kResourceExhausted
                                                             : StatusCode::kUnavailable;
  return Error(code, "CUDA: {}: {}", what, cudaGetErrorString(error));
}

StatusOr<std::unique_ptr<CudaStream>> CudaStream::Create() {
  std::unique_ptr<CudaStream> made(new CudaStream);
  KVL_RETURN_IF_ERROR(
      StatusOfCuda(cudaStreamCreateWithFlags(&made->stream_, cudaStreamNonBlocking), "a stream"));
  KVL_RETURN_IF_ERROR(
      StatusOfCuda(cudaMallocHost(reinterpret_cast<void**>(&made->pinned_), kSentBytes),
                   "32 MiB of pinned memory for plans"));
  KVL_RETURN_IF_ERROR(StatusOfCuda(cudaMalloc(reinterpret_cast<void**>(&made->sent_), kSentBytes),
                                   "32 MiB for plans"));
  return made;
}

CudaStream::~CudaStream() {
  if (stream_ != nullptr) {
    HandOver();
    cudaStreamSynchronize(stream_);
    for (const auto& [shape, graph] : graphs_) cudaGraphExecDestroy(graph.exec);
    cudaStreamDestroy(stream_);
  }
  for (std::byte* const memory : apart_) cudaFree(memory);
  cudaFree(sent_);
  if (pinned_ != nullptr) cudaFreeHost(pinned_);
}

void CudaStream::Note(cudaError_t error, std::string_view what) {
  if (error != cudaSuccess && failure_.ok()) failure_ = StatusOfCuda(error, what);
}

void CudaStream::Collect(int64_t shape) {
  if (is_collecting_) return;
  const cudaError_t error = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed);
  Note(error, "collecting work");
  is_collecting_ = error == cudaSuccess;
  shape_ = shape;
}

void CudaStream::HandOver() {
  if (!std::exchange(is_collecting_, false)) return;
  cudaGraph_t collected = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream_, &collected);
  Note(ended, "collecting work");
  if (ended != cudaSuccess) return;
  auto found = graphs_.find(shape_);
  cudaGraphExecUpdateResultInfo what_differs;
  if (found != graphs_.end() &&
      cudaGraphExecUpdate(found->second.exec, collected, &what_differs) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // other launches than last time, which is no failure
    cudaGraphExecDestroy(found->second.exec);
    graphs_.erase(found);
    found = graphs_.end();
  }
  if (found == graphs_.end()) {
    if (std::ssize(graphs_) == kMostGraphs) ForgetOldestGraph();
    cudaGraphExec_t made = nullptr;
    const cudaError_t error = cudaGraphInstantiate(&made, collected, 0);
    Note(error, "a graph of a step's work");
    if (error == cudaSuccess) found = graphs_.emplace(shape_, Graph{made}).first;
    ++n_graphs_made_;
  }
  cudaGraphDestroy(collected);
  if (found == graphs_.end()) return;
  found->second.last_use = ++n_handed_over_;
  Note(cudaGraphLaunch(found->second.exec, stream_), "a step's work");
}

void CudaStream::ForgetOldestGraph() {
  const auto oldest = std::ranges::min_element(
      graphs_, {}, [](const auto& shape_and_graph) { return shape_and_graph.second.last_use; });
  // What is still running of it was handed over long ago, and runs to its end all the same.
  cudaGraphExecDestroy(oldest->second.exec);
  graphs_.erase(oldest);
}

void CudaStream::Wait(std::string_view what) {
  HandOver();
  Note(cudaStreamSynchronize(stream_), what);
}

void CudaStream::Note(const Status& failure) { failure_.Update(failure); }

const std::byte* CudaStream::SendApart(std::span<const std::byte> bytes) {
  HandOver();
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes.size());
  Note(error, "memory for a plan");
  if (error != cudaSuccess) return nullptr;
  apart_.push_back(static_cast<std::byte*>(memory));
  Note(cudaMemcpyAsync(memory, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, stream_),
       "sending a plan");
  return static_cast<std::byte*>(memory);
}

const std::byte* CudaStream::SendBytes(std::span<const std::byte> bytes) {
  if (bytes.empty()) return nullptr;
  const auto n_bytes = static_cast<int64_t>(bytes.size());
  if (n_bytes > kSentBytes / 2) return SendApart(bytes);
  if (head_ + n_bytes > kSentBytes) {
    // What was sent last time round is copied before the host writes over it.
    Wait("waiting for plans");
    head_ = 0;
  }
  std::memcpy(pinned_ + head_, bytes.data(), bytes.size());
  std::byte* const to = sent_ + head_;
  Note(cudaMemcpyAsync(to, pinned_ + head_, bytes.size(), cudaMemcpyHostToDevice, stream_),
       "sending a plan");
  head_ = RoundUp(head_ + n_bytes, kAlignment);
  return to;
}

Status CudaStream::Finish() {
  HandOver();
  Note(cudaGetLastError(), "a kernel");
  Wait("work on the GPU");
  head_ = 0;
  for (std::byte* const memory : apart_) cudaFree(memory);
  apart_.clear();
  return std::exchange(failure_, OkStatus());
}

}  // namespace kvlathe
