#include "training/retrofit/merging/merge_pass.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/autograd.h>

#include <algorithm>

namespace kvlathe {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// y_t = sum over j of c_tj x_{t-j} for the rows of one sequence and head: x and y are [n_tokens,
// dim], c is [n_tokens, window].
template <typename T>
void SumWindow(const T* x, const T* c, int64_t n_tokens, int64_t dim, int64_t window, T* y) {
  for (int64_t t = 0; t < n_tokens; ++t) {
    T* out = y + t * dim;
    std::fill(out, out + dim, T{0});
    for (int64_t j = 0; j < std::min(window, t + 1); ++j) {
      const T weight = c[t * window + j];
      const T* row = x + (t - j) * dim;
#pragma omp simd
      for (int64_t i = 0; i < dim; ++i) out[i] += weight * row[i];
    }
  }
}

// dx_{t-j} += c_tj dy_t and dc_tj = dy_t x_{t-j}; dx is 0 before.
template <typename T>
void SumWindowBackward(const T* x, const T* c, const T* dy, int64_t n_tokens, int64_t dim,
                       int64_t window, T* dx, T* dc) {
  for (int64_t t = 0; t < n_tokens; ++t) {
    const T* grad = dy + t * dim;
    for (int64_t j = 0; j < std::min(window, t + 1); ++j) {
      const T weight = c[t * window + j];
      const T* row = x + (t - j) * dim;
      T* d_row = dx + (t - j) * dim;
      T dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t i = 0; i < dim; ++i) {
        d_row[i] += weight * grad[i];
        dot += grad[i] * row[i];
      }
      dc[t * window + j] = dot;
    }
  }
}

// Both keep x and the coefficients; without a gradient of their own x would be kept once for every
// place of the window. On the CPU one pass over memory takes the place of two dozen operations.
struct WindowedSumOperations : torch::autograd::Function<WindowedSumOperations> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& coefficients) {
    context->save_for_backward({x, coefficients});
    Tensor y = x * coefficients.narrow(3, 0, 1);
    const int64_t n_tokens = x.size(2);
    for (int64_t j = 1; j < std::min(coefficients.size(3), n_tokens); ++j) {
      const int64_t n = n_tokens - j;
      y.narrow(2, j, n).addcmul_(coefficients.narrow(3, j, 1).narrow(2, j, n), x.narrow(2, 0, n));
    }
    return y;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &coefficients = saved[1], &dy = grads[0];
    Tensor dx = dy * coefficients.narrow(3, 0, 1);
    Tensor d_coefficients = torch::zeros_like(coefficients);
    d_coefficients.select(3, 0).copy_((dy * x).sum(-1));
    const int64_t n_tokens = x.size(2);
    for (int64_t j = 1; j < std::min(coefficients.size(3), n_tokens); ++j) {
      const int64_t n = n_tokens - j;
      const Tensor dy_late = dy.narrow(2, j, n);
      dx.narrow(2, 0, n).addcmul_(coefficients.narrow(3, j, 1).narrow(2, j, n), dy_late);
      d_coefficients.select(3, j).narrow(2, j, n).copy_((dy_late * x.narrow(2, 0, n)).sum(-1));
    }
    return {dx, d_coefficients};
  }
};

struct WindowedSumOnCpu : torch::autograd::Function<WindowedSumOnCpu> {
  static Tensor forward(AutogradContext* context, const Tensor& x_in, const Tensor& c_in) {
    const Tensor x = x_in.contiguous(), c = c_in.contiguous();
    context->save_for_backward({x, c});
    Tensor y = torch::empty_like(x);
    const int64_t n_tokens = x.size(2), dim = x.size(3), window = c.size(3);
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "windowed_sum", [&] {
      const scalar_t *px = x.data_ptr<scalar_t>(), *pc = c.data_ptr<scalar_t>();
      scalar_t* py = y.data_ptr<scalar_t>();
      at::parallel_for(0, x.size(0) * x.size(1), 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t rows = i * n_tokens;
          SumWindow(px + rows * dim, pc + rows * window, n_tokens, dim, window, py + rows * dim);
        }
      });
    });
    return y;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &c = saved[1], dy = grads[0].contiguous();
    Tensor dx = torch::zeros_like(x), dc = torch::zeros_like(c);
    const int64_t n_tokens = x.size(2), dim = x.size(3), window = c.size(3);
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "windowed_sum_backward", [&] {
      const scalar_t *px = x.data_ptr<scalar_t>(), *pc = c.data_ptr<scalar_t>();
      const scalar_t* pdy = dy.data_ptr<scalar_t>();
      scalar_t *pdx = dx.data_ptr<scalar_t>(), *pdc = dc.data_ptr<scalar_t>();
      at::parallel_for(0, x.size(0) * x.size(1), 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t rows = i * n_tokens;
          SumWindowBackward(px + rows * dim, pc + rows * window, pdy + rows * dim, n_tokens, dim,
                            window, pdx + rows * dim, pdc + rows * window);
        }
      });
    });
    return {dx, dc};
  }
};

// x_{t-j} in place of x_t, 0 before the first. The last dimension is positions.
Tensor Later(const Tensor& x, int64_t j) {
  const int64_t n = x.size(-1);
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = std::min(j, n);
  const Tensor front = torch::zeros(shape, x.options());
  return j >= n ? front : torch::cat({front, x.narrow(-1, 0, n - j)}, -1);
}

}  // namespace

Tensor WindowedSum(const Tensor& x, const Tensor& coefficients) {
  if (!x.device().is_cpu()) return WindowedSumByOperations(x, coefficients);
  return WindowedSumOnCpu::apply(x, coefficients);
}

Tensor WindowedSumByOperations(const Tensor& x, const Tensor& coefficients) {
  return WindowedSumOperations::apply(x, coefficients);
}

Tensor MergeCoefficients(const Tensor& alpha, const Tensor& omega, int window) {
  std::vector<Tensor> columns = {omega};
  Tensor joined = torch::ones_like(alpha);  // alpha_{t-j+1} .. alpha_t
  for (int64_t j = 1; j < window; ++j) {
    joined = joined * Later(alpha, j - 1);
    columns.push_back(joined * Later(omega, j));
  }
  const Tensor coefficients = torch::stack(columns, -1);
  return coefficients / coefficients.sum(-1, true);
}

void MergeRows(const Tensor& alpha, const Tensor& omega, int window, Tensor* k, Tensor* v) {
  const int64_t head_dim = k->size(3);
  const Tensor coefficients = MergeCoefficients(alpha, omega, window);
  const Tensor rows = torch::cat({*k, *v}, -1).to(alpha.scalar_type()).transpose(1, 2).contiguous();
  const Tensor means = WindowedSum(rows, coefficients).transpose(1, 2).to(k->scalar_type());
  const int64_t value_dim = v->size(3);
  *k = means.narrow(3, 0, head_dim);
  *v = means.narrow(3, head_dim, value_dim);
}

}  // namespace kvlathe
