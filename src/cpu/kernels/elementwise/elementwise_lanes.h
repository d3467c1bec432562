// The operators over vectors of the instruction set that a file is compiled for (lanes.h).
#pragma once

#include "cpu/kernels/elementwise/elementwise.h"
#include "cpu/kernels/lanes.h"

namespace kvlathe {
namespace {

// Lanes from `n` on are left alone.
KVL_LANES void StoreAs(DType out_type, Vec value, int64_t n, void* out, int64_t idx) {
  if (out_type == DType::kBf16) {
    StoreFirstBf16(static_cast<uint16_t*>(out) + idx, n, value);
  } else {
    StoreFirst(static_cast<float*>(out) + idx, n, value);
  }
}

// e^x, relative error 2e-7, infinity from x = 88.73 on, 0 far below. x = n ln 2 + r with ln 2 in
// two parts, so that r keeps its bits at large n; the series of e^r up to r^6 leaves 0.35^7 / 7! =
// 1.2e-7.
KVL_LANES Vec Exp(Vec x) {
  x = Smaller(Larger(x, Set1(-110.0f)), Set1(110.0f));
  const Vec n = Nearest(x * Set1(1.44269504f));
  Vec r = Fma(n, Set1(-0.693145752f), x);
  r = Fma(n, Set1(-1.42860677e-6f), r);
  Vec y = Set1(1.0f / 720);
  y = Fma(y, r, Set1(1.0f / 120));
  y = Fma(y, r, Set1(1.0f / 24));
  y = Fma(y, r, Set1(1.0f / 6));
  y = Fma(y, r, Set1(0.5f));
  y = Fma(y, r, Set1(1.0f));
  y = Fma(y, r, Set1(1.0f));
  return TimesPowerOf2(y, n);
}

// Sum of f(x[i]) over i < n; f is not asked for lanes past the end.
template <typename F>
KVL_LANES float Sum(const float* x, int64_t n, const F& f) {
  constexpr int kChains = 4;
  Vec sums[kChains] = {Zero(), Zero(), Zero(), Zero()};
  int64_t i = 0;
  for (; i + kChains * kLanes <= n; i += kChains * kLanes) {
#pragma GCC unroll 4
    for (int j = 0; j < kChains; ++j) sums[j] = sums[j] + f(Load(x + i + j * kLanes));
  }
  for (; i + kLanes <= n; i += kLanes) sums[0] = sums[0] + f(Load(x + i));
  if (i < n) sums[1] = sums[1] + FirstLanes(f(LoadFirst(x + i, n - i)), n - i);
  return SumOfLanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

void RmsNorm(const float* x, const float* weight, float eps, int64_t n_rows, int64_t n_dims,
             DType out_type, void* out) {
  for (int64_t t = 0; t < n_rows; ++t, x += n_dims) {
    const float squares = Sum(
        x, n_dims, [](Vec v) __attribute__((always_inline)) { return v * v; });
    const Vec scale = Set1(1 / __builtin_sqrtf(squares / static_cast<float>(n_dims) + eps));
    for (int64_t i = 0; i < n_dims; i += kLanes) {
      const int64_t n = n_dims - i;
      StoreAs(out_type, LoadFirst(x + i, n) * scale * LoadFirst(weight + i, n), n, out,
              t * n_dims + i);
    }
  }
}

// Two passes: the difference of mean square and squared mean would lose the variance of rows with a
// large mean.
void LayerNorm(const float* x, const float* weight, const float* bias, float eps, int64_t n_rows,
               int64_t n_dims, DType out_type, void* out) {
  for (int64_t t = 0; t < n_rows; ++t, x += n_dims) {
    const float count = static_cast<float>(n_dims);
    const float sum = Sum(
        x, n_dims, [](Vec v) __attribute__((always_inline)) { return v; });
    const Vec mean = Set1(sum / count);
    const float squares = Sum(
        x,
        n_dims, [mean](Vec v) __attribute__((always_inline)) { return (v - mean) * (v - mean); });
    const Vec scale = Set1(1 / __builtin_sqrtf(squares / count + eps));
    for (int64_t i = 0; i < n_dims; i += kLanes) {
      const int64_t n = n_dims - i;
      const Vec normal = (LoadFirst(x + i, n) - mean) * scale;
      StoreAs(out_type, Fma(normal, LoadFirst(weight + i, n), LoadFirst(bias + i, n)), n, out,
              t * n_dims + i);
    }
  }
}

// Phi(-|x|) = erfc(z) / 2, z = |x| / sqrt 2. With t = 1 / (1 + z / 2), erfc(z) = t P(t) exp(-z^2)
// for a polynomial P of degree 8 that interpolates at the Chebyshev points of z in [0, 10]:
// relative error 5.3e-8 there; farther out the exponential is 0.
void Gelu(const float* x, int64_t n, DType out_type, void* out) {
  constexpr float kErfc[] = {2.82082674e-1f,  2.82445042e-1f,  2.42572893e-1f,
                             2.04853655e-1f,  -3.18417575e-2f, 2.85697710e-1f,
                             -4.93863649e-1f, 2.87768310e-1f,  -5.97149190e-2f};
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vec v = LoadFirst(x + i, n - i);
    const Vec t = Set1(1.0f) / Fma(Absolute(v), Set1(0.353553391f), Set1(1.0f));
    Vec tail = Set1(kErfc[8]);
#pragma GCC unroll 8
    for (int k = 7; k >= 0; --k) tail = Fma(tail, t, Set1(kErfc[k]));
    tail = tail * t * (Exp(v * v * Set1(-0.5f)) * Set1(0.5f));
    StoreAs(out_type, v * WherePositive(v, Set1(1.0f) - tail, tail), n - i, out, i);
  }
}

KVL_LANES Vec GeluTanhOf(Vec v) {
  // -2 u = -v (a + b v^2), a = 2 sqrt(2 / pi), b = 0.044715 a
  const Vec slope = Fma(v * v, Set1(-0.0713548163f), Set1(-1.59576912f));
  return v / (Set1(1.0f) + Exp(v * slope));
}

void GeluTanh(const float* x, int64_t n, DType out_type, void* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    StoreAs(out_type, GeluTanhOf(LoadFirst(x + i, n - i)), n - i, out, i);
  }
}

void Convert(const float* x, int64_t n, DType out_type, void* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    StoreAs(out_type, LoadFirst(x + i, n - i), n - i, out, i);
  }
}

