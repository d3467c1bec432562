// Workers share out products of rows with a weight matrix in F32, in both directions.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "base/threads.h"
#include "machine/residents.h"
#include "tensor/buffer.h"

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

}  // namespace kvlathe
