// A decoder loses entries of its cache this way while its heads are trained for Dynamic Memory
// Sparsification (Lancucki et al., 2025, arXiv 2506.05345).
//
// For each layer and KV head, x_t being the residual stream before the layer's norm:
//   a_t = scale (w RMSNorm(x_t) + b) - offset
//   z_t = (a_t + noise) / temperature, the noise logistic
//   queries at i >= j + window see column j by log(1 - sigmoid(z_{j+1})) less
// What position j + 1 decides governs the entry of position j. Decided as the engine does, z is a,
// and an entry leaves where it is above 0. All in F32 (or F64).
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "training/retrofit/decoder.h"
#include "training/retrofit/dms/dms_recipe.h"
#include "training/retrofit/merging/merge_pass.h"

namespace kvlathe {

struct DmsPassOptions {
  bool is_hard = false;  // decided as the engine does: evaluation
  double norm_epsilon = 1e-5;
  uint64_t noise_seed = 0;  // the same seed, the same noise
};

// The logits a [batch, n_kv_heads, n_tokens] of a residual stream [batch, n_tokens, hidden].
torch::Tensor DmsLogits(const DmsHead& head, const torch::Tensor& residual, const DmsRecipe& recipe,
                        double norm_epsilon);

class DmsPass : public MergePass {
 public:
  // `heads`, one a layer, and `recipe` outlive the pass.
  DmsPass(const std::vector<DmsHead>* heads, const DmsRecipe* recipe, const DmsPassOptions& options)
      : heads_(*heads), recipe_(*recipe), options_(options) {}

  void Observe(const torch::Tensor& residual) override;
  Merged Merge(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v) override;
  // Of the positions that some query is too far from: [n_layers, batch, n_kv_heads, n]; undefined
  // where a sequence is no longer than the window.
  torch::Tensor Alpha() const override;

 private:
  torch::Tensor Noise(const torch::Tensor& like) const;

  const std::vector<DmsHead>& heads_;
  const DmsRecipe& recipe_;
  DmsPassOptions options_;
  torch::Tensor bias_;  // of the layer that is computed
  std::vector<torch::Tensor> alpha_;
  size_t n_layers_ = 0;  // begun so far
};

}  // namespace kvlathe
