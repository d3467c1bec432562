// How a decoder merges keys and values while it is trained for Dynamic Memory Compression (Nawrot
// et al., 2024, arXiv 2403.09636, sections 3.2 and 3.3; docs/methods/dmc.md for what the engine
// does with the result).
//
// Between projection and RoPE, for each KV head, with alpha in (0, 1) instead of a decision:
//   x_t = (k_t[c] - offset + noise) / temperature
//   alpha_t = sigmoid(x_t), alpha_0 = 0
//   omega_t = sigmoid(mean over the group of q_t[c] + weight_offset) + epsilon
//   k_t <- sum_i C_ti k_i / sum_i C_ti, over the newest `window` positions i up to t
//   C_ti = omega_i alpha_{i+1} .. alpha_t
// and v_t alike; queries at i > j see column j by log(1 - alpha_{j+1}) less. All in F32 (or F64).
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "model/config.h"
#include "training/retrofit/dmc_recipe.h"

namespace kvlathe {

enum class DmcDecisions {
  kRelaxed,  // alpha with noise: training
  kHard,     // joins or does not, as the engine decides: evaluation
};

struct DmcPassOptions {
  DmcDecisions decisions = DmcDecisions::kRelaxed;
  DmcVariant variant;
  double temperature = 0.1;
  int window = 12;
  // What the deciding channel of q and k is multiplied with. While it is zeroed out (the first
  // stage), nothing merges yet: then 1 - t / 250, and `merges` is false.
  double channel_scale = 0;
  bool merges = true;
  uint64_t noise_seed = 0;  // the same seed, the same noise
};

// y_t = sum_{j < window} coefficients_tj x_{t-j}, with x_{t-j} = 0 before the first; x [batch,
// n_heads, n_tokens, n], coefficients [batch, n_heads, n_tokens, window].
torch::Tensor WindowedSum(const torch::Tensor& x, const torch::Tensor& coefficients);

// The normalised coefficients C_t,t-j / sum_j C_t,t-j of alpha and omega [batch, n_heads,
// n_tokens].
torch::Tensor MergeCoefficients(const torch::Tensor& alpha, const torch::Tensor& omega, int window);

// x [..., head_dim] with one channel times `scale`.
torch::Tensor ScaleChannel(const torch::Tensor& x, int64_t channel, double scale);

// One forward pass through all layers: every layer merges, and the decisions of all are kept for
// the loss.
class DmcPass {
 public:
  DmcPass(const DmcConfig& config, const DmcPassOptions& options)
      : config_(config), options_(options) {}

  struct Merged {
    torch::Tensor q, k, v;  // shapes and types of what came in
    // [batch, n_kv_heads, n_tokens], F32: added to the scores of column j in rows i > j. Undefined
    // where nothing merges.
    torch::Tensor column_bias;
  };
  // q [batch, n_tokens, n_heads, head_dim], k and v [batch, n_tokens, n_kv_heads, head_dim] before
  // RoPE; layers are called in order.
  Merged Merge(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v);

  // The channel that decides.
  int64_t Channel(int64_t head_dim) const { return config_.is_last ? head_dim - 1 : 0; }
  // What the channel of q and k is multiplied with behind RoPE.
  double scale_after_rope() const { return config_.zeroes_after_rope ? options_.channel_scale : 1; }
  // alpha of every layer that merged: [n_layers, batch, n_kv_heads, n_tokens].
  torch::Tensor Alpha() const { return torch::stack(alpha_); }

 private:
  torch::Tensor Noise(const torch::Tensor& like) const;

  DmcConfig config_;
  DmcPassOptions options_;
  std::vector<torch::Tensor> alpha_;
};

// What the entries that are kept cost beyond 1 / cr of the positions.
struct DmcLossOptions {
  double cr = 1;  // at least 1
  DmcHinge hinge = DmcHinge::kGlobal;
  bool is_consistent = false;
};

// A scalar. alpha as of DmcPass::Alpha.
torch::Tensor DmcLoss(const torch::Tensor& alpha, const DmcLossOptions& options);

}  // namespace kvlathe
