// y = x W^T (+ bias), x [n_rows, n_in], W [n_out, n_in] as Hugging Face stores it.
//
// One packed copy of the weights serves oneDNN (many rows) and our own kernel (few rows, bound by
// read bandwidth): W^T in oneDNN's format BA16a64b2a, that is [n_out / 64][n_in / 2][64][2] bf16
// with n_out padded to 64 and n_in to 32, or plain [n_in][n_out padded to 16] f32 where the model
// computes in F32. It is what oneDNN's BF16 matmul picks for itself on AVX-512 BF16, and its inner
// [16][64][2] is four B tiles of AMX side by side.
#pragma once

#include <cstdint>
#include <memory>

#include "base/cpu_features.h"
#include "base/status.h"
#include "base/threads.h"
#include "tensor/buffer.h"
#include "tensor/dtype.h"

namespace kvlathe {

// Activations and packed weights are kBf16 while computing, or kF32 where exactness is wanted.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  // Memory for W [n_out, n_in] in compute_type (kBf16 or kF32), all zero. Fails with
  // kResourceExhausted.
  static StatusOr<PackedMatrix> Create(int64_t n_out, int64_t n_in, DType compute_type);

  // Writes rows [first_out, first_out + n_rows) of W from `rows` [n_rows, n_in] of dtype,
  // row-major, row_stride elements apart. Any row range may be written, in any order, from
  // different threads for different rows.
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
  int64_t x_stride = 0;         // elements; n_in lets oneDNN read x in place
  const float* bias = nullptr;  // [n_out] or null
  void* y = nullptr;            // [n_rows, n_out] in y_type
  int64_t y_stride = 0;         // elements; n_out lets oneDNN write y in place
  DType y_type = DType::kF32;   // kF32, or kBf16 (rounded once from the F32 sum)
  bool accumulate = false;      // y += (kF32 only): the residual stream
};

// Sums are F32 in an unspecified order; the order, and so the last bits, depend on the number of
// rows and on the instruction set, or when deterministic on the instruction set alone. Values of y
// between rows (y_stride > n_out) are left alone.
class Linear {
 public:
  // `pool` must outlive this. Not for concurrent Run; one Linear serves all matrices.
  Linear(ThreadPool* pool, Isa isa);
  ~Linear();
  // Our own kernels for any number of rows: every row of y has the bits that it has alone. Many
  // rows are slower then. Not while anything runs.
  void set_deterministic(bool deterministic);
  // Runs on all workers of the pool, each on its own part of y.
  void Run(const LinearParams& params);
  // The same on the calling worker alone, for many small products in one parallel region
  // (a basis per KV head). worker_id picks the scratch memory.
  void RunOnWorker(const LinearParams& params, int worker_id);

 private:
  struct State;  // oneDNN primitives by shape and scratch, by worker
  std::unique_ptr<State> state_;
};

}  // namespace kvlathe
