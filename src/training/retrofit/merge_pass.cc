#include "training/retrofit/merge_pass.h"

#include <torch/autograd.h>

#include <algorithm>

namespace kvlathe {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Keeps x and the coefficients; single operations would keep x once for every place of the window.
struct WindowedSumFunction : torch::autograd::Function<WindowedSumFunction> {
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
  return WindowedSumFunction::apply(x, coefficients);
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
