#include <immintrin.h>

#include "kernels/cpu/elementwise_isa.h"

namespace kvlathe {
namespace {

#define KVL_INLINE inline __attribute__((always_inline))

constexpr int64_t kLanes = 16;

KVL_INLINE __mmask16 MaskOf(int64_t n) {
  return n >= kLanes ? 0xffff : static_cast<__mmask16>((1u << n) - 1);
}

KVL_INLINE void Store(__m512 value, __mmask16 mask, DType out_type, void* out, int64_t idx) {
  if (out_type == DType::kBf16) {
    _mm256_mask_storeu_epi16(static_cast<uint16_t*>(out) + idx, mask,
                             reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value)));
  } else {
    _mm512_mask_storeu_ps(static_cast<float*>(out) + idx, mask, value);
  }
}

// e^x, relative error 2e-7, infinity from x = 88.73 on. x = n ln 2 + r with ln 2 in two parts, so
// that r keeps its bits at large n; the series of e^r up to r^6 leaves 0.35^7 / 7! = 1.2e-7.
KVL_INLINE __m512 Exp(__m512 x) {
  x = _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-110.0f)), _mm512_set1_ps(110.0f));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693145752f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(1.42860677e-6f), r);
  __m512 y = _mm512_set1_ps(1.0f / 720);
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.0f / 120));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.0f / 24));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.0f / 6));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(0.5f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.0f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(y, n);
}

float SumOfSquares(const float* x, int64_t n) {
  __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
                    _mm512_setzero_ps()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m512 v = _mm512_loadu_ps(x + i + j * kLanes);
      sums[j] = _mm512_fmadd_ps(v, v, sums[j]);
    }
  }
  for (; i < n; i += kLanes) {
    const __m512 v = _mm512_maskz_loadu_ps(MaskOf(n - i), x + i);
    sums[0] = _mm512_fmadd_ps(v, v, sums[0]);
  }
  return _mm512_reduce_add_ps(
      _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3])));
}

void RmsNorm(const float* x, const float* weight, float eps, int64_t n_rows, int64_t n_dims,
             DType out_type, void* out) {
  for (int64_t t = 0; t < n_rows; ++t, x += n_dims) {
    const float mean = SumOfSquares(x, n_dims) / static_cast<float>(n_dims);
    const __m512 scale = _mm512_set1_ps(1 / __builtin_sqrtf(mean + eps));
    for (int64_t i = 0; i < n_dims; i += kLanes) {
      const __mmask16 mask = MaskOf(n_dims - i);
      const __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), scale);
      Store(_mm512_mul_ps(v, _mm512_maskz_loadu_ps(mask, weight + i)), mask, out_type, out,
            t * n_dims + i);
    }
  }
}

// Sum of f(x[i]) over i < n; lanes past the end count nothing.
template <typename F>
KVL_INLINE float Sum(const float* x, int64_t n, const F& f) {
  __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
                    _mm512_setzero_ps()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      sums[j] = _mm512_add_ps(sums[j], f(_mm512_loadu_ps(x + i + j * kLanes)));
    }
  }
  for (; i < n; i += kLanes) {
    const __mmask16 mask = MaskOf(n - i);
    const __m512 value = f(_mm512_maskz_loadu_ps(mask, x + i));
    sums[0] = _mm512_mask_add_ps(sums[0], mask, sums[0], value);
  }
  return _mm512_reduce_add_ps(
      _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3])));
}

