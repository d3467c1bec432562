// Codebooks are fitted to a calibration (KVQuant, arXiv 2401.18079; docs/methods/kvquant.md):
// ranges per channel of K, and one set of centroids per layer for K and one for V.
//
// Quotients are (x - offset) / range. Of K, range and offset reach from the share / 2 to the
// 1 - share / 2 quantile of the channel as it is stored: before RoPE without a basis, and in the
// basis after it. Of V, they are those of a token over all heads, as sealing makes them
// (cpu/kernels/seal/seal.h). Centroids are the exact weighted k-means of the quotients inside. The
// paper weighs each element by its squared gradient; here elements of a channel share the mean of
// those, the Fisher information of the channel (JointMoments::fisher), times range^2. Where the
// statistics hold no gradients, K weighs range^2 times the mean squared query in the channel, V
// range^2, so that the squared errors of scores and of values are what is minimised.
//
// The statistics hold no joint distribution of a token's values: tokens are drawn channel by
// channel. Of channels of a basis they hold mean and variance: such a channel is taken as normal
// where nobody has its histogram.
#pragma once

#include <vector>

#include "analysis/bases/basis.h"
#include "analysis/statistics/statistics.h"
#include "format/codebook/codebook.h"
#include "kv/cache_layout.h"

namespace kvlathe {

using ModelCodebooks = std::vector<LayerCodebooks>;  // [n_layers]

// Of what a basis stores of text: channel (layer_idx * n_kv_heads + kv_head_idx) * head_dim + r is
// the stored channel r of the head.
struct BasisHistograms {
  ChannelHistograms k, v;
};

struct CodebookInputs {
  const CalibrationStatistics* statistics = nullptr;
  const ModelBasis* basis = nullptr;  // null: rows as they are
  int rope_dim = 0;                   // channels that turn, of a model without a basis
  int bits = 4;
  double outliers = 0;  // share of the entries that are kept exactly
  bool matches_moments =
      false;  // Q-Norm: centroids with the mean and deviation of what they encode
  const BasisHistograms* histograms = nullptr;  // of the basis; null: its channels are normal
};

ModelCodebooks FitCodebooks(const CodebookInputs& inputs);

// Centroids spread evenly over [-1, 1], all channels of K of range 4 about 0: for models whose
// weights are random, and benchmarks without one.
ModelCodebooks EvenCodebooks(const CacheLayout& layout);

int64_t CodebookBytes(const ModelCodebooks& codebooks);

}  // namespace kvlathe
