#include "cuda/cuda_machine_maker.h"

#include <cuda_runtime_api.h>

#include <memory>

#include "cpu/cpu_machine.h"
#include "cuda/memory/cuda_stream.h"

namespace kvlathe {
namespace {

// Stands for the machine until it is there.
class BoundedDevice : public CpuDevice {
 public:
  explicit BoundedDevice(int64_t n_bytes) : n_free_(n_bytes) {}
  uint32_t Allocate(int64_t n_bytes) override {
    if (n_bytes > n_free_) return 0;
    const uint32_t region = CpuDevice::Allocate(n_bytes);
    if (region == 0) return 0;
    n_free_ -= n_bytes;
    sizes_.resize(std::max<size_t>(sizes_.size(), region + 1));
    sizes_[region] = n_bytes;
    return region;
  }
  void Free(uint32_t region) override {
    n_free_ += sizes_[region];
    CpuDevice::Free(region);
  }
  int64_t n_free_bytes() const override { return n_free_; }
  const std::byte* HostView(const ObjectPlace& /*place*/) override { return nullptr; }

 private:
  int64_t n_free_;
  std::vector<int64_t> sizes_;
};

}  // namespace

StatusOr<MadeMachine> MakeCudaMachine(const MachineRequest& request) {
  int n_devices = 0;
  const cudaError_t counted = cudaGetDeviceCount(&n_devices);
  if (counted != cudaSuccess) {
    return Error(StatusCode::kUnavailable, "no GPU can be used: {}; see what nvidia-smi says",
                 cudaGetErrorString(counted));
  }
  if (request.number >= n_devices) {
    return Error(StatusCode::kNotFound, "there is no such GPU; the computer has {}, from cuda:0 on",
                 n_devices);
  }
  KVL_RETURN_IF_ERROR(StatusOfCuda(cudaSetDevice(request.number), "choosing the GPU"));
  cudaDeviceProp properties;
  KVL_RETURN_IF_ERROR(
      StatusOfCuda(cudaGetDeviceProperties(&properties, request.number), "asking what the GPU is"));
  size_t n_free = 0, n_all = 0;
  KVL_RETURN_IF_ERROR(StatusOfCuda(cudaMemGetInfo(&n_free, &n_all), "asking for free memory"));
  const int64_t n_bytes =
      request.memory_bytes > 0 ? request.memory_bytes : static_cast<int64_t>(n_free);
  auto machine = std::make_shared<CpuMachine>(request.pool, request.isa,
                                              std::make_unique<BoundedDevice>(n_bytes));
  return MadeMachine{machine, properties.name, n_bytes};
}

}  // namespace kvlathe
