#include "cpu/kernels/testing/attend_ref.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvlathe {

double CapScoreRef(double score, double cap) {
  return cap > 0 ? cap * std::tanh(score / cap) : score;
}

AttendRefResult AttendRef(const AttendRefParams& p) {
  AttendRefResult out;
  out.o.assign(size_t(p.n_rows) * p.rank_v, 0);
  out.o_abs = out.o_spread = out.o;
  for (int row = 0; row < p.n_rows; ++row) {
    const int seen_end = p.first_visible + row / p.gqa_group;
    const int begin = std::max(p.kv_begin, seen_end - p.window);
    const int end = std::min(p.kv_end, seen_end);
    std::vector<double> weights;
    double row_max = -std::numeric_limits<double>::infinity(), row_sum = 0;
    for (int t = begin; t < end; ++t) {
      double score = 0;
      for (int r = 0; r < p.rank_k; ++r) {
        score += p.q[size_t(row) * p.rank_k + r] * p.k[size_t(t) * p.rank_k + r];
      }
      if (p.score_cap > 0 && !p.score_offsets.empty()) score += p.score_offsets[row];
      weights.push_back(CapScoreRef(score * p.sm_scale, p.score_cap));
      row_max = std::max(row_max, weights.back());
    }
    for (double& w : weights) row_sum += w = std::exp(w - row_max);
    for (int r = 0; r < p.rank_v && !weights.empty(); ++r) {
      const size_t at = size_t(row) * p.rank_v + r;
      const double* v = &p.v[size_t(begin) * p.rank_v + r];
      for (size_t t = 0; t < weights.size(); ++t) {
        out.o[at] += weights[t] / row_sum * v[t * p.rank_v];
        out.o_abs[at] += weights[t] / row_sum * std::abs(v[t * p.rank_v]);
      }
      double sum_sq = 0;
      for (size_t t = 0; t < weights.size(); ++t) {
        const double share = weights[t] / row_sum * (v[t * p.rank_v] - out.o[at]);
        sum_sq += share * share;
      }
      out.o_spread[at] = std::sqrt(sum_sq);
    }
    out.row_max.push_back(row_max);
    out.row_sum.push_back(row_sum);
  }
  return out;
}

}  // namespace kvlathe
