// The norms of a model as operators on rows.
#pragma once

#include <vector>

#include "calibration/gradients/row_operators.h"
#include "model/weights.h"

namespace kvlathe {

class ModelNorms {
 public:
  // `config` outlives this.
  explicit ModelNorms(const ModelConfig& config);

  // Of what attention, the MLP and the output head read.
  RowNorm OfStream(const NormWeights& norm) const;
  // Of what attention and the MLP put out.
  RowNorm OfOutput(const NormWeights& norm) const;
  // Of queries or keys, n_heads of a token side by side; a model has them (NormConfig::of_qk).
  RowNorm OfHeads(const NormWeights& norm, int n_heads) const;

 private:
  RowNorm Of(NormKind kind, const NormWeights& norm, int64_t n_dims) const;

  const ModelConfig& config_;
  std::vector<float> ones_, zeros_;  // as many as the widest row has numbers
};

}  // namespace kvlathe
