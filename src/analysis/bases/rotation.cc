#include "analysis/bases/rotation.h"

#include <utility>

#include "analysis/statistics/gram.h"
#include "analysis/statistics/spectrum.h"

namespace kvlathe {

Status CheckFinite(const StatisticsShape& shape, int64_t head_idx, const PairGrams& grams) {
  const bool is_qk_finite = AllFinite(grams.qk);
  if (is_qk_finite && AllFinite(grams.v)) return OkStatus();
  return Error(StatusCode::kDataLoss, "layer {}, KV head {}: the {} are not finite",
               head_idx / shape.n_kv_heads, head_idx % shape.n_kv_heads,
               is_qk_finite ? "weights or statistics of V" : "statistics of Q and K");
}

int64_t CountedRows(const BasisInputs& inputs) {
  const CalibrationStatistics& s = *inputs.statistics;
  return s.n_rows + (inputs.options.counts_first_positions ? s.n_sink_rows : 0);
}

std::vector<double> GramOfRows(const BasisInputs& inputs, RowKind kind, int64_t head_idx) {
  const CalibrationStatistics& s = *inputs.statistics;
  const HeadMoments *rows = &s.v, *first_rows = &s.sink_v;
  if (kind == RowKind::kQueries) rows = &s.q_post, first_rows = &s.sink_q_post;
  if (kind == RowKind::kKeys) rows = &s.k_post, first_rows = &s.sink_k_post;
  const int rows_per_token = kind == RowKind::kQueries ? s.shape.gqa_group() : 1;
  std::vector<double> gram = GramOf(*rows, head_idx, s.shape.head_dim, rows_per_token);
  if (!inputs.options.counts_first_positions || s.n_sink_rows == 0) return gram;
  const double share =
      static_cast<double>(s.n_sink_rows) / static_cast<double>(CountedRows(inputs));
  return WeightedSum(1 - share, gram, share,
                     GramOf(*first_rows, head_idx, s.shape.head_dim, rows_per_token));
}

StatusOr<BasisAnalysis> AnalyseRotations(
    const BasisInputs& inputs, const std::function<PairGrams(int64_t head_idx)>& grams_of) {
  BasisAnalysis analysis;
  analysis.shape = inputs.statistics->shape;
  const int64_t n_heads = int64_t{analysis.shape.n_layers} * analysis.shape.n_kv_heads;
  const int head_dim = analysis.shape.head_dim;
  for (int64_t h = 0; h < n_heads; ++h) {
    const PairGrams grams = grams_of(h);
    KVL_RETURN_IF_ERROR(CheckFinite(analysis.shape, h, grams));
    Spectrum qk = DecomposeGram(grams.qk, head_dim);
    Spectrum v = DecomposeGram(grams.v, head_dim);
    HeadAnalysis& head = analysis.heads.emplace_back();
    head.query_basis = ToFloats(qk.vectors);
    head.key_basis = head.query_basis;
    head.value_basis = ToFloats(v.vectors);
    head.output_basis = TransposedSquare(head.value_basis, head_dim);
    analysis.spectra.push_back({std::move(qk.singular_values), std::move(v.singular_values)});
  }
  return analysis;
}

}  // namespace kvlathe
