#include "analysis/bases/fdc.h"

#include "analysis/bases/rotation.h"
#include "analysis/statistics/gram.h"
#include "base/check.h"

namespace kvlathe {

StatusOr<BasisAnalysis> AnalyseFdc(const BasisInputs& inputs) {
  const CalibrationStatistics& s = *inputs.statistics;
  const bool is_whitened = inputs.options.is_whitened;
  const int64_t n_heads = int64_t{s.shape.n_layers} * s.shape.n_kv_heads;
  KVL_CHECK(is_whitened || std::ssize(inputs.value_grams) == n_heads);
  return AnalyseRotations(inputs, [&](int64_t h) {
    return PairGrams{WeightedSum(1, GramOfRows(inputs, RowKind::kQueries, h), 1,
                                 GramOfRows(inputs, RowKind::kKeys, h)),
                     is_whitened ? GramOfRows(inputs, RowKind::kValues, h) : inputs.value_grams[h]};
  });
}

StatusOr<RankAllocation> AllocateFdc(const BasisAnalysis& analysis, const RankRequest& request) {
  return AllocateRanks(analysis.spectra, analysis.shape.head_dim, request);
}

}  // namespace kvlathe
