// Tests compare gradients of libtorch functions with central differences.
#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <functional>

namespace kvlathe {

inline torch::TensorOptions Double() { return torch::TensorOptions().dtype(torch::kDouble); }

// Compares d loss / d input at `n_probes` places with central differences. `loss` must be smooth.
inline void CheckGradient(const std::function<torch::Tensor()>& loss, torch::Tensor input,
                          int n_probes) {
  input.mutable_grad() = torch::Tensor();
  loss().backward();
  ASSERT_TRUE(input.grad().defined());
  const torch::Tensor gradient = input.grad().flatten().clone();
  const torch::NoGradGuard no_grad;
  torch::Tensor flat = input.view({-1});
  constexpr double kStep = 1e-5;
  for (int probe = 0; probe < n_probes; ++probe) {
    const int64_t i = probe * 7919 % flat.numel();
    const double at = flat[i].item<double>();
    flat[i] = at + kStep;
    const double above = loss().item<double>();
    flat[i] = at - kStep;
    const double below = loss().item<double>();
    flat[i] = at;
    const double expected = (above - below) / (2 * kStep);
    EXPECT_NEAR(gradient[i].item<double>(), expected, 1e-7 + 1e-5 * std::abs(expected))
        << "at " << i << " of " << flat.numel();
  }
}

// A loss that weighs every element of y differently.
inline torch::Tensor Weigh(const torch::Tensor& y) {
  const torch::Tensor weights = torch::linspace(-1, 1, y.numel(), Double()).view(y.sizes());
  return (y * weights).sum() + (y * y * weights.flip(0)).sum();
}

}  // namespace kvlathe
