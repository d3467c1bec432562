// y = x W^T (+ bias), x [n_rows, n_in], W [n_out, n_in] as Hugging Face stores it.
//
// One packed copy of the weights (cpu/kernels/linear/packed_matrix.h) serves products of many rows
// and of few, which are bound by read bandwidth.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/cpu_features.h"
#include "base/threads.h"
#include "cpu/kernels/linear/packed_matrix.h"
#include "tensor/dtype.h"

namespace kvlathe {

struct LinearParams {
  const PackedMatrix* w = nullptr;
  int64_t n_rows = 0;
  DType x_type = DType::kBf16;  // one that w->format() multiplies
  const void* x = nullptr;      // [n_rows, n_in]
  int64_t x_stride = 0;         // elements; n_in lets oneDNN read x in place
  const float* bias = nullptr;  // [n_out] or null
  void* y = nullptr;            // [n_rows, n_out] in y_type
  int64_t y_stride = 0;         // elements; n_out lets oneDNN write y in place
  DType y_type = DType::kF32;   // kF32, or kBf16 (rounded once from the F32 sum)
  bool accumulate = false;      // y += (kF32 only): the residual stream
  bool is_repeatable = false;   // every row gets the bits that it has alone, deterministic or not
};

// Products with matrices of one shape, each of rows of its own.
struct GroupedProducts {
  struct Item {
    const PackedMatrix* w = nullptr;  // [n_out, n_in], as all others
    const float* bias = nullptr;      // [n_out] or null
    int64_t first_x = 0;              // rows of x, which several items may read
    int64_t first_y = 0;              // rows of y, which are of one item
    int64_t n_rows = 0;
  };
  std::span<const Item> items;
  DType x_type = DType::kBf16;  // one that the formats of all matrices multiply
  const void* x = nullptr;      // [n_x_rows, n_in]
  int64_t n_x_rows = 0;
  float* y = nullptr;  // [rows, n_out]
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
  // Rows meet weights in blocks as they are, in place of integers of 8 bits; slower. Not while
  // anything runs.
  void set_exact_rows(bool exact);
  // Runs on all workers of the pool, each on its own part of y.
  void Run(const LinearParams& params);
  // Runs all products in one parallel region, with our own kernels: every row has the bits that it
  // has alone.
  void RunGrouped(const GroupedProducts& products);
  // The same on the calling worker alone, for many small products in one parallel region
  // (a basis per KV head). worker_id picks the scratch memory.
  void RunOnWorker(const LinearParams& params, int worker_id);

 private:
  struct State;  // oneDNN primitives by shape and scratch, by worker
  std::unique_ptr<State> state_;
};

}  // namespace kvlathe
