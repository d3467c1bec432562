#include "training/retrofit/fisher.h"

#include <torch/autograd.h>

#include <cmath>
#include <utility>

#include "base/check.h"

namespace kvlathe {
namespace {

using torch::Tensor;

// W_K or W_V of a layer: columns of a parameter, or all of it.
struct Matrix {
  size_t parameter_idx;  // among those whose gradients are taken
  int64_t first_column, n_columns;
  double* weight;
};

struct Matrices {
  std::vector<Tensor> parameters;
  std::vector<Matrix> matrices;
};

Matrices FindMatrices(const Decoder& decoder, FisherWeights* weights) {
  Matrices found;
  for (const auto& [name, parameter] : decoder.parameters()) {
    const bool is_k = name.ends_with("self_attn.k_proj.weight");
    const bool is_v = name.ends_with("self_attn.v_proj.weight");
    const bool is_qkv = name.ends_with("attn.c_attn.weight");  // GPT-2: columns of Q, K and V
    if (!is_k && !is_v && !is_qkv) continue;
    const size_t idx = found.parameters.size(), layer_idx = LayerOf(name);
    const int64_t n = is_qkv ? parameter.size(1) / 3 : parameter.size(1);
    found.parameters.push_back(parameter);
    if (!is_v) found.matrices.push_back({idx, is_qkv ? n : 0, n, &weights->k[layer_idx]});
    if (!is_k) found.matrices.push_back({idx, is_qkv ? 2 * n : 0, n, &weights->v[layer_idx]});
  }
  return found;
}

Tensor LossOf(const Decoder& decoder, const std::vector<int64_t>& sequence) {
  const int64_t n = std::ssize(sequence) - 1;
  const Tensor tokens = torch::tensor(sequence, torch::kLong).to(decoder.device()).view({1, n + 1});
  const auto type = decoder.parameters().front().second.scalar_type();
  return CrossEntropy(decoder.Logits(decoder.Hidden(tokens.narrow(1, 0, n), type)),
                      tokens.narrow(1, 1, n).reshape({-1}))
      .mean();
}

}  // namespace

StatusOr<FisherWeights> MeasureFisher(const Decoder& decoder,
                                      std::span<const std::vector<int64_t>> sequences) {
  KVL_CHECK(!sequences.empty());
  FisherWeights weights;
  weights.k.resize(decoder.config().n_layers);
  weights.v.resize(decoder.config().n_layers);
  const Matrices found = FindMatrices(decoder, &weights);
  std::vector<Tensor> squares;
  for (const Tensor& parameter : found.parameters) {
    squares.push_back(torch::zeros(parameter.sizes(),
                                   parameter.options().dtype(torch::kDouble).requires_grad(false)));
  }
  for (const std::vector<int64_t>& sequence : sequences) {
    KVL_CHECK_GE(std::ssize(sequence), 2);
    const std::vector<Tensor> gradients =
        torch::autograd::grad({LossOf(decoder, sequence)}, found.parameters);
    for (size_t i = 0; i < gradients.size(); ++i) {
      squares[i] += gradients[i].to(torch::kDouble).square();
    }
    weights.n_tokens += std::ssize(sequence);
  }
  for (const Matrix& m : found.matrices) {
    const Tensor mean = squares[m.parameter_idx].narrow(1, m.first_column, m.n_columns) /
                        static_cast<double>(sequences.size());
    *m.weight = mean.sqrt().mean().item<double>();
    if (!std::isfinite(*m.weight)) {
      return Error(StatusCode::kDataLoss, "gradients of the model are not finite on this text");
    }
  }
  return weights;
}

}  // namespace kvlathe
