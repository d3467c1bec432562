#include "calibration/gradients/products.h"

#include "base/check.h"
#include "cpu/kernels/linear/dense_product.h"

namespace kvlathe {
namespace {

// Columns of a product that a worker takes come in multiples of this, whole vectors of every
// instruction set.
constexpr int64_t kColumnStep = 16;

}  // namespace

Status FloatMatrix::Unpack(const Weight& w, Range rows, ThreadPool* pool) {
  n_out_ = rows.end - rows.begin;
  n_in_ = w.n_in();
  const int64_t n_bytes = n_out_ * n_in_ * static_cast<int64_t>(sizeof(float));
  KVL_RETURN_IF_ERROR(values_.EnsureSize(n_bytes, "the weights of a layer in F32"));
  pool->Run([&](int worker_id) {
    // Packed rows lie in groups of 64 that share cache lines.
    const Range share = ShareOf(n_out_, 64, worker_id, pool->n_workers());
    for (int64_t row = share.begin; row < share.end; ++row) {
      w.ReadRow(rows.begin + row, values_.as<float>() + row * n_in_);
    }
  });
  return OkStatus();
}

void MultiplyRows(const RowProduct& p, const float* bias, ThreadPool* pool) {
  KVL_DCHECK(!p.accumulate || bias == nullptr);
  pool->Run([&](int worker_id) {
    const Range columns = ShareOf(p.w->n_out(), kColumnStep, worker_id, pool->n_workers());
    if (columns.begin == columns.end) return;
    DenseProduct product = {.n_rows = p.n_rows,
                            .n_columns = columns.end - columns.begin,
                            .n_inner = p.w->n_in(),
                            .a = p.from,
                            .a_stride = p.from_stride,
                            .b = p.w->data() + columns.begin * p.w->n_in(),
                            .b_stride = p.w->n_in(),
                            .is_b_transposed = true,
                            .c = p.to + columns.begin,
                            .c_stride = p.to_stride,
                            .accumulate = p.accumulate};
    Multiply(product);
    if (bias == nullptr) return;
    for (int64_t t = 0; t < p.n_rows; ++t) {
      float* const row = p.to + t * p.to_stride;
      for (int64_t i = columns.begin; i < columns.end; ++i) row[i] += bias[i];
    }
  });
}

void MultiplyRowsBack(const RowProduct& p, ThreadPool* pool) {
  pool->Run([&](int worker_id) {
    const Range columns = ShareOf(p.w->n_in(), kColumnStep, worker_id, pool->n_workers());
    if (columns.begin == columns.end) return;
    Multiply({.n_rows = p.n_rows,
              .n_columns = columns.end - columns.begin,
              .n_inner = p.w->n_out(),
              .a = p.from,
              .a_stride = p.from_stride,
              .b = p.w->data() + columns.begin,
              .b_stride = p.w->n_in(),
              .c = p.to + columns.begin,
              .c_stride = p.to_stride,
              .accumulate = p.accumulate});
  });
}

}  // namespace kvlathe
