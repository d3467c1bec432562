// Sums up how much the loss of a text hangs on W_K and W_V of each layer, for palu(ranks=fisher).
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/ranks/fisher.h"
#include "base/status.h"
#include "base/threads.h"
#include "calibration/gradients/layer_pass.h"

namespace kvlathe {

// Memory: as many F32 numbers as W_K and W_V of all layers have. Cost: a multiply-add for each
// weight and token.
class WeightFisherSums {
 public:
  // Projections read rows of hidden_dim numbers and make rows of `width`. `pool` outlives this.
  WeightFisherSums(int n_layers, int64_t hidden_dim, int64_t width, ThreadPool* pool);

  // Adds the squared gradients of one sequence's log-likelihood; each layer once a sequence.
  void Add(const RowGradients& gradients);
  // The weights, without what they were measured on. kDataLoss if gradients are not finite.
  StatusOr<FisherWeights> Finish(int64_t n_sequences) const;

 private:
  void AddSquares(const RowGradients& gradients, const float* rows, int64_t row_stride,
                  std::vector<float>* squares);

  int64_t hidden_dim_, width_;
  ThreadPool* pool_;
  std::vector<std::vector<float>> k_, v_;     // of layers, [width, hidden_dim]
  std::vector<std::vector<float>> products_;  // of the workers
};

}  // namespace kvlathe
