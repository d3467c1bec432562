// Heads of Dynamic Memory Sparsification begin with what attention says, without a step of
// training. What an entry would be missed by, once it is out of the window, is measured in backward
// passes of the model as it is, over text that it would write itself: targets are drawn from its
// own distributions, so that the squared gradient is, in the mean, the second derivative of the
// divergence that the loss of an entry causes (Fisher's information). Its logarithm is regressed on
// what the head sees when it decides.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "training/retrofit/decoder.h"
#include "training/retrofit/dms/dms_recipe.h"

namespace kvlathe {

class DmsFit {
 public:
  // `decoder`, which has heads, and `recipe` outlive the fit.
  DmsFit(Decoder* decoder, const DmsRecipe* recipe, torch::ScalarType compute_type, uint64_t seed);

  // Measures a sequence of tokens [1, n_tokens] int64.
  void Add(const torch::Tensor& tokens);
  int64_t n_sequences() const { return n_sequences_; }

  // Sets the heads of the decoder: one threshold for the predicted costs of all heads, such that
  // `kept_share` of the entries that were measured stays; so heads compete for entries. kDataLoss
  // where costs are not finite or nothing was measured.
  Status Solve(double kept_share);

 private:
  struct Rows {
    std::vector<torch::Tensor> normed;  // [n, hidden] BF16, a sequence each
    std::vector<torch::Tensor> cost;    // [n_kv_heads, n]
    std::vector<torch::Tensor> weight;  // [n]
  };
  // w and b below each other, [hidden + 1, n_kv_heads]: predicted log costs of (normed, 1).
  torch::Tensor Regress(const Rows& rows) const;

  Decoder* decoder_;
  const DmsRecipe& recipe_;
  torch::ScalarType compute_type_;
  uint64_t seed_;
  int64_t n_sequences_ = 0;
  std::vector<Rows> layers_;
};

}  // namespace kvlathe
