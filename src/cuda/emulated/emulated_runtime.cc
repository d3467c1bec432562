#include "cuda/emulated/emulated_runtime.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/units.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

using kvlathe::RoundUp;

namespace {

constexpr size_t kArenaBytes = size_t{64} << 30;  // of addresses
constexpr size_t kPage = size_t{4} << 10;
constexpr size_t kGranule = 256;  // as cudaMalloc aligns
constexpr size_t kRedZone = 256;  // behind what is taken, at least
constexpr int kOfNan = 0xff;
constexpr size_t kHugePage = size_t{2} << 20;  // whose rights are set in one step

using Work = std::function<void()>;

}  // namespace

struct KvlatheStream {
  int device = 0;
  std::deque<Work> works;
  std::vector<Work>* captured = nullptr;  // that a graph is being made of

  void Add(Work work) {
    if (captured != nullptr) {
      captured->push_back(std::move(work));
    } else {
      works.push_back(std::move(work));
    }
  }
};

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

// The device, of which there is one.
class EmulatedDevice {
 public:
  static EmulatedDevice& Get() {
    static auto* const device = new EmulatedDevice;
    return *device;
  }

  int count = 1;
  size_t n_bytes = size_t{1} << 30;
  bool has_kernels = true;

  size_t n_free() const { return n_bytes - std::min(n_bytes, used_); }

  void* Allocate(size_t size) {
    const std::lock_guard lock(mutex_);
    const size_t with_zone = RoundUp(size, kGranule) + kRedZone;
    if (size == 0 || RoundUp(size, kGranule) > n_free()) return nullptr;
    // First fit. Memory of huge pages shares none of them with others, whose edges would break them
    // up.
    const size_t alignment = size >= kHugePage ? kHugePage : kGranule;
    size_t offset = 0;
    for (const auto& [begin, taken] : taken_) {
      if (begin >= offset + with_zone) break;
      offset = RoundUp(begin + WithZone(taken), alignment);
    }
    if (offset + with_zone > kArenaBytes) return nullptr;
    taken_[offset] = size;
    used_ += RoundUp(size, kGranule);
    highest_ = std::max<size_t>(highest_, RoundUp(offset + with_zone, kHugePage));
    std::byte* const memory = arena_ + offset;
    GiveRights();
    Allow(memory, with_zone);
    // Large memory is not filled: it would take all its pages.
    std::memset(memory, kOfNan, std::min(size, size_t{1} << 22));
    std::memset(memory + size, kOfNan, with_zone - size);
    Forbid(memory + size, with_zone - size);
    if (n_open_ == 0) TakeRights();
    return memory;
  }
  bool Free(void* memory) {
    const std::lock_guard lock(mutex_);
    const auto found = taken_.find(static_cast<size_t>(static_cast<std::byte*>(memory) - arena_));
    if (found == taken_.end()) return false;
    GiveRights();
    CheckZone(*found);
    Forbid(arena_ + found->first, WithZone(found->second));
    if (n_open_ == 0) TakeRights();
    // Whole huge pages: what is left of one that is broken up would be many small ones.
    const size_t begin = RoundUp(found->first, kHugePage);
    const size_t end = (found->first + found->second) / kHugePage * kHugePage;
    if (begin < end) madvise(arena_ + begin, end - begin, MADV_DONTNEED);
    used_ -= RoundUp(found->second, kGranule);
    taken_.erase(found);
    return true;
  }
  bool Holds(const void* address) const {
    const auto* const byte = static_cast<const std::byte*>(address);
    return byte >= arena_ && byte < arena_ + kArenaBytes;
  }
  bool HoldsAll(const void* address, size_t size) {
    const std::lock_guard lock(mutex_);
    const auto offset = static_cast<size_t>(static_cast<const std::byte*>(address) - arena_);
    auto found = taken_.upper_bound(offset);
    if (found == taken_.begin()) return false;
    --found;
    return offset + size <= found->first + found->second;
  }

  void Run(KvlatheStream* stream) {
    if (stream->works.empty()) return;
    Open();
    while (!stream->works.empty()) {
      const Work work = std::move(stream->works.front());
      stream->works.pop_front();
      work();
    }
    Close();
  }

 private:
  EmulatedDevice() {
    // A page before it never has rights.
    void* const arena = mmap(nullptr, kArenaBytes + 2 * kHugePage, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    KVL_CHECK(arena != MAP_FAILED);
    const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(arena));
    arena_ = reinterpret_cast<std::byte*>(RoundUp(address + int64_t{kPage}, int64_t{kHugePage}));
    madvise(arena_, kArenaBytes, MADV_HUGEPAGE);
    if (const char* text = std::getenv("KVLATHE_EMULATED_DEVICES")) count = std::atoi(text);
    if (const char* text = std::getenv("KVLATHE_EMULATED_BYTES")) {
      n_bytes = std::strtoull(text, nullptr, 10);
    }
  }
  static size_t WithZone(size_t size) { return RoundUp(size, kGranule) + kRedZone; }
  // To AddressSanitizer, which knows every byte.
  static void Allow([[maybe_unused]] std::byte* memory, [[maybe_unused]] size_t size) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(memory, size);
#endif
  }
  static void Forbid([[maybe_unused]] std::byte* memory, [[maybe_unused]] size_t size) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_poison_memory_region(memory, size);
#endif
  }
  // Without it, who writes a little beyond what he has is found when he is done.
  void CheckZone([[maybe_unused]] const std::pair<const size_t, size_t>& taken) const {
#if !defined(__SANITIZE_ADDRESS__)
    const std::byte* const zone = arena_ + taken.first + taken.second;
    const size_t n_bytes = WithZone(taken.second) - taken.second;
    for (size_t i = 0; i < n_bytes; ++i) {
      if (zone[i] == std::byte{kOfNan}) continue;
      std::fprintf(stderr, "emulated device: byte %zu of memory of %zu was written\n",
                   taken.second + i, taken.second);
      std::abort();
    }
#endif
  }
  // The pages of what is taken.
  void GiveRights() {
    size_t begin = 0, end = 0;  // of pages that lie together
    const auto give = [&] {
      if (end > begin) mprotect(arena_ + begin, end - begin, PROT_READ | PROT_WRITE);
    };
    for (const auto& [offset, size] : taken_) {
      const size_t first = offset / kPage * kPage;
      if (first > end) {
        give();
        begin = first;
      }
      end = RoundUp(offset + WithZone(size), kPage);
    }
    give();
  }
  void TakeRights() { mprotect(arena_, highest_, PROT_NONE); }
  void Open() {
    const std::lock_guard lock(mutex_);
    if (++n_open_ == 1) GiveRights();
  }
  void Close() {
    const std::lock_guard lock(mutex_);
    if (--n_open_ > 0) return;
    for (const auto& taken : taken_) CheckZone(taken);
    TakeRights();
  }

  std::mutex mutex_;
  std::byte* arena_ = nullptr;
  std::map<size_t, size_t> taken_;  // bytes by offset
  size_t used_ = 0;
  size_t highest_ = 0;  // the end of the pages that anybody ever had
  int n_open_ = 0;      // streams at work
};

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

}  // namespace

namespace {

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
