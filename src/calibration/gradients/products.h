// Products of rows with a weight matrix: forwards as the machine has packed it, or in F32, and back
// in F32. Workers share them out.
#pragma once

#include <cstdint>
#include <vector>

#include "base/cpu_features.h"
#include "base/status.h"
#include "base/threads.h"
#include "machine/machine.h"
#include "machine/machine_buffer.h"
#include "tensor/buffer.h"
#include "tensor/dtype.h"

namespace kvlathe {

// Rows of a weight as floats, row-major [n_out, n_in].
class FloatMatrix {
 public:
  // Unpacks rows [rows.begin, rows.end) of `w` on all workers, in place of what was there.
  // kResourceExhausted when there is no memory for them.
  Status Unpack(const Weight& w, Range rows, ThreadPool* pool);
  Status Unpack(const Weight& w, ThreadPool* pool) { return Unpack(w, {0, w.n_out()}, pool); }

  const float* data() const { return values_.as<float>(); }
  int64_t n_out() const { return n_out_; }
  int64_t n_in() const { return n_in_; }

 private:
  Buffer values_;
  int64_t n_out_ = 0, n_in_ = 0;
};

// Rows that are multiplied and what becomes of them. Strides are in elements, between rows.
struct RowProduct {
  const FloatMatrix* w = nullptr;
  int64_t n_rows = 0;
  const float* from = nullptr;
  int64_t from_stride = 0;
  float* to = nullptr;
  int64_t to_stride = 0;
  bool accumulate = false;  // to += the product
};

// to [n_rows, n_out] = from [n_rows, n_in] W^T, plus `bias` [n_out] where it is not null.
void MultiplyRows(const RowProduct& product, const float* bias, ThreadPool* pool);

// The gradient with respect to what MultiplyRows multiplies: to [n_rows, n_in] = from [n_rows,
// n_out] W.
void MultiplyRowsBack(const RowProduct& product, ThreadPool* pool);

// Products with matrices as the machine that holds them has packed them, for rows that the host
// has: they are rounded to BF16 on their way, as activations of the model are.
class PackedProducts {
 public:
  // `machine` and `pool` outlive this.
  PackedProducts(Machine* machine, ThreadPool* pool) : machine_(machine), pool_(pool) {}

  // Whether the machine's products are faster than those in F32, for a model whose activations may
  // be rounded: with blocks of integers, and where the processor multiplies BF16.
  static bool AreFaster(WeightType weights, DType activations, Isa isa);

  // Makes room for products of up to n_from numbers that give up to n_to. kResourceExhausted when
  // there is none.
  Status Prepare(int64_t n_from, int64_t n_to);
  // to [n_rows, n_out] = from [n_rows, n_in] W^T, plus `bias` [n_out] F32 where it is not null.
  // Rows are dense.
  void Run(const Weight& w, const ObjectPlace& bias, int64_t n_rows, const float* from, float* to);

 private:
  Machine* machine_;
  ThreadPool* pool_;
  std::vector<Bf16> rounded_;
  MachineBuffer from_, to_;
};

}  // namespace kvlathe
