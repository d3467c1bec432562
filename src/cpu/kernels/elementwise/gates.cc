#include "cpu/kernels/elementwise/gates.h"

#include <algorithm>
#include <cmath>

#include "tensor/dtype.h"

namespace kvlathe {
namespace {

// The largest gate of gpt-oss, and the slope of its sigmoid.
constexpr float kGateLimit = 7;
constexpr float kSigmoidSlope = 1.702f;

template <typename F>
void WriteNumbers(int64_t n, DType out_type, void* out, const F& number) {
  if (out_type == DType::kF32) {
    auto* const to = static_cast<float*>(out);
    for (int64_t i = 0; i < n; ++i) to[i] = number(i);
  } else {
    auto* const to = static_cast<Bf16*>(out);
    for (int64_t i = 0; i < n; ++i) to[i] = ToBf16(number(i));
  }
}

}  // namespace

void Relu2(const float* x, int64_t n, DType out_type, void* out) {
  WriteNumbers(n, out_type, out, [x](int64_t i) {
    const float positive = std::max(x[i], 0.0f);
    return positive * positive;
  });
}

void Xielu(const XieluNumbers& numbers, const float* x, int64_t n, DType out_type, void* out) {
  WriteNumbers(n, out_type, out, [&](int64_t i) {
    const float linear = numbers.beta * x[i];
    if (x[i] > 0) return numbers.positive * x[i] * x[i] + linear;
    return numbers.negative * (std::expm1(std::min(x[i], numbers.eps)) - x[i]) + linear;
  });
}

void ClampedSwiglu(const float* gate_up, int64_t n_rows, int64_t ffn_dim, DType out_type,
                   void* out) {
  for (int64_t row = 0; row < n_rows; ++row) {
    const float* const gates = gate_up + row * 2 * ffn_dim;
    const float* const ups = gates + ffn_dim;
    WriteNumbers(ffn_dim, out_type, static_cast<std::byte*>(out) + row * ffn_dim * SizeOf(out_type),
                 [&](int64_t i) {
                   const float gate = std::min(gates[i], kGateLimit);
                   const float up = std::clamp(ups[i], -kGateLimit, kGateLimit);
                   return gate / (1 + std::exp(-kSigmoidSlope * gate)) * (up + 1);
                 });
  }
}

}  // namespace kvlathe
