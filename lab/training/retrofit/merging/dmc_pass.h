// A decoder merges keys and values this way while it is trained for Dynamic Memory Compression
// (Nawrot et al., 2024, arXiv 2403.09636, sections 3.2 and 3.3; docs/methods/dmc.md for what the
// engine does with the result).
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
#include "training/retrofit/merging/merge_pass.h"

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

// x [..., head_dim] with one channel times `scale`.
torch::Tensor ScaleChannel(const torch::Tensor& x, int64_t channel, double scale);

// Every layer merges, and the decisions of all are kept for the loss.
class DmcPass : public MergePass {
 public:
  DmcPass(const DmcConfig& config, const DmcPassOptions& options)
      : config_(config), options_(options) {}

  Merged Merge(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v) override;
  torch::Tensor AfterRope(const torch::Tensor& qk) const override;
  // Undefined while nothing merges.
  torch::Tensor Alpha() const override;

 private:
  // The channel that decides.
  int64_t Channel(int64_t head_dim) const { return config_.is_last ? head_dim - 1 : 0; }
  torch::Tensor Noise(const torch::Tensor& like) const;

  DmcConfig config_;
  DmcPassOptions options_;
  std::vector<torch::Tensor> alpha_;
};

// What the entries that are kept cost beyond 1 / cr of the positions.
struct DmcLossOptions {
  double cr = 1;  // at least 1
  DmcHinge hinge = DmcHinge::kGlobal;
  double hinge_weight = 1;
  bool is_consistent = false;
};

// A scalar. alpha as of DmcPass::Alpha.
torch::Tensor DmcLoss(const torch::Tensor& alpha, const DmcLossOptions& options);

}  // namespace kvlathe
