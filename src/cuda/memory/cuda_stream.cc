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
  KVL_RETURN_IF_ERROR(StatusOfCuda(cudaGetDevice(&made->device_), "asking which GPU is current"));
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
    Enter();
    HandOver();
    cudaStreamSynchronize(stream_);
    for (const auto& [key, graph] : graphs_) cudaGraphExecDestroy(graph.exec);
    cudaStreamDestroy(stream_);
  }
  for (std::byte* const memory : apart_) cudaFree(memory);
  cudaFree(sent_);
  if (pinned_ != nullptr) cudaFreeHost(pinned_);
}

void CudaStream::Enter() {
  int current = -1;
  if (cudaGetDevice(&current) == cudaSuccess && current == device_) return;
  Note(cudaSetDevice(device_), "choosing the GPU");
}

void CudaStream::Note(cudaError_t error, std::string_view what) {
  if (error != cudaSuccess && failure_.ok()) failure_ = StatusOfCuda(error, what);
}

void CudaStream::NoteLaunches() { Note(cudaGetLastError(), "a kernel"); }

std::byte* CudaStream::TryAllocate(int64_t n_bytes) {
  NoteLaunches();  // or they would be forgotten together with what follows
  void* memory = nullptr;
  if (cudaMalloc(&memory, static_cast<size_t>(n_bytes)) == cudaSuccess) {
    return static_cast<std::byte*>(memory);
  }
  static_cast<void>(cudaGetLastError());  // the runtime would tell of it again
  return nullptr;
}

void CudaStream::Collect(int64_t shape) {
  if (is_collecting_) return;
  const cudaError_t error = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed);
  Note(error, "collecting work");
  is_collecting_ = error == cudaSuccess;
  shape_ = shape;
  first_unsent_ = head_;
}

void CudaStream::HandOver() {
  if (!std::exchange(is_collecting_, false)) return;
  NoteLaunches();  // what they say comes before what ends because of them
  cudaGraph_t collected = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream_, &collected);
  Note(ended, "collecting work");
  CopyRing(first_unsent_, head_);
  if (ended != cudaSuccess) return;
  LaunchGraph(collected);
  cudaGraphDestroy(collected);
}

void CudaStream::LaunchGraph(cudaGraph_t collected) {
  size_t n_launches = 0;
  Note(cudaGraphGetNodes(collected, nullptr, &n_launches), "a step's work");
  if (n_launches == 0) return;
  const cudaGraphExec_t graph = GraphOf({shape_, n_launches}, collected);
  if (graph != nullptr) Note(cudaGraphLaunch(graph, stream_), "a step's work");
}

cudaGraphExec_t CudaStream::GraphOf(const GraphKey& key, cudaGraph_t collected) {
  auto found = graphs_.find(key);
  cudaGraphExecUpdateResultInfo what_differs;
  if (found != graphs_.end() &&
      cudaGraphExecUpdate(found->second.exec, collected, &what_differs) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // other launches than last time, which is no failure
    cudaGraphExecDestroy(found->second.exec);
    graphs_.erase(found);
    found = graphs_.end();
  }
  if (found == graphs_.end()) {
    if (std::ssize(graphs_) == kMostGraphs) {
      const auto oldest = std::ranges::min_element(
          graphs_, {}, [](const auto& graph) { return graph.second.last_use; });
      cudaGraphExecDestroy(oldest->second.exec);
      graphs_.erase(oldest);
    }
    cudaGraphExec_t made = nullptr;
    const cudaError_t error = cudaGraphInstantiate(&made, collected, 0);
    Note(error, "a graph of a step's work");
    if (error != cudaSuccess) return nullptr;
    ++n_graphs_made_;
    found = graphs_.emplace(key, Graph{.exec = made}).first;
  }
  found->second.last_use = ++n_graphs_launched_;
  return found->second.exec;
}

void CudaStream::Wait(std::string_view what) {
  HandOver();
  Note(cudaStreamSynchronize(stream_), what);
}

void CudaStream::Note(const Status& failure) { failure_.Update(failure); }

const std::byte* CudaStream::SendApart(std::span<const std::byte> bytes) {
  HandOver();
  std::byte* const memory = TryAllocate(std::ssize(bytes));
  if (memory == nullptr) {
    Note(cudaErrorMemoryAllocation, "memory for a plan");
    return nullptr;
  }
  apart_.push_back(memory);
  Note(cudaMemcpyAsync(memory, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, stream_),
       "sending a plan");
  return memory;
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
  if (!is_collecting_) CopyRing(head_, head_ + n_bytes);
  head_ = RoundUp(head_ + n_bytes, kAlignment);
  return to;
}

void CudaStream::CopyRing(int64_t begin, int64_t end) {
  if (begin == end) return;
  Note(
      cudaMemcpyAsync(sent_ + begin, pinned_ + begin, end - begin, cudaMemcpyHostToDevice, stream_),
      "sending plans");
}

Status CudaStream::Finish() {
  Enter();
  HandOver();
  NoteLaunches();
  Wait("work on the GPU");
  head_ = 0;
  for (std::byte* const memory : apart_) cudaFree(memory);
  apart_.clear();
  return std::exchange(failure_, OkStatus());
}

}  // namespace kvlathe
