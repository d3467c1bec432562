// The methods with one orthogonal rotation per pair (ZACK, FDC) share this.
#pragma once

#include <functional>
#include <vector>

#include "analysis/bases/basis_methods.h"
#include "base/status.h"

namespace kvlathe {

struct PairGrams {
  std::vector<double> qk;  // [head_dim, head_dim]
  std::vector<double> v;
};

// Per KV head: queries and keys in the eigenbasis of `qk`, values in that of `v`, the way back its
// transpose; the spectra are the singular values of the rows behind the Grams.
// kDataLoss, with layer and head, for Grams that are not finite.
StatusOr<BasisAnalysis> AnalyseRotations(
    const BasisInputs& inputs, const std::function<PairGrams(int64_t head_idx)>& grams_of);

// X^T X / tokens of one head, [head_dim, head_dim], of queries or keys after RoPE or of values,
// about zero: a rotation is of rows with their mean. Rows at the first positions are among them
// where the options count them.
enum class RowKind { kQueries, kKeys, kValues };
std::vector<double> GramOfRows(const BasisInputs& inputs, RowKind kind, int64_t head_idx);
// The rows behind these.
int64_t CountedRows(const BasisInputs& inputs);

// kDataLoss naming layer, head and source unless both are finite.
Status CheckFinite(const StatisticsShape& shape, int64_t head_idx, const PairGrams& grams);

}  // namespace kvlathe
