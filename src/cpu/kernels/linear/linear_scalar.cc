#include <algorithm>

#include "cpu/kernels/linear/linear_part.h"

namespace kvlathe {
namespace {

// Adds x[in] * w[in][0 .. 64) over all inputs. Fixed bounds, so that compilers vectorise the inner
// loops.
void AddBf16Block(const Bf16* x, const Bf16* w, int64_t n_in, float* sums) {
  for (int64_t in = 0; in < n_in; in += 2, w += 2 * kOutBlock) {
    const float x0 = ToFloat(x[in]);
    const float x1 = in + 1 < n_in ? ToFloat(x[in + 1]) : 0.0f;
    for (int64_t j = 0; j < kOutBlock; ++j) {
      sums[j] += x0 * ToFloat(w[2 * j]) + x1 * ToFloat(w[2 * j + 1]);
    }
  }
}

void AddF32Block(const float* x, const float* w, int64_t w_stride, int64_t n_in, int64_t n_out,
                 float* sums) {
  for (int64_t in = 0; in < n_in; ++in, w += w_stride) {
    const float value = x[in];
    if (n_out == kOutBlock) {
      for (int64_t j = 0; j < kOutBlock; ++j) sums[j] += value * w[j];
    } else {
      for (int64_t j = 0; j < n_out; ++j) sums[j] += value * w[j];
    }
  }
}

void StoreRow(const LinearPart& part, int64_t row, int64_t out, int64_t n, const float* sums) {
  const int64_t offset = row * part.y_stride + out;
  for (int64_t j = 0; j < n; ++j) {
    const float value = sums[j] + (part.bias != nullptr ? part.bias[out + j] : 0.0f);
    if (part.y_type == DType::kBf16) {
      static_cast<Bf16*>(part.y)[offset + j] = ToBf16(value);
    } else {
      float* y = static_cast<float*>(part.y) + offset + j;
      *y = part.accumulate ? *y + value : value;
    }
  }
}

// add(row, first output, n_out, sums) for every row and block of outputs of the part.
template <typename F>
void Multiply(const LinearPart& part, const F& add) {
  for (int64_t out = 0; out < part.n_out; out += kOutBlock) {
    const int64_t n_out = std::min(kOutBlock, part.n_out - out);
    for (int64_t row = 0; row < part.n_rows; ++row) {
      float sums[kOutBlock] = {};
      add(row, out, n_out, sums);
      StoreRow(part, row, out, n_out, sums);
    }
  }
}

}  // namespace

void MultiplyBf16Scalar(const LinearPart& part) {
  Multiply(part, [&](int64_t row, int64_t out, int64_t, float* sums) {
    AddBf16Block(static_cast<const Bf16*>(part.x) + row * part.x_stride,
                 static_cast<const Bf16*>(part.w) + out * part.w_stride, part.n_in, sums);
  });
}

void MultiplyF32Scalar(const LinearPart& part) {
  Multiply(part, [&](int64_t row, int64_t out, int64_t n_out, float* sums) {
    AddF32Block(static_cast<const float*>(part.x) + row * part.x_stride,
                static_cast<const float*>(part.w) + out, part.w_stride, part.n_in, n_out, sums);
  });
}

}  // namespace kvlathe
