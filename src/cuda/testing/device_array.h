// Arrays in the memory of a GPU, for tests of kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"

namespace kvlathe {

// n numbers, which hold `items` or nothing defined.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(int64_t n) : n_(n) {
    KVL_CHECK_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), n * sizeof(T)), cudaSuccess);
  }
  explicit DeviceArray(const std::vector<T>& items) : DeviceArray(std::ssize(items)) {
    Upload(items);
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return data_; }
  int64_t size() const { return n_; }

  // Waits until it is there.
  void Upload(const std::vector<T>& items, cudaStream_t stream = nullptr) {
    KVL_CHECK_EQ(std::ssize(items), n_);
    KVL_CHECK_EQ(
        cudaMemcpyAsync(data_, items.data(), n_ * sizeof(T), cudaMemcpyHostToDevice, stream),
        cudaSuccess);
    KVL_CHECK_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  }
  // Waits for the stream.
  std::vector<T> Download(cudaStream_t stream = nullptr) const {
    std::vector<T> items(n_);
    KVL_CHECK_EQ(
        cudaMemcpyAsync(items.data(), data_, n_ * sizeof(T), cudaMemcpyDeviceToHost, stream),
        cudaSuccess);
    KVL_CHECK_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    return items;
  }

 private:
  T* data_ = nullptr;
  int64_t n_;
};

}  // namespace kvlathe
