#include "calibration/gradients/products.h"

#include <algorithm>
#include <cstring>
#include <span>

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
    w.ReadRows(rows.begin + share.begin, share.end - share.begin,
               values_.as<float>() + share.begin * n_in_);
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
  // Each product packs both of its factors: workers share out the longer side of the result, and
  // all pack the smaller factor.
  const bool by_rows = p.n_rows > p.w->n_in();
  pool->Run([&](int worker_id) {
    const auto share_of = [&](int64_t n, bool is_shared) {
      return is_shared ? ShareOf(n, kColumnStep, worker_id, pool->n_workers()) : Range{0, n};
    };
    const Range rows = share_of(p.n_rows, by_rows), columns = share_of(p.w->n_in(), !by_rows);
    if (rows.begin == rows.end || columns.begin == columns.end) return;
    Multiply({.n_rows = rows.end - rows.begin,
              .n_columns = columns.end - columns.begin,
              .n_inner = p.w->n_out(),
              .a = p.from + rows.begin * p.from_stride,
              .a_stride = p.from_stride,
              .b = p.w->data() + columns.begin,
              .b_stride = p.w->n_in(),
              .c = p.to + rows.begin * p.to_stride + columns.begin,
              .c_stride = p.to_stride,
              .accumulate = p.accumulate});
  });
}

bool PackedProducts::AreFaster(WeightType weights, DType activations, Isa isa) {
  if (activations != DType::kBf16 || isa == Isa::kScalar) return false;
  return HasBlocks(weights) || (weights == WeightType::kBf16 && isa != Isa::kAvx2);
}

Status PackedProducts::Prepare(int64_t n_from, int64_t n_to) {
  rounded_.resize(std::max<size_t>(rounded_.size(), n_from));
  KVL_RETURN_IF_ERROR(
      from_.EnsureSize(&machine_->memory(), n_from * SizeOf(DType::kBf16), "rows of a window"));
  return to_.EnsureSize(&machine_->memory(), n_to * SizeOf(DType::kF32), "rows of a window");
}

void PackedProducts::Run(const Weight& w, const ObjectPlace& bias, int64_t n_rows,
                         const float* from, float* to) {
  const int64_t n_from = n_rows * w.n_in(), n_to = n_rows * w.n_out();
  pool_->Run([&](int worker_id) {
    const Range share = ShareOf(n_from, 16, worker_id, pool_->n_workers());
    for (int64_t i = share.begin; i < share.end; ++i) rounded_[i] = ToBf16(from[i]);
  });
  Device& memory = machine_->memory();
  memory.Upload(from_.place(), std::as_bytes(std::span(rounded_).first(n_from)));
  machine_->backend().Project({.w = w.id(),
                               .n_rows = n_rows,
                               .x = from_.place(),
                               .x_stride = w.n_in(),
                               .x_type = DType::kBf16,
                               .bias = bias,
                               .y = to_.place(),
                               .y_stride = w.n_out()});
  const std::byte* const shared = memory.HostView(to_.place());
  if (shared == nullptr) {
    return memory.Download(to_.place(), std::as_writable_bytes(std::span(to, n_to)));
  }
  pool_->Run([&](int worker_id) {
    const Range share = ShareOf(n_to, 16, worker_id, pool_->n_workers());
    constexpr int64_t kBytes = sizeof(float);
    std::memcpy(to + share.begin, shared + share.begin * kBytes,
                (share.end - share.begin) * kBytes);
  });
}

}  // namespace kvlathe
