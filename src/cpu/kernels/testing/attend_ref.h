// Attention as the textbook writes it, in double and plain loops over row-major matrices: what the
// kernels are judged by. It knows nothing of blocks, splits or online softmax.
#pragma once

#include <vector>

namespace kvlathe {

// A score sm_scale x, capped by `cap`; 0: as it is.
double CapScoreRef(double score, double cap);

struct AttendRefParams {
  int n_rows = 0, gqa_group = 1;
  int rank_k = 0, rank_v = 0;
  int kv_begin = 0, kv_end = 0;
  int first_visible = 0;  // row r sees entries < first_visible + r / gqa_group,
  int window = 1 << 30;   // of those the last `window`
  double sm_scale = 1;
  double score_cap = 0;               // scores become cap tanh(score / cap); 0: stay
  std::vector<double> score_offsets;  // [n_rows] added to q k where there is a cap; empty: 0
  std::vector<double> q;              // [n_rows, rank_k]
  std::vector<double> k;              // [n_entries, rank_k]
  std::vector<double> v;              // [n_entries, rank_v]
};

struct AttendRefResult {
  std::vector<double> o;         // [n_rows, rank_v], divided by row_sum; 0 where nothing is seen
  std::vector<double> row_max;   // [n_rows], -infinity where nothing is seen
  std::vector<double> row_sum;   // [n_rows]
  std::vector<double> o_abs;     // [n_rows, rank_v] sum of weight * |v|: scale of the largest error
  std::vector<double> o_spread;  // [n_rows, rank_v] sqrt(sum of (weight * (v - o))^2): scale of the
                                 // error that independent relative errors of the weights make
};

AttendRefResult AttendRef(const AttendRefParams& params);

}  // namespace kvlathe
