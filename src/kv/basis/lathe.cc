#include "kv/basis/lathe.h"

#include "base/check.h"
#include "kv/basis/gram.h"
#include "kv/basis/optimal_pair.h"
#include "kv/basis/probes.h"
#include "kv/basis/rotation.h"

namespace kvlathe {
namespace {

std::vector<float> MeanOf(const HeadMoments& moments, int64_t head_idx, int dim) {
  const auto first = moments.mean.begin() + head_idx * dim;
  return {first, first + dim};
}

}  // namespace

StatusOr<BasisAnalysis> AnalyseLathe(const BasisInputs& inputs) {
  const CalibrationStatistics& s = *inputs.statistics;
  const StatisticsShape& shape = s.shape;
  const int64_t n_heads = int64_t{shape.n_layers} * shape.n_kv_heads;
  const int d = shape.head_dim;
  KVL_CHECK_EQ(std::ssize(inputs.output_grams), n_heads);
  const bool is_centred = inputs.options.is_centred;
  const auto gram_of = is_centred ? CentredGramOf : GramOf;
  const std::vector<int> probe_ranks = ProbeRanks(d);
  BasisAnalysis analysis;
  analysis.shape = shape;
  for (int64_t h = 0; h < n_heads; ++h) {
    const std::vector<double> queries = GramOf(s.attended_q, h, d);
    const std::vector<double> keys = gram_of(s.attended_k, h, d);
    const std::vector<double> values = gram_of(s.attended_v, h, d);
    const std::vector<double>& outputs = inputs.output_grams[h];
    KVL_RETURN_IF_ERROR(CheckFinite(
        shape, h, {WeightedSum(1, queries, 1, keys), WeightedSum(1, values, 1, outputs)}));
    const OptimalPair qk = DecomposePair(queries, keys, d);
    const OptimalPair v = DecomposePair(values, outputs, d);
    HeadAnalysis& head = analysis.heads.emplace_back();
    head.query_basis = ToFloats(qk.left);
    head.key_basis = ToFloats(qk.right);
    head.value_basis = ToFloats(v.left);
    head.output_basis = TransposedSquare(ToFloats(v.right), d);
    if (is_centred) {
      head.key_offset = MeanOf(s.attended_k, h, d);
      head.value_offset = MeanOf(s.attended_v, h, d);
    }
    analysis.spectra.push_back(
        {ScaledToProbes(qk.singular_values, probe_ranks, &s.probe_kl_qk[h * kProbeCuts]),
         ScaledToProbes(v.singular_values, probe_ranks, &s.probe_kl_v[h * kProbeCuts])});
  }
  return analysis;
}

StatusOr<RankAllocation> AllocateLathe(const BasisAnalysis& analysis, const RankRequest& request) {
  return AllocateRanks(analysis.spectra, analysis.shape.head_dim, request, RankRule::kLeastError);
}

}  // namespace kvlathe
