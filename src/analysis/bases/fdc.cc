#include "analysis/bases/fdc.h"

#include "analysis/bases/rotation.h"
#include "analysis/statistics/gram.h"
#include "base/check.h"

namespace kvlathe {

StatusOr<BasisAnalysis> AnalyseFdc(const BasisInputs& inputs) {
  const CalibrationStatistics& s = *inputs.statistics;
  KVL_CHECK_EQ(std::ssize(inputs.value_grams), int64_t{s.shape.n_layers} * s.shape.n_kv_heads);
  const int head_dim = s.shape.head_dim;
  return AnalyseRotations(inputs, [&](int64_t h) {
    return PairGrams{
        WeightedSum(1, GramOf(s.q_post, h, head_dim), 1, GramOf(s.k_post, h, head_dim)),
        inputs.value_grams[h]};
  });
}

StatusOr<RankAllocation> AllocateFdc(const BasisAnalysis& analysis, const RankRequest& request) {
  return AllocateRanks(analysis.spectra, analysis.shape.head_dim, request);
}

}  // namespace kvlathe
