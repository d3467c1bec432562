#include "cuda/cuda_machine.h"

#include <algorithm>

#include "base/units.h"
#include "cuda/kernels/rows/norm.h"

namespace kvlathe {
namespace {

// What is left free where no size is asked for: for kernels' code and stacks, and plans that are
// larger than the ring of the stream.
constexpr int64_t kSlackBytes = int64_t{512} << 20;
constexpr int64_t kSlackShare = 32;  // at most one in so many of the free bytes

// Makes the GPU current.
Status ChooseGpu(int number) {
  int n_gpus = 0;
  const cudaError_t error = cudaGetDeviceCount(&n_gpus);
  if (error == cudaErrorInsufficientDriver) {
    return Error(StatusCode::kUnavailable,
                 "no NVIDIA driver, or one that is older than this build's CUDA runtime ({}); "
                 "install a newer driver, or run on the CPU",
                 cudaGetErrorString(error));
  }
  if (error != cudaSuccess || n_gpus == 0) {
    return Error(StatusCode::kUnavailable,
                 "this computer has no GPU that CUDA finds ({}); look at what nvidia-smi says and "
                 "at CUDA_VISIBLE_DEVICES, or run on the CPU",
                 error == cudaSuccess ? "there are 0" : cudaGetErrorString(error));
  }
  if (number < 0 || number >= n_gpus) {
    return Error(StatusCode::kInvalidArgument, "there is no GPU {}: CUDA finds {}, numbered from 0",
                 number, n_gpus);
  }
  return StatusOfCuda(cudaSetDevice(number), "choosing the GPU");
}

Status CheckKernels(const cudaDeviceProp& gpu) {
  const cudaError_t error = cuda::FindKernels();
  if (error == cudaSuccess) return OkStatus();
  static_cast<void>(cudaGetLastError());
  return Error(StatusCode::kUnavailable,
               "this program has no kernels for {} (compute capability {}.{}: {}); build it with "
               "KVLATHE_CUDA_ARCHITECTURES={}{}, or run on the CPU",
               gpu.name, gpu.major, gpu.minor, cudaGetErrorString(error), gpu.major, gpu.minor);
}

// How much memory a machine takes.
StatusOr<int64_t> MemoryToTake(int64_t asked) {
  size_t free_bytes = 0, all_bytes = 0;
  KVL_RETURN_IF_ERROR(
      StatusOfCuda(cudaMemGetInfo(&free_bytes, &all_bytes), "asking for the GPU's memory"));
  const auto n_free = static_cast<int64_t>(free_bytes);
  if (asked < 0) {
    return Error(StatusCode::kInvalidArgument, "{} bytes of a GPU's memory were asked for", asked);
  }
  if (asked > n_free) {
    return Error(StatusCode::kResourceExhausted,
                 "the GPU has {} free, of {}, and {} were asked for; ask for less, or end what "
                 "else uses it",
                 FormatBytes(n_free), FormatBytes(static_cast<int64_t>(all_bytes)),
                 FormatBytes(asked));
  }
  if (asked > CudaDevice::kMostBytes) {
    return Error(StatusCode::kInvalidArgument,
                 "{} of a GPU's memory were asked for, and a machine takes {} at most",
                 FormatBytes(asked), FormatBytes(CudaDevice::kMostBytes));
  }
  const int64_t left = n_free - std::min(kSlackBytes, n_free / kSlackShare);
  return asked > 0 ? asked : std::min(left, CudaDevice::kMostBytes);
}

}  // namespace

StatusOr<std::shared_ptr<CudaMachine>> CudaMachine::Create(const CudaOptions& options,
                                                           ThreadPool* pool, Isa isa) {
  KVL_RETURN_IF_ERROR(ChooseGpu(options.device));
  cudaDeviceProp gpu;
  KVL_RETURN_IF_ERROR(
      StatusOfCuda(cudaGetDeviceProperties(&gpu, options.device), "asking what the GPU has"));
  KVL_RETURN_IF_ERROR(CheckKernels(gpu));
  std::shared_ptr<CudaMachine> machine(new CudaMachine(pool));
  CudaMachine& m = *machine;
  KVL_ASSIGN_OR_RETURN(m.stream_, CudaStream::Create());
  KVL_ASSIGN_OR_RETURN(const int64_t n_bytes, MemoryToTake(options.memory_bytes));
  KVL_ASSIGN_OR_RETURN(m.memory_, CudaDevice::Create(m.stream_.get(), n_bytes));
  m.memory_->set_marks_forgotten(options.looks_for_mistakes);
  m.residents_ = std::make_unique<CudaResidents>(m.memory_.get(), &m.host_residents_);
  KVL_ASSIGN_OR_RETURN(m.shadow_,
                       ShadowDevice::Create(m.memory_.get(), options.looks_for_mistakes));
  m.host_verbs_ = std::make_unique<CpuBackend>(pool, isa, m.shadow_.get(), &m.host_residents_);
  m.mirror_ = std::make_unique<Mirror>(Mirror::Parts{.memory = m.memory_.get(),
                                                     .residents = m.residents_.get(),
                                                     .shadow = m.shadow_.get(),
                                                     .verbs = m.host_verbs_.get(),
                                                     .on_verb = options.on_host_verb});
  m.backend_ = std::make_unique<CudaBackend>(
      CudaBackend::Parts{.stream = m.stream_.get(),
                         .memory = m.memory_.get(),
                         .residents = m.residents_.get(),
                         .mirror = m.mirror_.get(),
                         .uses_kernels = options.uses_kernels,
                         .n_multiprocessors = gpu.multiProcessorCount,
                         .shared_bytes = static_cast<int64_t>(gpu.sharedMemPerBlockOptin)});
  return machine;
}

}  // namespace kvlathe
