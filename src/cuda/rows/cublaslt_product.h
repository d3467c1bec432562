// Products with dense weights by cuBLASLt, which chooses an algorithm for each shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "base/status.h"
#include "cuda/memory/cuda_device.h"
#include "machine/machine_buffer.h"
#include "tensor/dtype.h"

namespace kvlathe {

// y = x W^T, or y += with `accumulate`. Rows in the memory of the GPU, strides in elements; sums
// are in F32.
struct DenseProduct {
  DType type = DType::kBf16;  // of w and x: kBf16 or kF32
  const void* w = nullptr;    // [n_out, n_in]
  int64_t w_stride = 0;
  const void* x = nullptr;  // [n_rows, n_in]
  int64_t x_stride = 0;
  DType y_type = DType::kF32;  // kF32, or kBf16 where `type` is
  void* y = nullptr;           // [n_rows, n_out]
  int64_t y_stride = 0;
  int64_t n_rows = 0, n_out = 0, n_in = 0;  // each at least 1
  bool accumulate = false;
};

class CublasltProduct {
 public:
  // kUnavailable: cuBLASLt does not start. The device outlives the object, which takes
  // 32 MiB of it, or less where that were more than a small share of what is free.
  static StatusOr<std::unique_ptr<CublasltProduct>> Create(CudaDevice* device);
  ~CublasltProduct();
  CublasltProduct(const CublasltProduct&) = delete;
  CublasltProduct& operator=(const CublasltProduct&) = delete;

  // Adds the product to the stream of the device. kUnavailable names the shape where cuBLASLt
  // refuses it.
  Status Multiply(const DenseProduct& product);

 private:
  struct Choice;  // an algorithm, with the layouts that it was chosen for
  // All that an algorithm depends on: types, shape, strides, alignments.
  using Shape = std::tuple<DType, DType, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                           uint32_t, uint32_t, uint32_t>;

  explicit CublasltProduct(CudaDevice* device);
  StatusOr<const Choice*> ChoiceFor(const DenseProduct& product);

  CudaDevice& device_;
  MachineBuffer workspace_;  // what algorithms need beside operands
  struct Library;
  std::unique_ptr<Library> library_;
  std::map<Shape, std::unique_ptr<Choice>> choices_;
};

}  // namespace kvlathe
