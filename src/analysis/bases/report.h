// A report of a basis is what `inspect` says about it.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "analysis/bases/basis_methods.h"

namespace kvlathe {

struct BasisReport {
  double removal_rate = 0;  // achieved
  double eta = 0;
  double mean_rank_k = 0;
  double mean_rank_v = 0;
  // Standard deviation over mean, across all heads, of the largest singular value: the papers'
  // reason for a rank per head (ZACK Tables 6 and 7 report 0.40 to 0.58).
  double cv_largest_qk = 0;
  double cv_largest_v = 0;
};

// Standard deviation over mean among the KV heads of one layer, as the papers have it.
struct HeadVariation {
  double largest_qk = 0, largest_v = 0;  // of the largest singular value
  double rank_k = 0, rank_v = 0;         // of the ranks that heads are given
};
// Of each layer.
std::vector<HeadVariation> VariationByLayer(const BasisAnalysis& analysis,
                                            const RankAllocation& allocation);

BasisReport ReportBasis(const BasisAnalysis& analysis, const RankAllocation& allocation);

// {"removal_rate", "eta", "mean_rank_k", "mean_rank_v", "cv_largest_qk", "cv_largest_v",
// "variation_by_layer":
// [{"largest_qk", "largest_v", "rank_k", "rank_v"}], "heads":
// [{"layer", "kv_head", "rank_k", "rank_v", "singular_values_qk": [...], "singular_values_v":
// [...]}]}, and where bits are split "bits_k" and "bits_v": [{"bits", "channels"}]. Query-key
// singular values are those of the stacked rows over the square root of the number of tokens.
nlohmann::json BasisReportJson(const BasisAnalysis& analysis, const RankAllocation& allocation);

// Share of the sum of singular values that the largest quarter of them holds, in [0.25, 1]: how few
// directions matter.
double Concentration(const std::vector<double>& singular_values);

// Mean over heads of the overlap of the two query-key bases' first `rank` directions, in [0, 1]:
// how stable a calibration is. Both analyses have one shape and orthogonal bases.
double MeanKeyOverlap(const BasisAnalysis& a, const BasisAnalysis& b, int rank);

}  // namespace kvlathe
