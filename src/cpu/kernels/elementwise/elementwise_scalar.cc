#include <algorithm>
#include <cmath>
#include <numbers>

#include "cpu/kernels/elementwise/elementwise_isa.h"

namespace kvlathe {
namespace {

void Store(float value, DType out_type, void* out, int64_t idx) {
  if (out_type == DType::kBf16) {
    static_cast<Bf16*>(out)[idx] = ToBf16(value);
  } else {
    static_cast<float*>(out)[idx] = value;
  }
}

void RmsNorm(const float* x, const float* weight, float eps, int64_t n_rows, int64_t n_dims,
             DType out_type, void* out) {
  for (int64_t t = 0; t < n_rows; ++t, x += n_dims) {
    double squares = 0;
    for (int64_t i = 0; i < n_dims; ++i) squares += static_cast<double>(x[i]) * x[i];
    const float scale = static_cast<float>(1 / std::sqrt(squares / n_dims + eps));
    for (int64_t i = 0; i < n_dims; ++i) {
      Store(x[i] * scale * weight[i], out_type, out, t * n_dims + i);
    }
  }
}

void LayerNorm(const float* x, const float* weight, const float* bias, float eps, int64_t n_rows,
               int64_t n_dims, DType out_type, void* out) {
  for (int64_t t = 0; t < n_rows; ++t, x += n_dims) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n_dims; ++i) sum += x[i];
    const double mean = sum / static_cast<double>(n_dims);
    for (int64_t i = 0; i < n_dims; ++i) squares += (x[i] - mean) * (x[i] - mean);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(n_dims) + eps);
    for (int64_t i = 0; i < n_dims; ++i) {
      const float normal = static_cast<float>((x[i] - mean) * scale);
      Store(normal * weight[i] + bias[i], out_type, out, t * n_dims + i);
    }
  }
}

void Gelu(const float* x, int64_t n, DType out_type, void* out) {
  for (int64_t i = 0; i < n; ++i) {
    // erfc keeps the digits that 1 + erf loses at large negative x.
    const double phi = 0.5 * std::erfc(-double{x[i]} * std::numbers::sqrt2 / 2);
    Store(static_cast<float>(x[i] * phi), out_type, out, i);
  }
}

double GeluTanhOf(double v) {
  const double u = std::sqrt(2 * std::numbers::inv_pi) * (v + 0.044715 * v * v * v);
  return v / (1 + std::exp(-2 * u));
}

void GeluTanh(const float* x, int64_t n, DType out_type, void* out) {
  for (int64_t i = 0; i < n; ++i) {
    Store(static_cast<float>(GeluTanhOf(x[i])), out_type, out, i);
  }
}

void Rope(const float* x, const float* cos, const float* sin, int rope_dim, int head_dim,
          DType out_type, void* out) {
  const int half = rope_dim / 2;
  for (int i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    Store(a * cos[i] - b * sin[i], out_type, out, i);
    Store(b * cos[i] + a * sin[i], out_type, out, i + half);
  }
  for (int i = 2 * half; i < head_dim; ++i) Store(x[i], out_type, out, i);
}

void Swiglu(const float* gate_up, int64_t n_rows, int64_t ffn_dim, DType out_type, void* out) {
  for (int64_t t = 0; t < n_rows; ++t, gate_up += 2 * ffn_dim) {
    for (int64_t i = 0; i < ffn_dim; ++i) {
      const float gate = gate_up[i];
      const float silu = gate / (1 + std::exp(-gate));
      Store(silu * gate_up[ffn_dim + i], out_type, out, t * ffn_dim + i);
    }
  }
}

void GegluTanh(const float* gate_up, int64_t n_rows, int64_t ffn_dim, DType out_type, void* out) {
  for (int64_t t = 0; t < n_rows; ++t, gate_up += 2 * ffn_dim) {
    for (int64_t i = 0; i < ffn_dim; ++i) {
      const auto gate = static_cast<float>(GeluTanhOf(gate_up[i]));
      Store(gate * gate_up[ffn_dim + i], out_type, out, t * ffn_dim + i);
    }
  }
}

void Relu2(const float* x, int64_t n, DType out_type, void* out) {
  for (int64_t i = 0; i < n; ++i) {
    const float positive = std::max(x[i], 0.0f);
    Store(positive * positive, out_type, out, i);
  }
}

void Xielu(const XieluNumbers& numbers, const float* x, int64_t n, DType out_type, void* out) {
  for (int64_t i = 0; i < n; ++i) {
    const double v = x[i];
    const double curved =
        v > 0 ? numbers.positive * v * v
              : numbers.negative * (std::expm1(std::min<double>(v, numbers.eps)) - v);
    Store(static_cast<float>(curved + numbers.beta * v), out_type, out, i);
  }
}

void ClampedSwiglu(const float* gate_up, int64_t n_rows, int64_t ffn_dim, DType out_type,
                   void* out) {
  for (int64_t t = 0; t < n_rows; ++t, gate_up += 2 * ffn_dim) {
    for (int64_t i = 0; i < ffn_dim; ++i) {
      const double gate = std::min(gate_up[i], kGateLimit);
      const float up = std::clamp(gate_up[ffn_dim + i], -kGateLimit, kGateLimit);
      const double gated = gate / (1 + std::exp(-kSigmoidSlope * gate)) * (up + 1.0);
      Store(static_cast<float>(gated), out_type, out, t * ffn_dim + i);
    }
  }
}

void Convert(const float* x, int64_t n, DType out_type, void* out) {
  for (int64_t i = 0; i < n; ++i) Store(x[i], out_type, out, i);
}

void AddGram(const float* x, int64_t n_rows, int64_t n_dims, float* gram) {
  for (int64_t t = 0; t < n_rows; ++t, x += n_dims) {
    for (int64_t i = 0; i < n_dims; ++i) {
      for (int64_t j = i / 16 * 16; j < n_dims; ++j) gram[i * n_dims + j] += x[i] * x[j];
    }
  }
}

void Softmax(float* x, int64_t n, float scale) {
  const float largest = *std::max_element(x, x + n);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    x[i] = std::exp((x[i] - largest) * scale);
    sum += x[i];
  }
  const auto inverse = static_cast<float>(1 / sum);
  for (int64_t i = 0; i < n; ++i) x[i] *= inverse;
}

double LogOfSum(const float* logits, int64_t n) {
  const float largest = *std::max_element(logits, logits + n);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(double{logits[i]} - largest);
  return largest + std::log(sum);
}

double Kl(const float* from, const float* to, int64_t n) {
  const double from_norm = LogOfSum(from, n), to_norm = LogOfSum(to, n);
  double kl = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double log_p = from[i] - from_norm;
    kl += std::exp(log_p) * (log_p - (to[i] - to_norm));
  }
  return kl;
}

}  // namespace

const ElementwiseKernels kElementwiseScalar = {.rms_norm = RmsNorm,
                                               .layer_norm = LayerNorm,
                                               .rope = Rope,
                                               .swiglu = Swiglu,
                                               .gelu = Gelu,
                                               .gelu_tanh = GeluTanh,
                                               .convert = Convert,
                                               .add_gram = AddGram,
                                               .softmax = Softmax,
                                               .kl = Kl,
                                               .geglu_tanh = GegluTanh,
                                               .relu2 = Relu2,
                                               .xielu = Xielu,
                                               .clamped_swiglu = ClampedSwiglu};

}  // namespace kvlathe
