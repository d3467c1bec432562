#include "cuda/emulated/emulated_runtime.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cuda/emulated/emulated_device.h"

using kvlathe::emulated::EmulatedDevice;
using kvlathe::emulated::Work;

struct KvlatheEvent {
  KvlatheStream* stream = nullptr;
  std::chrono::steady_clock::time_point time;
};

struct KvlatheGraph {
  std::vector<Work> works;
};
struct KvlatheGraphExec {
  std::vector<Work> works;
};

namespace {

std::mutex pinned_mutex;
std::map<const std::byte*, size_t>& Pinned() {
  static auto* const pinned = new std::map<const std::byte*, size_t>;
  return *pinned;
}

bool IsPinned(const void* address) {
  const std::lock_guard lock(pinned_mutex);
  const auto* const byte = static_cast<const std::byte*>(address);
  auto found = Pinned().upper_bound(byte);
  if (found == Pinned().begin()) return false;
  --found;
  return byte < found->first + found->second;
}

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_device = 0;

// What a function returns, which cudaGetLastError tells once more where it is no success.
cudaError_t Told(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

constexpr int64_t kUsualShared = 48 << 10;
constexpr int64_t kMostShared = 227 << 10;

// The shared memory that kernels may have.
std::mutex shared_mutex;
int64_t& SharedOf(const void* kernel) {
  static auto* const shared = new std::map<const void*, int64_t>;
  return shared->try_emplace(kernel, kUsualShared).first->second;
}

// The stream that null names.
KvlatheStream* Named(cudaStream_t stream) {
  static auto* const of_null = new KvlatheStream;
  return stream == nullptr ? of_null : stream;
}

}  // namespace

namespace kvlathe::emulated {

void SetDeviceCount(int count) { EmulatedDevice::Get().count = count; }
void SetDeviceBytes(int64_t n_bytes) {
  EmulatedDevice::Get().n_bytes = static_cast<size_t>(n_bytes);
}
void SetHasKernels(bool has_kernels) { EmulatedDevice::Get().has_kernels = has_kernels; }
void AddWork(cudaStream_t stream, std::function<void()> work) {
  Named(stream)->Add(std::move(work));
}
void AddKernel(cudaStream_t stream, const KernelLaunch& launch, std::function<void()> work) {
  const auto has_shared = [launch] {
    const std::lock_guard lock(shared_mutex);
    return launch.shared_bytes <= SharedOf(launch.kernel);
  };
  if (Named(stream)->device != current_device) {
    Told(cudaErrorInvalidResourceHandle);
  } else if (launch.n_blocks < 1 || launch.n_blocks > INT32_MAX || launch.n_blocks_y < 1 ||
             launch.n_blocks_y > UINT16_MAX || launch.n_threads < 1 || launch.n_threads > 1024) {
    Told(cudaErrorInvalidConfiguration);
  } else if (!has_shared()) {
    Told(cudaErrorInvalidValue);
  } else {
    AddWork(stream, [has_shared, work = std::move(work)] {
      KVL_CHECK(has_shared());
      work();
    });
  }
}

}  // namespace kvlathe::emulated

cudaError_t cudaGetDeviceCount(int* count) {
  *count = EmulatedDevice::Get().count;
  return Told(*count == 0 ? cudaErrorNoDevice : cudaSuccess);
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= EmulatedDevice::Get().count) return Told(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* /*kernel*/) {
  attributes->maxThreadsPerBlock = 1024;
  return Told(EmulatedDevice::Get().has_kernels ? cudaSuccess : cudaErrorNoKernelImageForDevice);
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute /*attribute*/, int value) {
  if (value < 0 || value > kMostShared) return Told(cudaErrorInvalidValue);
  const std::lock_guard lock(shared_mutex);
  SharedOf(kernel) = value;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device >= EmulatedDevice::Get().count) return Told(cudaErrorInvalidDevice);
  *properties = {};
  std::strcpy(properties->name, "emulated device");
  properties->totalGlobalMem = EmulatedDevice::Get().n_bytes;
  properties->major = 9;
  properties->multiProcessorCount = 4;
  properties->sharedMemPerBlockOptin = kMostShared;
  properties->l2CacheSize = 1 << 20;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* n_free, size_t* n_total) {
  *n_free = EmulatedDevice::Get().n_free();
  *n_total = EmulatedDevice::Get().n_bytes;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNoKernelImageForDevice:
      return "no kernel image is available for execution on the device";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorIllegalState:
      return "the operation cannot be performed in the present state";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorGraphExecUpdateFailure:
      return "the graph update was not performed";
  }
  return "unknown error";
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t n_bytes) {
  *memory = EmulatedDevice::Get().Allocate(n_bytes);
  return Told(*memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}
cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  return Told(EmulatedDevice::Get().Free(memory) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaMallocHost(void** memory, size_t n_bytes) {
  *memory = std::malloc(n_bytes);
  if (*memory == nullptr) return Told(cudaErrorMemoryAllocation);
  const std::lock_guard lock(pinned_mutex);
  Pinned()[static_cast<const std::byte*>(*memory)] = n_bytes;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  const std::lock_guard lock(pinned_mutex);
  Pinned().erase(static_cast<const std::byte*>(memory));
  std::free(memory);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  *stream = new KvlatheStream{.device = current_device};
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  EmulatedDevice::Get().Run(stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  stream = Named(stream);
  KVL_CHECK(stream->captured == nullptr);
  EmulatedDevice::Get().Run(stream);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n_bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  EmulatedDevice& device = EmulatedDevice::Get();
  stream = Named(stream);
  const bool to_device = kind != cudaMemcpyDeviceToHost;
  const bool from_device = kind != cudaMemcpyHostToDevice;
  if (n_bytes == 0) return cudaSuccess;
  if (to_device != device.Holds(to) || from_device != device.Holds(from)) {
    return Told(cudaErrorInvalidValue);
  }
  if ((to_device && !device.HoldsAll(to, n_bytes)) ||
      (from_device && !device.HoldsAll(from, n_bytes))) {
    return Told(cudaErrorInvalidValue);
  }
  if (!from_device && !IsPinned(from)) {  // the runtime keeps what it needs of pageable memory
    KVL_CHECK(stream->captured == nullptr);
    const auto* const bytes = static_cast<const std::byte*>(from);
    stream->Add([to, kept = std::vector<std::byte>(bytes, bytes + n_bytes)] {
      std::memcpy(to, kept.data(), kept.size());
    });
    return cudaSuccess;
  }
  stream->Add([=] { std::memmove(to, from, n_bytes); });
  // The runtime returns from copies to pageable memory when they are done.
  if (!to_device && !IsPinned(to)) return cudaStreamSynchronize(stream);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t n_bytes, cudaStream_t stream) {
  if (n_bytes == 0) return cudaSuccess;
  if (!EmulatedDevice::Get().HoldsAll(to, n_bytes)) return Told(cudaErrorInvalidValue);
  if (Named(stream)->device != current_device) return Told(cudaErrorInvalidResourceHandle);
  Named(stream)->Add([=] { std::memset(to, value, n_bytes); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  *event = new KvlatheEvent;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->stream = stream;
  stream->Add([event] { event->time = std::chrono::steady_clock::now(); });
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return event->stream == nullptr ? cudaSuccess : cudaStreamSynchronize(event->stream);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - begin->time).count();
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode /*mode*/) {
  if (stream->captured != nullptr) return Told(cudaErrorIllegalState);
  stream->captured = new std::vector<Work>;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = new KvlatheGraph{std::move(*stream->captured)};
  delete std::exchange(stream->captured, nullptr);
  return cudaSuccess;
}
// Only how many there are: `nodes` is null.
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* /*nodes*/, size_t* n_nodes) {
  *n_nodes = graph->works.size();
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long /*flags*/) {
  *exec = new KvlatheGraphExec{graph->works};
  return cudaSuccess;
}
// The launches of works are not compared, only how many there are.
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo* result) {
  const bool is_same = exec->works.size() == graph->works.size();
  result->result = is_same ? cudaGraphExecUpdateSuccess : cudaGraphExecUpdateError;
  if (!is_same) return Told(cudaErrorGraphExecUpdateFailure);
  exec->works = graph->works;
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  for (const Work& work : exec->works) stream->Add(work);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