// Two passes: the difference of mean square and squared mean would lose the variance of rows with a
// large mean.
void LayerNorm(const float* x, const float* weight, const float* bias, float eps, int64_t n_rows,
               int64_t n_dims, DType out_type, void* out) {
  for (int64_t t = 0; t < n_rows; ++t, x += n_dims) {
    const float n = static_cast<float>(n_dims);
    const __m512 mean = _mm512_set1_ps(Sum(x, n_dims, [](__m512 v) { return v; }) / n);
    const float variance = Sum(
                               x, n_dims,
                               [mean](__m512 v) __attribute__((always_inline)) {
                                 const __m512 apart = _mm512_sub_ps(v, mean);
                                 return _mm512_mul_ps(apart, apart);
                               }) /
                           n;
    const __m512 scale = _mm512_set1_ps(1 / __builtin_sqrtf(variance + eps));
    for (int64_t i = 0; i < n_dims; i += kLanes) {
      const __mmask16 mask = MaskOf(n_dims - i);
      const __m512 apart = _mm512_sub_ps(_mm512_maskz_loadu_ps(mask, x + i), mean);
      const __m512 normal = _mm512_mul_ps(apart, scale);
      Store(_mm512_fmadd_ps(normal, _mm512_maskz_loadu_ps(mask, weight + i),
                            _mm512_maskz_loadu_ps(mask, bias + i)),
            mask, out_type, out, t * n_dims + i);
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
  const __m512 one = _mm512_set1_ps(1.0f);
  for (int64_t i = 0; i < n; i += kLanes) {
    const __mmask16 mask = MaskOf(n - i);
    const __m512 v = _mm512_maskz_loadu_ps(mask, x + i);
    const __m512 half_z = _mm512_mul_ps(_mm512_abs_ps(v), _mm512_set1_ps(0.353553391f));
    const __m512 t = _mm512_div_ps(one, _mm512_add_ps(one, half_z));
    __m512 tail = _mm512_set1_ps(kErfc[8]);
#pragma GCC unroll 8
    for (int k = 7; k >= 0; --k) tail = _mm512_fmadd_ps(tail, t, _mm512_set1_ps(kErfc[k]));
    const __m512 exp = Exp(_mm512_mul_ps(_mm512_mul_ps(v, v), _mm512_set1_ps(-0.5f)));
    tail = _mm512_mul_ps(_mm512_mul_ps(tail, t), _mm512_mul_ps(exp, _mm512_set1_ps(0.5f)));
    const __mmask16 is_positive = _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_GT_OQ);
    Store(_mm512_mul_ps(v, _mm512_mask_sub_ps(tail, is_positive, one, tail)), mask, out_type, out,
          i);
  }
}

void GeluTanh(const float* x, int64_t n, DType out_type, void* out) {
  const __m512 one = _mm512_set1_ps(1.0f);
  for (int64_t i = 0; i < n; i += kLanes) {
    const __mmask16 mask = MaskOf(n - i);
    const __m512 v = _mm512_maskz_loadu_ps(mask, x + i);
    // -2 u = -v (a + b v^2), a = 2 sqrt(2 / pi), b = 0.044715 a
    const __m512 slope = _mm512_fmadd_ps(_mm512_mul_ps(v, v), _mm512_set1_ps(-0.0713548163f),
                                         _mm512_set1_ps(-1.59576912f));
    const __m512 exp = Exp(_mm512_mul_ps(v, slope));
    Store(_mm512_div_ps(v, _mm512_add_ps(one, exp)), mask, out_type, out, i);
  }
}

void Convert(const float* x, int64_t n, DType out_type, void* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const __mmask16 mask = MaskOf(n - i);
    Store(_mm512_maskz_loadu_ps(mask, x + i), mask, out_type, out, i);
  }
}

void Rope(const float* x, const float* cos, const float* sin, int rope_dim, int head_dim,
          DType out_type, void* out) {
  const int half = rope_dim / 2;
  for (int i = 0; i < half; i += kLanes) {
    const __mmask16 mask = MaskOf(half - i);
    const __m512 a = _mm512_maskz_loadu_ps(mask, x + i);
    const __m512 b = _mm512_maskz_loadu_ps(mask, x + half + i);
    const __m512 c = _mm512_maskz_loadu_ps(mask, cos + i);
    const __m512 s = _mm512_maskz_loadu_ps(mask, sin + i);
    Store(_mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)), mask, out_type, out, i);
    Store(_mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)), mask, out_type, out, half + i);
  }
  for (int i = 2 * half; i < head_dim; i += kLanes) {
    const __mmask16 mask = MaskOf(head_dim - i);
    Store(_mm512_maskz_loadu_ps(mask, x + i), mask, out_type, out, i);
  }
}

void Swiglu(const float* gate_up, int64_t n_rows, int64_t ffn_dim, DType out_type, void* out) {
  const __m512 one = _mm512_set1_ps(1.0f);
  for (int64_t t = 0; t < n_rows; ++t, gate_up += 2 * ffn_dim) {
    for (int64_t i = 0; i < ffn_dim; i += kLanes) {
      const __mmask16 mask = MaskOf(ffn_dim - i);
      const __m512 gate = _mm512_maskz_loadu_ps(mask, gate_up + i);
      const __m512 up = _mm512_maskz_loadu_ps(mask, gate_up + ffn_dim + i);
      const __m512 exp = Exp(_mm512_sub_ps(_mm512_setzero_ps(), gate));
      const __m512 silu = _mm512_div_ps(gate, _mm512_add_ps(one, exp));
      Store(_mm512_mul_ps(silu, up), mask, out_type, out, t * ffn_dim + i);
    }
  }
}

}  // namespace

const ElementwiseKernels kElementwiseAvx512 = {.rms_norm = RmsNorm,
                                               .layer_norm = LayerNorm,
                                               .rope = Rope,
                                               .swiglu = Swiglu,
                                               .gelu = Gelu,
                                               .gelu_tanh = GeluTanh,
                                               .convert = Convert};

}  // namespace kvlathe
