#include "kv/basis/palu.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "base/check.h"
#include "kv/basis/gram.h"
#include "kv/basis/rotation.h"
#include "kv/basis/spectrum.h"

namespace kvlathe {
namespace {

// Directions in which rows have less than this share of the largest are scaled as if they had it.
constexpr double kLeastShare = 1e-6;

// X^T X / rows of one head, of rows less their bias.
std::vector<double> GramWithoutBias(const HeadMoments& moments, int64_t head_idx, int dim,
                                    std::span<const float> bias) {
  std::vector<double> gram = GramOf(moments, head_idx, dim);
  if (bias.empty()) return gram;
  const float* mean = moments.mean.data() + head_idx * dim;
  for (int i = 0; i < dim; ++i) {
    for (int j = 0; j < dim; ++j) {
      gram[i * dim + j] +=
          double{bias[i]} * bias[j] - double{mean[i]} * bias[j] - double{bias[i]} * mean[j];
    }
  }
  return gram;
}

struct Factors {
  std::vector<float> there;  // U S^-1/2 [dim, dim]
  std::vector<float> back;   // S^1/2 U^T
  std::vector<double> singular_values;
};

Factors FactorGram(const std::vector<double>& gram, int dim) {
  Spectrum spectrum = DecomposeGram(gram, dim);
  const double largest = spectrum.singular_values.front();
  Factors factors;
  factors.there.resize(int64_t{dim} * dim);
  factors.back.resize(factors.there.size());
  for (int r = 0; r < dim; ++r) {
    const double sigma =
        largest > 0 ? std::max(spectrum.singular_values[r], kLeastShare * largest) : 1.0;
    for (int i = 0; i < dim; ++i) {
      const double u = spectrum.vectors[i * dim + r];
      factors.there[i * dim + r] = static_cast<float>(u / std::sqrt(sigma));
      factors.back[r * dim + i] = static_cast<float>(u * std::sqrt(sigma));
    }
  }
  factors.singular_values = std::move(spectrum.singular_values);
  return factors;
}

std::vector<float> BiasOf(std::span<const std::vector<float>> biases, int64_t head_idx) {
  return biases.empty() ? std::vector<float>() : biases[head_idx];
}

}  // namespace

StatusOr<BasisAnalysis> AnalysePalu(const BasisInputs& inputs) {
  const CalibrationStatistics& s = *inputs.statistics;
  const StatisticsShape& shape = s.shape;
  const int64_t n_heads = int64_t{shape.n_layers} * shape.n_kv_heads;
  const int d = shape.head_dim;
  const bool is_whitened = inputs.options.is_whitened;
  if (!is_whitened) {
    KVL_CHECK_EQ(std::ssize(inputs.key_grams), n_heads);
    KVL_CHECK_EQ(std::ssize(inputs.value_grams), n_heads);
  }
  BasisAnalysis analysis;
  analysis.shape = shape;
  for (int64_t h = 0; h < n_heads; ++h) {
    std::vector<float> key_bias = BiasOf(inputs.key_biases, h);
    std::vector<float> value_bias = BiasOf(inputs.value_biases, h);
    const PairGrams grams = {
        is_whitened ? GramWithoutBias(s.k_pre, h, d, key_bias) : inputs.key_grams[h],
        is_whitened ? GramWithoutBias(s.v, h, d, value_bias) : inputs.value_grams[h]};
    KVL_RETURN_IF_ERROR(CheckFinite(shape, h, grams));
    Factors k = FactorGram(grams.qk, d), v = FactorGram(grams.v, d);
    HeadAnalysis& head = analysis.heads.emplace_back();
    head.key_basis = std::move(k.there);
    head.key_way_back = std::move(k.back);
    head.value_basis = std::move(v.there);
    head.output_basis = std::move(v.back);
    head.key_offset = std::move(key_bias);
    head.value_offset = std::move(value_bias);
    analysis.spectra.push_back({std::move(k.singular_values), std::move(v.singular_values)});
  }
  return analysis;
}

StatusOr<RankAllocation> AllocatePalu(const BasisAnalysis& analysis, const RankRequest& request) {
  return AllocateRanks(analysis.spectra, analysis.shape.head_dim, request);
}

}  // namespace kvlathe
