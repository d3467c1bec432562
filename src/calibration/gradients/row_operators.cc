#include "calibration/gradients/row_operators.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace kvlathe {
namespace {

struct Activation {
  float value, slope;
};

Activation SiluOf(float x) {
  const float sigmoid = 1 / (1 + std::exp(-x));
  return {x * sigmoid, sigmoid * (1 + x * (1 - sigmoid))};
}

Activation GeluOf(float x) {
  const float below = 0.5f * std::erfc(-x / std::numbers::sqrt2_v<float>);  // Phi(x)
  const float density =
      std::exp(-0.5f * x * x) * std::numbers::inv_sqrtpi_v<float> / std::numbers::sqrt2_v<float>;
  return {x * below, below + x * density};
}

Activation GeluTanhOf(float x) {
  const float scale = std::numbers::sqrt2_v<float> * std::numbers::inv_sqrtpi_v<float>;
  const float t = std::tanh(scale * (x + 0.044715f * x * x * x));
  const float inner_slope = scale * (1 + 3 * 0.044715f * x * x);
  return {0.5f * x * (1 + t), 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * inner_slope};
}

Activation Relu2Of(float x) {
  const float positive = std::max(x, 0.0f);
  return {positive * positive, 2 * positive};
}

Activation XieluOf(const XieluNumbers& n, float x) {
  if (x > 0) return {(n.positive * x + n.beta) * x, 2 * n.positive * x + n.beta};
  const float slope = x < n.eps ? std::exp(x) : 0;
  return {n.negative * (std::expm1(std::min(x, n.eps)) - x) + n.beta * x,
          n.negative * (slope - 1) + n.beta};
}

template <typename F>
void GatedBack(const F& activation, int64_t n_rows, int64_t ffn_dim, const float* up,
               const float* d_gated, float* d_up) {
  for (int64_t t = 0; t < n_rows; ++t) {
    const float* const gate = up + t * 2 * ffn_dim;
    float* const d_gate = d_up + t * 2 * ffn_dim;
    for (int64_t i = 0; i < ffn_dim; ++i) {
      const Activation a = activation(gate[i]);
      const float dy = d_gated[t * ffn_dim + i];
      d_gate[i] = dy * a.slope * gate[ffn_dim + i];
      d_gate[ffn_dim + i] = dy * a.value;
    }
  }
}

template <typename F>
void UngatedBack(const F& activation, int64_t n, const float* up, const float* d_gated,
                 float* d_up) {
  for (int64_t i = 0; i < n; ++i) d_up[i] = d_gated[i] * activation(up[i]).slope;
}

// g sigmoid(1.702 g) (u + 1) with a clamped g and u: what is cut off has no slope.
void ClampedSwigluBack(int64_t n_rows, int64_t ffn_dim, const float* up, const float* d_gated,
                       float* d_up) {
  constexpr float kLimit = kGateLimit, kSlope = kSigmoidSlope;
  for (int64_t t = 0; t < n_rows; ++t) {
    const float* const gates = up + t * 2 * ffn_dim;
    float* const d_gates = d_up + t * 2 * ffn_dim;
    for (int64_t i = 0; i < ffn_dim; ++i) {
      const float g = std::min(gates[i], kLimit), u = gates[ffn_dim + i];
      const float sigmoid = 1 / (1 + std::exp(-kSlope * g)), dy = d_gated[t * ffn_dim + i];
      const float by_gate = sigmoid * (1 + kSlope * g * (1 - sigmoid));
      d_gates[i] = gates[i] < kLimit ? dy * by_gate * (std::clamp(u, -kLimit, kLimit) + 1) : 0;
      d_gates[ffn_dim + i] = std::abs(u) < kLimit ? dy * g * sigmoid : 0;
    }
  }
}

// Means over a row that a norm and its gradient need, with x^ = (x - mean) * scale.
struct RowMeans {
  double mean = 0, scale = 0;
  double dy = 0;        // of weight * dy
  double dy_times = 0;  // of weight * dy * x^
};

RowMeans MeansOf(const RowNorm& norm, const float* weight, const float* x, const float* dy) {
  const auto n = static_cast<double>(norm.n_dims);
  RowMeans m;
  if (norm.bias != nullptr) {
    for (int64_t i = 0; i < norm.n_dims; ++i) m.mean += x[i];
    m.mean /= n;
  }
  double square = 0;
  for (int64_t i = 0; i < norm.n_dims; ++i) {
    const double centred = x[i] - m.mean, d = double{weight[i]} * dy[i];
    square += centred * centred;
    m.dy += d;
    m.dy_times += d * centred;
  }
  m.scale = 1 / std::sqrt(square / n + norm.eps);
  m.dy = norm.bias != nullptr ? m.dy / n : 0;  // without a mean nothing flows through it
  m.dy_times *= m.scale / n;
  return m;
}

}  // namespace

