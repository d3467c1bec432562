#include "cpu/attention/partial.h"

#include <cmath>

#include "base/check.h"

namespace kvlathe {
namespace {

template <typename T>
T FromFloat(float x);
template <>
float FromFloat<float>(float x) {
  return x;
}
template <>
Bf16 FromFloat<Bf16>(float x) {
  return ToBf16(x);
}

template <typename T>
void FinishRowsAs(const PartialRows& partial, int n_rows, int rank_v, T* out) {
  for (int row = 0; row < n_rows; ++row) {
    const float row_sum = partial.row_sum[row];
    const float scale = row_sum == 0 ? 0.0f : 1.0f / row_sum;
    const float* o = partial.o + int64_t{row} * rank_v;
    T* out_row = out + int64_t{row} * rank_v;
    for (int r = 0; r < rank_v; ++r) out_row[r] = FromFloat<T>(o[r] * scale);
  }
}

}  // namespace

PartialRows PartialAt(float* memory, int n_rows, int rank_v) {
  float* row_max = memory + int64_t{n_rows} * rank_v;
  return {memory, row_max, row_max + (int64_t{n_rows} + 15) / 16 * 16};
}

void MergePartial(const PartialRows& from, int n_rows, int rank_v, const PartialRows& into,
                  int64_t into_stride) {
  if (into_stride == 0) into_stride = rank_v;
  for (int row = 0; row < n_rows; ++row) {
    // Also keeps -infinity - -infinity out of the exponentials below.
    if (from.row_sum[row] == 0) continue;
    const float row_max = std::fmax(from.row_max[row], into.row_max[row]);
    const float from_scale = std::exp(from.row_max[row] - row_max);
    const float into_scale = std::exp(into.row_max[row] - row_max);
    into.row_max[row] = row_max;
    into.row_sum[row] = into.row_sum[row] * into_scale + from.row_sum[row] * from_scale;
    const float* from_o = from.o + int64_t{row} * rank_v;
    float* into_o = into.o + row * into_stride;
    for (int r = 0; r < rank_v; ++r) into_o[r] = into_o[r] * into_scale + from_o[r] * from_scale;
  }
}

void FinishRows(const PartialRows& partial, int n_rows, int rank_v, DType row_type, void* out) {
  if (row_type == DType::kF32) {
    return FinishRowsAs(partial, n_rows, rank_v, static_cast<float*>(out));
  }
  KVL_DCHECK(row_type == DType::kBf16);
  FinishRowsAs(partial, n_rows, rank_v, static_cast<Bf16*>(out));
}

}  // namespace kvlathe
