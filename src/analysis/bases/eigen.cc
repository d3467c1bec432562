#include "analysis/bases/eigen.h"

#include <utility>

#include "analysis/bases/rotation.h"
#include "analysis/statistics/gram.h"
#include "analysis/statistics/spectrum.h"

namespace kvlathe {
namespace {

// X^T X / tokens of the keys before RoPE of all KV heads of a layer, as a mean over these heads.
std::vector<double> KeyGramOfLayer(const CalibrationStatistics& s, int64_t layer_idx) {
  const int n = s.shape.n_kv_heads, dim = s.shape.head_dim;
  std::vector<double> sum(int64_t{dim} * dim);
  for (int64_t h = layer_idx * n; h < (layer_idx + 1) * n; ++h) {
    sum = WeightedSum(1, sum, 1.0 / n, GramOf(s.k_pre, h, dim));
  }
  return sum;
}

}  // namespace

StatusOr<BasisAnalysis> AnalyseEigen(const BasisInputs& inputs) {
  const CalibrationStatistics& s = *inputs.statistics;
  const int head_dim = s.shape.head_dim;
  BasisAnalysis analysis;
  analysis.shape = s.shape;
  analysis.keys = LatentKeys{};
  for (int64_t layer = 0; layer < s.shape.n_layers; ++layer) {
    PairGrams grams = {.qk = KeyGramOfLayer(s, layer)};
    Spectrum k;
    for (int64_t h = layer * s.shape.n_kv_heads; h < (layer + 1) * s.shape.n_kv_heads; ++h) {
      grams.v = GramOfRows(inputs, RowKind::kValues, h);
      KVL_RETURN_IF_ERROR(CheckFinite(s.shape, h, grams));
      if (k.vectors.empty()) k = DecomposeGram(grams.qk, head_dim);
      Spectrum v = DecomposeGram(grams.v, head_dim);
      HeadAnalysis& head = analysis.heads.emplace_back();
      head.key_basis = ToFloats(k.vectors);
      head.key_way_back = TransposedSquare(head.key_basis, head_dim);
      head.value_basis = ToFloats(v.vectors);
      head.output_basis = TransposedSquare(head.value_basis, head_dim);
      analysis.spectra.push_back({k.singular_values, std::move(v.singular_values)});
    }
  }
  return analysis;
}

StatusOr<RankAllocation> AllocateEigen(const BasisAnalysis& analysis, const RankRequest& request) {
  return AllocateRanks(analysis.spectra, analysis.shape.head_dim, request);
}

}  // namespace kvlathe