void Normalise(const ElementwiseKernels& kernels, const RowNorm& norm, int64_t n_rows,
               const float* x, float* y) {
  const auto normalise = [&](int64_t first, int64_t n, const float* weight) {
    const float* const from = x + first * norm.n_dims;
    float* const to = y + first * norm.n_dims;
    if (norm.bias == nullptr) {
      return kernels.rms_norm(from, weight, norm.eps, n, norm.n_dims, DType::kF32, to);
    }
    kernels.layer_norm(from, weight, norm.bias, norm.eps, n, norm.n_dims, DType::kF32, to);
  };
  if (norm.n_groups == 1) return normalise(0, n_rows, norm.weight);
  for (int64_t t = 0; t < n_rows; ++t) {
    normalise(t, 1, norm.weight + t % norm.n_groups * norm.n_dims);
  }
}

void NormaliseBack(const RowNorm& norm, int64_t n_rows, const float* x, const float* dy,
                   bool accumulate, float* dx) {
  for (int64_t t = 0; t < n_rows; ++t) {
    const int64_t first = t * norm.n_dims;
    const float* const weight = norm.weight + t % norm.n_groups * norm.n_dims;
    const RowMeans m = MeansOf(norm, weight, x + first, dy + first);
    const auto mean = static_cast<float>(m.mean), scale = static_cast<float>(m.scale);
    const auto mean_dy = static_cast<float>(m.dy), along = static_cast<float>(m.dy_times);
    for (int64_t i = first; i < first + norm.n_dims; ++i) {
      const float normed = (x[i] - mean) * scale;
      const float d = scale * (weight[i - first] * dy[i] - mean_dy - normed * along);
      dx[i] = accumulate ? dx[i] + d : d;
    }
  }
}

void Gate(const ElementwiseKernels& kernels, const RowGate& gate, int64_t n_rows, const float* up,
          float* gated) {
  const int64_t ffn_dim = gate.ffn_dim, n = n_rows * ffn_dim;
  switch (gate.mlp) {
    case MlpKind::kSwiglu:
      return kernels.swiglu(up, n_rows, ffn_dim, DType::kF32, gated);
    case MlpKind::kGeglu:
      return kernels.geglu_tanh(up, n_rows, ffn_dim, DType::kF32, gated);
    case MlpKind::kGelu:
      return kernels.gelu(up, n, DType::kF32, gated);
    case MlpKind::kGeluTanh:
      return kernels.gelu_tanh(up, n, DType::kF32, gated);
    case MlpKind::kRelu2:
      return kernels.relu2(up, n, DType::kF32, gated);
    case MlpKind::kXielu:
      return kernels.xielu(gate.xielu, up, n, DType::kF32, gated);
    case MlpKind::kClampedSwiglu:
      return kernels.clamped_swiglu(up, n_rows, ffn_dim, DType::kF32, gated);
  }
}

void GateBack(const RowGate& gate, int64_t n_rows, const float* up, const float* d_gated,
              float* d_up) {
  const int64_t ffn_dim = gate.ffn_dim, n = n_rows * ffn_dim;
  const auto xielu = [&](float x) { return XieluOf(gate.xielu, x); };
  switch (gate.mlp) {
    case MlpKind::kSwiglu:
      return GatedBack(SiluOf, n_rows, ffn_dim, up, d_gated, d_up);
    case MlpKind::kGeglu:
      return GatedBack(GeluTanhOf, n_rows, ffn_dim, up, d_gated, d_up);
    case MlpKind::kGelu:
      return UngatedBack(GeluOf, n, up, d_gated, d_up);
    case MlpKind::kGeluTanh:
      return UngatedBack(GeluTanhOf, n, up, d_gated, d_up);
    case MlpKind::kRelu2:
      return UngatedBack(Relu2Of, n, up, d_gated, d_up);
    case MlpKind::kXielu:
      return UngatedBack(xielu, n, up, d_gated, d_up);
    case MlpKind::kClampedSwiglu:
      return ClampedSwigluBack(n_rows, ffn_dim, up, d_gated, d_up);
  }
}

}  // namespace kvlathe
