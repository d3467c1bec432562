#include "analysis/bases/palu.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "analysis/bases/rotation.h"
#include "analysis/statistics/gram.h"
#include "analysis/statistics/spectrum.h"
#include "base/check.h"

namespace kvlathe {
namespace {

// Directions in which rows have less than this share of the largest are scaled as if they had it.
constexpr double kLeastShare = 1e-6;

// The covariance of the rows of all KV heads of a layer that share a latent, `dim` channels side by
// side.
std::vector<double> CovarianceOfGroup(const HeadMoments& moments,
                                      const std::vector<float>& across_heads, int64_t group_idx,
                                      const StatisticsShape& shape, int dim) {
  if (dim == shape.head_dim) {
    const auto head = moments.covariance.begin() + group_idx * dim * dim;
    return {head, head + int64_t{dim} * dim};
  }
  const int64_t width = int64_t{shape.n_kv_heads} * shape.head_dim, n_groups = width / dim;
  const int64_t first = group_idx % n_groups * dim;
  const float* const layer = across_heads.data() + group_idx / n_groups * width * width;
  std::vector<double> covariance;
  for (int64_t i = first; i < first + dim; ++i) {
    const float* const row = layer + i * width + first;
    covariance.insert(covariance.end(), row, row + dim);
  }
  return covariance;
}

// Adds row^T row.
void AddSquareOf(const std::vector<float>& row, std::vector<double>* gram) {
  const size_t n = row.size();
  for (size_t i = 0; i < n * n; ++i) (*gram)[i] += double{row[i / n]} * row[i % n];
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

// Of n heads side by side; empty: none.
std::vector<float> BiasOf(std::span<const std::vector<float>> biases, int64_t group_idx, int n) {
  std::vector<float> bias;
  if (biases.empty()) return bias;
  for (const std::vector<float>& head : biases.subspan(group_idx * n, n)) {
    bias.insert(bias.end(), head.begin(), head.end());
  }
  return bias;
}

}  // namespace

Status CheckHeadsPerLatent(int heads_per_latent, int n_kv_heads) {
  if (n_kv_heads % heads_per_latent == 0) return OkStatus();
  return Error(StatusCode::kInvalidArgument,
               "palu(group={}): the model has {} KV heads a layer; take a divisor of that",
               heads_per_latent, n_kv_heads);
}

StatusOr<BasisAnalysis> AnalysePalu(const BasisInputs& inputs) {
  const CalibrationStatistics& s = *inputs.statistics;
  const StatisticsShape& shape = s.shape;
  const int n = inputs.options.heads_per_latent, dim = n * shape.head_dim;
  KVL_RETURN_IF_ERROR(CheckHeadsPerLatent(n, shape.n_kv_heads));
  const int64_t n_groups = int64_t{shape.n_layers} * shape.n_kv_heads / n;
  const bool is_whitened = inputs.options.is_whitened;
  if (is_whitened && n > 1 && s.k_pre_across_heads.empty()) {
    return Error(StatusCode::kInvalidArgument,
                 "palu(group={}) needs Gram matrices across KV heads, which these statistics have "
                 "not; make them with kvlathe calibrate --across-heads, or take whiten=off",
                 n);
  }
  if (!is_whitened) {
    KVL_CHECK_EQ(std::ssize(inputs.key_grams), n_groups);
    KVL_CHECK_EQ(std::ssize(inputs.value_grams), n_groups);
  }
  BasisAnalysis analysis;
  analysis.shape = shape;
  analysis.keys = LatentKeys{.heads_per_latent = n};
  for (int64_t i = 0; i < n_groups; ++i) {
    std::vector<float> key_bias = BiasOf(inputs.key_biases, i, n);
    std::vector<float> value_bias = BiasOf(inputs.value_biases, i, n);
    const auto gram_of = [&](const HeadMoments& moments, const std::vector<float>& across_heads,
                             std::span<const float> bias) {
      // Of rows without their bias.
      return MomentsAbout(bias, {moments.mean.data() + i * dim, static_cast<size_t>(dim)},
                          CovarianceOfGroup(moments, across_heads, i, shape, dim));
    };
    std::vector<double> value_gram;
    if (!is_whitened) value_gram = inputs.value_grams[i];
    if (!inputs.options.has_value_offsets) {
      // The bias is a part of values then: what the weights make of inputs of unit variance, and
      // it.
      if (!is_whitened && !value_bias.empty()) AddSquareOf(value_bias, &value_gram);
      value_bias.clear();
    }
    const PairGrams grams = {
        is_whitened ? gram_of(s.k_pre, s.k_pre_across_heads, key_bias) : inputs.key_grams[i],
        is_whitened ? gram_of(s.v, s.v_across_heads, value_bias) : std::move(value_gram)};
    KVL_RETURN_IF_ERROR(CheckFinite(shape, i * n, grams));
    Factors k = FactorGram(grams.qk, dim), v = FactorGram(grams.v, dim);
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
  const int n = HeadsPerLatent(analysis.keys);
  const auto slices_of = [n](const std::vector<HeadRanks>& groups) {
    std::vector<HeadRanks> heads;
    for (const HeadRanks& ranks : groups) {
      heads.insert(heads.end(), n, {ranks.rank_k / n, ranks.rank_v / n});
    }
    return heads;
  };
  RankRequest of_groups = request;
  if (n > 1) of_groups.round = std::lcm(request.round, 16 * n);
  of_groups.kv_fraction = [&](const std::vector<HeadRanks>& groups) {
    return request.kv_fraction(slices_of(groups));
  };
  KVL_ASSIGN_OR_RETURN(RankAllocation allocation,
                       AllocateRanks(analysis.spectra, n * analysis.shape.head_dim, of_groups));
  allocation.ranks = slices_of(allocation.ranks);
  return allocation;
}

}  // namespace kvlathe