void Rope(const float* x, const float* cos, const float* sin, int rope_dim, int head_dim,
          DType out_type, void* out) {
  const int half = rope_dim / 2;
  for (int i = 0; i < half; i += kLanes) {
    const int n = half - i;
    const Vec a = LoadFirst(x + i, n), b = LoadFirst(x + half + i, n);
    const Vec c = LoadFirst(cos + i, n), s = LoadFirst(sin + i, n);
    StoreAs(out_type, a * c - b * s, n, out, i);
    StoreAs(out_type, Fma(b, c, a * s), n, out, half + i);
  }
  for (int i = 2 * half; i < head_dim; i += kLanes) {
    StoreAs(out_type, LoadFirst(x + i, head_dim - i), head_dim - i, out, i);
  }
}

void Swiglu(const float* gate_up, int64_t n_rows, int64_t ffn_dim, DType out_type, void* out) {
  for (int64_t t = 0; t < n_rows; ++t, gate_up += 2 * ffn_dim) {
    for (int64_t i = 0; i < ffn_dim; i += kLanes) {
      const int64_t n = ffn_dim - i;
      const Vec gate = LoadFirst(gate_up + i, n), up = LoadFirst(gate_up + ffn_dim + i, n);
      const Vec silu = gate / (Set1(1.0f) + Exp(Zero() - gate));
      StoreAs(out_type, silu * up, n, out, t * ffn_dim + i);
    }
  }
}

void GegluTanh(const float* gate_up, int64_t n_rows, int64_t ffn_dim, DType out_type, void* out) {
  for (int64_t t = 0; t < n_rows; ++t, gate_up += 2 * ffn_dim) {
    for (int64_t i = 0; i < ffn_dim; i += kLanes) {
      const int64_t n = ffn_dim - i;
      const Vec gate = LoadFirst(gate_up + i, n), up = LoadFirst(gate_up + ffn_dim + i, n);
      StoreAs(out_type, GeluTanhOf(gate) * up, n, out, t * ffn_dim + i);
    }
  }
}

// Larger and Smaller are the second where that is NaN, so that it is not lost.
void Relu2(const float* x, int64_t n, DType out_type, void* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vec positive = Larger(Zero(), LoadFirst(x + i, n - i));
    StoreAs(out_type, positive * positive, n - i, out, i);
  }
}

// e^x - 1 for x <= 0, which keeps its digits near 0: 2^n (e^r - 1) + (2^n - 1) with r as in Exp.
KVL_LANES Vec Expm1(Vec x) {
  x = Larger(x, Set1(-110.0f));
  const Vec n = Nearest(x * Set1(1.44269504f));
  Vec r = Fma(n, Set1(-0.693145752f), x);
  r = Fma(n, Set1(-1.42860677e-6f), r);
  Vec y = Set1(1.0f / 720);
  y = Fma(y, r, Set1(1.0f / 120));
  y = Fma(y, r, Set1(1.0f / 24));
  y = Fma(y, r, Set1(1.0f / 6));
  y = Fma(y, r, Set1(0.5f));
  y = Fma(y, r * r, r);
  return TimesPowerOf2(y, n) + (TimesPowerOf2(Set1(1.0f), n) - Set1(1.0f));
}

