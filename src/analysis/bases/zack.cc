#include "analysis/bases/zack.h"

#include "analysis/bases/rotation.h"
#include "analysis/statistics/gram.h"
#include "base/check.h"

namespace kvlathe {
StatusOr<BasisAnalysis> AnalyseZack(const BasisInputs& inputs) {
  const CalibrationStatistics& s = *inputs.statistics;
  KVL_CHECK_EQ(std::ssize(inputs.output_grams), int64_t{s.shape.n_layers} * s.shape.n_kv_heads);
  const int head_dim = s.shape.head_dim;
  const bool is_normalised = inputs.options.is_normalised;
  return AnalyseRotations(inputs, [&](int64_t h) {
    // Moments are means over tokens; the weights weigh against the sum.
    std::vector<double> values = GramOfRows(inputs, RowKind::kValues, h);
    for (double& x : values) x *= static_cast<double>(CountedRows(inputs));
    return PairGrams{StackedGram(GramOfRows(inputs, RowKind::kQueries, h),
                                 GramOfRows(inputs, RowKind::kKeys, h), is_normalised, head_dim),
                     StackedGram(values, inputs.output_grams[h], is_normalised, head_dim)};
  });
}

StatusOr<RankAllocation> AllocateZack(const BasisAnalysis& analysis, const RankRequest& request) {
  return AllocateRanks(analysis.spectra, analysis.shape.head_dim, request);
}

}  // namespace kvlathe
