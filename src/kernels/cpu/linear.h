// y = x W^T (+ bias), x [n_rows, n_in], W [n_out, n_in] as Hugging Face stores it.
//
// One packed copy of the weights serves oneDNN (many rows) and our own kernel (1-8 rows, bound by
// read bandwidth): W^T in oneDNN's format BA16a64b2a, that is [n_out / 64][n_in / 2][64][2] bf16
// with both padded, or plain [n_in][n_out padded to 16] f32 where the model computes in F32.
#pragma once

#include <cstdint>
#include <memory>

#include "base/cpu_features.h"
#include "base/status.h"
#include "base/threads.h"
#include "tensor/buffer.h"
#include "tensor/dtype.h"

namespace kvlathe {

// What activations and packed weights are while computing: kBf16, or kF32 where the machine has no
// BF16 dot products or exactness is wanted.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  // Memory for W [n_out, n_in] in compute_type (kBf16 or kF32), all zero.
  static StatusOr<PackedMatrix> Create(int64_t n_out, int64_t n_in, DType compute_type);

  // Writes rows [first_out, first_out + n_rows) of W from `rows` [n_rows, n_in] of dtype,
  // row-major. Any row range may be written, in any order, from different threads for different
  // ranges of 64 rows.
  void PackRows(int64_t first_out, int64_t n_rows, DType dtype, const void* rows,
                int64_t row_stride);

  // Row `out` of W as float, for folding and tests.
  void UnpackRow(int64_t out, float* row) const;

  int64_t n_out() const { return n_out_; }
  int64_t n_in() const { return n_in_; }
  DType compute_type() const { return compute_type_; }
  int64_t n_bytes() const { return buffer_.n_bytes(); }
  const std::byte* data() const { return buffer_.data(); }

 private:
  int64_t n_out_ = 0;
  int64_t n_in_ = 0;
  DType compute_type_ = DType::kBf16;
  Buffer buffer_;
};

struct LinearParams {
  const PackedMatrix* w = nullptr;
  int64_t n_rows = 0;
  const void* x = nullptr;      // [n_rows, n_in] in w->compute_type()
  int64_t x_stride = 0;         // elements
  const float* bias = nullptr;  // [n_out] or null
  void* y = nullptr;            // [n_rows, n_out] in y_type
  int64_t y_stride = 0;
  DType y_type = DType::kF32;  // kF32, or kBf16 (rounded once from the F32 sum)
  bool accumulate = false;     // y += (kF32 only): the residual stream
};

// Runs on all workers of the pool (oneDNN single-threaded on slices of n_out).
class Linear {
 public:
  Linear(ThreadPool* pool, Isa isa);
  ~Linear();
  void Run(const LinearParams& params);
  // The same on the calling worker alone, for many small products in one parallel region
  // (a basis per KV head). worker_id picks the scratch memory.
  void RunOnWorker(const LinearParams& params, int worker_id);

 private:
  struct State;  // oneDNN primitives by shape, scratch by worker
  std::unique_ptr<State> state_;
};

}  // namespace kvlathe
