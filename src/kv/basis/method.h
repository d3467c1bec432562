// The methods of the basis axis: one table of functions each, one file each.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kv/basis/basis.h"
#include "kv/basis/ranks.h"
#include "kv/basis/statistics.h"

namespace kvlathe {

// What a spec can ask of a method's bases, beside ranks.
struct BasisOptions {
  bool is_normalised = false;  // zack: blocks weigh alike whatever their norm
  bool is_centred = true;      // lathe: rows lose their mean first
  bool operator==(const BasisOptions&) const = default;
};

struct BasisInputs {
  const CalibrationStatistics* statistics = nullptr;
  // W_V,h^T W_V,h [head_dim, head_dim] of each KV head, [n_layers * n_kv_heads].
  std::span<const std::vector<double>> value_grams;
  // Sum of W_O,h W_O,h^T over the query heads of each KV head, of the same shape.
  std::span<const std::vector<double>> output_grams;
  BasisOptions options = {};
};

// The maps of one KV head at full width. Column i (of output_basis: row i) matters more than column
// i + 1, and any rank is a cut after that many. Row-major [head_dim, head_dim] f32; roles as in
// HeadBasis.
struct HeadAnalysis {
  std::vector<float> query_basis;
  std::vector<float> key_basis;
  std::vector<float> value_basis;
  std::vector<float> output_basis;
  std::vector<float> key_offset = {};  // [head_dim] or empty
  std::vector<float> value_offset = {};
};

struct BasisAnalysis {
  StatisticsShape shape;
  std::vector<HeadAnalysis> heads;   // [n_layers * n_kv_heads]
  std::vector<HeadSpectra> spectra;  // [n_layers * n_kv_heads]: what ranks are chosen by
};

struct BasisMethod {
  std::string_view name;  // as in a spec
  // Independent of the rate: one analysis serves every spec of the method.
  // Errors: kDataLoss for statistics or weights that are not finite.
  StatusOr<BasisAnalysis> (*analyse)(const BasisInputs& inputs);
  StatusOr<RankAllocation> (*allocate)(const BasisAnalysis& analysis, const RankRequest& request);
};

std::span<const BasisMethod> BasisMethods();
// Null if there is none of that name.
const BasisMethod* FindBasisMethod(std::string_view name);

// Cuts the analysis to the allocation's ranks.
ModelBasis CutBasis(const BasisAnalysis& analysis, const std::vector<HeadRanks>& ranks);

}  // namespace kvlathe
