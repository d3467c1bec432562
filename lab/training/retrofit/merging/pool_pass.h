// A model that is trained with a pooled cache computes what `pool(n,sink)` of the engine computes
// (the fixed memory pooling of Nawrot et al., 2024, arXiv 2403.09636, section 4;
// docs/methods/pool.md).
//
// Behind the first n_sink positions every `every` consecutive positions are one entry, with equal
// weights. Position t of entry t1 .. t2 stands for the mean of t1 .. t, keys before RoPE; queries
// see that of their own position and those of the newest positions of the entries before.
#pragma once

#include <torch/types.h>

#include "training/retrofit/merging/merge_pass.h"
#include "training/retrofit/recipe.h"

namespace kvlathe {

class PoolPass : public MergePass {
 public:
  explicit PoolPass(const PoolRecipe& recipe) : recipe_(recipe) {}

  Merged Merge(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v) override;

 private:
  PoolRecipe recipe_;
};

}  // namespace kvlathe
