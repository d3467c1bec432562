// A partial result of attention is what a set of entries contributes to some query rows.
//
// With scores s_j over the entries j of the set, row_max = max s_j, row_sum = sum exp(s_j -
// row_max) and o = sum exp(s_j - row_max) v_j. Results over disjoint sets merge (the online softmax
// of Milakov and Gimelshein, arXiv 1805.02867): with m = max(a.row_max, b.row_max),
//   row_sum = a.row_sum exp(a.row_max - m) + b.row_sum exp(b.row_max - m), and o likewise.
// Merging is associative and commutative up to rounding; the empty set (row_max = -infinity,
// row_sum = 0, o = 0) is neutral. Everything that splits a sequence rests on this.
#pragma once

#include <cstdint>

#include "machine/attention/plan.h"
#include "tensor/dtype.h"

namespace kvlathe {

// A view of the partial results of some rows of one KV head.
struct PartialRows {
  float* o = nullptr;  // [n_rows, rank_v], dense
  float* row_max = nullptr;
  float* row_sum = nullptr;
};

// The view of the results of n_rows that lie in PartialFloats(n_rows, rank_v) floats
// (machine/attention/plan.h). o starts where `memory` does.
PartialRows PartialAt(float* memory, int n_rows, int rank_v);

// Merges the partial results of `from` into those of `into`.
// into.o may have rows of more numbers, into_stride apart; 0: rank_v.
void MergePartial(const PartialRows& from, int n_rows, int rank_v, const PartialRows& into,
                  int64_t into_stride = 0);

// Writes o / row_sum to out, which is dense [n_rows, rank_v] of row_type. Rows whose row_sum is 0
// become zeros.
void FinishRows(const PartialRows& partial, int n_rows, int rank_v, DType row_type, void* out);

}  // namespace kvlathe
