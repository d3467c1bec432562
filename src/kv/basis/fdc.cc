#include "kv/basis/fdc.h"

#include <cmath>
#include <utility>

#include "base/check.h"
#include "kv/basis/spectrum.h"

namespace kvlathe {
namespace {

bool AllFinite(const std::vector<double>& values) {
  for (const double x : values) {
    if (!std::isfinite(x)) return false;
  }
  return true;
}

std::vector<double> JointQueryKeyGram(const CalibrationStatistics& statistics, int64_t head_idx) {
  const int64_t n = int64_t{statistics.shape.head_dim} * statistics.shape.head_dim;
  const float* q = statistics.q_post.gram.data() + head_idx * n;
  const float* k = statistics.k_post.gram.data() + head_idx * n;
  std::vector<double> gram(n);
  for (int64_t i = 0; i < n; ++i) gram[i] = double{q[i]} + k[i];
  return gram;
}

std::vector<float> ToFloats(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

std::vector<float> Transpose(const std::vector<float>& square, int64_t dim) {
  std::vector<float> transposed(square.size());
  for (int64_t row = 0; row < dim; ++row) {
    for (int64_t column = 0; column < dim; ++column) {
      transposed[column * dim + row] = square[row * dim + column];
    }
  }
  return transposed;
}

}  // namespace

StatusOr<BasisAnalysis> AnalyseFdc(const BasisInputs& inputs) {
  const CalibrationStatistics& statistics = *inputs.statistics;
  const int64_t n_heads = int64_t{statistics.shape.n_layers} * statistics.shape.n_kv_heads;
  const int head_dim = statistics.shape.head_dim;
  KVL_CHECK_EQ(static_cast<int64_t>(inputs.value_grams.size()), n_heads);

  BasisAnalysis analysis;
  analysis.shape = statistics.shape;
  analysis.heads.resize(n_heads);
  analysis.spectra.resize(n_heads);
  for (int64_t h = 0; h < n_heads; ++h) {
    const std::vector<double> qk_gram = JointQueryKeyGram(statistics, h);
    const bool is_qk_finite = AllFinite(qk_gram);
    if (!is_qk_finite || !AllFinite(inputs.value_grams[h])) {
      return Error(StatusCode::kDataLoss, "layer {}, KV head {}: {} are not finite",
                   h / statistics.shape.n_kv_heads, h % statistics.shape.n_kv_heads,
                   is_qk_finite ? "the weights of V" : "the statistics of Q and K");
    }
    Spectrum qk = DecomposeGram(qk_gram, head_dim);
    Spectrum v = DecomposeGram(inputs.value_grams[h], head_dim);
    HeadAnalysis& head = analysis.heads[h];
    head.query_basis = ToFloats(qk.vectors);
    head.key_basis = head.query_basis;
    head.value_basis = ToFloats(v.vectors);
    head.output_basis = Transpose(head.value_basis, head_dim);
    analysis.spectra[h] = {std::move(qk.singular_values), std::move(v.singular_values)};
  }
  return analysis;
}

StatusOr<RankAllocation> AllocateFdc(const BasisAnalysis& analysis, const RankRequest& request) {
  return AllocateRanks(analysis.spectra, analysis.shape.head_dim, request);
}

}  // namespace kvlathe