void Xielu(const XieluNumbers& numbers, const float* x, int64_t n, DType out_type, void* out) {
  const Vec positive = Set1(numbers.positive), negative = Set1(numbers.negative);
  const Vec beta = Set1(numbers.beta), eps = Set1(numbers.eps);
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vec v = LoadFirst(x + i, n - i);
    const Vec below = (Expm1(Smaller(v, eps)) - v) * negative;
    StoreAs(out_type, Fma(beta, v, WherePositive(v, positive * v * v, below)), n - i, out, i);
  }
}

void ClampedSwiglu(const float* gate_up, int64_t n_rows, int64_t ffn_dim, DType out_type,
                   void* out) {
  for (int64_t t = 0; t < n_rows; ++t, gate_up += 2 * ffn_dim) {
    for (int64_t i = 0; i < ffn_dim; i += kLanes) {
      const int64_t n = ffn_dim - i;
      const Vec gate = Smaller(Set1(kGateLimit), LoadFirst(gate_up + i, n));
      const Vec up =
          Smaller(Set1(kGateLimit), Larger(Set1(-kGateLimit), LoadFirst(gate_up + ffn_dim + i, n)));
      const Vec sigmoid = Set1(1.0f) + Exp(gate * Set1(-kSigmoidSlope));
      StoreAs(out_type, gate / sigmoid * (up + Set1(1.0f)), n, out, t * ffn_dim + i);
    }
  }
}

// A tile of sums, [kRows, 16], stays in registers over all rows.
void AddGram(const float* x, int64_t n_rows, int64_t n_dims, float* gram) {
  constexpr int kVecs = 16 / kLanes, kRows = kVecRegisters / 2 / kVecs;
  for (int64_t i = 0; i < n_dims; i += kRows) {
    for (int64_t j = i / 16 * 16; j < n_dims; j += 16) {
      float* const tile = gram + i * n_dims + j;
      Vec sums[kRows][kVecs];
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) sums[r][v] = Load(tile + r * n_dims + v * kLanes);
      }
      for (int64_t t = 0; t < n_rows; ++t) {
        const float* const row = x + t * n_dims;
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) {
          const Vec columns = Load(row + j + v * kLanes);
#pragma GCC unroll 16
          for (int r = 0; r < kRows; ++r) sums[r][v] = Fma(Set1(row[i + r]), columns, sums[r][v]);
        }
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) Store(tile + r * n_dims + v * kLanes, sums[r][v]);
      }
    }
  }
}

float LargestOf(const float* x, int64_t n) {
  Vec first = Set1(x[0]), second = first;
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    first = Larger(first, Load(x + i));
    second = Larger(second, Load(x + i + kLanes));
  }
  float largest = MaxOfLanes(Larger(first, second));
  for (; i < n; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

void Softmax(float* x, int64_t n, float scale) {
  const Vec largest = Set1(LargestOf(x, n)), scales = Set1(scale);
  Vec sums = Zero();
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vec y = Exp((LoadFirst(x + i, n - i) - largest) * scales);
    sums = sums + FirstLanes(y, n - i);
    StoreFirst(x + i, n - i, y);
  }
  const Vec inverse = Set1(1 / SumOfLanes(sums));
  for (int64_t i = 0; i < n; i += kLanes) {
    StoreFirst(x + i, n - i, LoadFirst(x + i, n - i) * inverse);
  }
}

// With sums S = sum e^f and T = sum e^t of logits f and t less their largest, it is the mean of f -
// t under e^f / S less log S - log T. Sums of a thousand numbers are short enough for floats.
double Kl(const float* from, const float* to, int64_t n) {
  constexpr int64_t kPiece = 1024;
  const float from_largest = LargestOf(from, n), to_largest = LargestOf(to, n);
  const Vec f_largest = Set1(from_largest), t_largest = Set1(to_largest);
  double from_sum = 0, to_sum = 0, difference = 0;
  for (int64_t begin = 0; begin < n; begin += kPiece) {
    const int64_t end = begin + kPiece < n ? begin + kPiece : n;
    Vec from_sums = Zero(), to_sums = Zero(), differences = Zero();
    for (int64_t i = begin; i < end; i += kLanes) {
      const Vec f = LoadFirst(from + i, end - i) - f_largest;
      const Vec t = LoadFirst(to + i, end - i) - t_largest;
      const Vec e = FirstLanes(Exp(f), end - i);
      from_sums = from_sums + e;
      to_sums = to_sums + FirstLanes(Exp(t), end - i);
      differences = Fma(e, f - t, differences);
    }
    from_sum += SumOfLanes(from_sums);
    to_sum += SumOfLanes(to_sums);
    difference += SumOfLanes(differences);
  }
  return difference / from_sum + __builtin_log(to_sum / from_sum);
}

constexpr ElementwiseKernels kElementwiseLanes = {.rms_norm = RmsNorm,
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

}  // namespace
}  // namespace kvlathe
