#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/kernels/attend/entry_scores_isa.h"

namespace kvlathe {
namespace {

// Scaled scores plus noise over the temperature; returns 1 / their softmax's sum and stores what
// to subtract first.
float AddNoise(const EntryScoreParams& p, int row, int n_visible, float* max) {
  const int token = row / p.gqa_group, head = row % p.gqa_group;
  const uint32_t key =
      QueryKey(*p.noise, p.noise->first_head + head, p.noise->first_position + token);
  const float inverse = 1 / p.noise->TemperatureOf(token);
  float* scores = p.scores + row * p.stride;
  *max = -std::numeric_limits<float>::infinity();
  for (int e = 0; e < n_visible; ++e) {
    const uint32_t h = HashScore(key, static_cast<uint32_t>(p.table.position(e))) >> 9;
    const float u = static_cast<float>(2 * h + 1) * 0x1p-24f;
    scores[e] = (scores[e] * p.sm_scale - std::log(-std::log(u))) * inverse;
    *max = std::max(*max, scores[e]);
  }
  float sum = 0;
  for (int e = 0; e < n_visible; ++e) sum += std::exp(scores[e] - *max);
  return 1 / sum;
}

void Add(const EntryScoreParams& p) {
  for (int row = 0; row < p.n_rows; ++row) {
    const int n_visible = VisibleToRow(p, row);
    if (n_visible == 0) continue;
    float max = 0, inverse_sum = 0, scale = 1;
    if (p.noise != nullptr) {
      inverse_sum = AddNoise(p, row, n_visible, &max);
    } else {
      max = p.row_max[row];
      inverse_sum = 1 / p.row_sum[row];
      scale = p.sm_scale;
    }
    const float* scores = p.scores + row * p.stride;
    for (int e = 0; e < n_visible; ++e) {
      const float probability = std::exp(scores[e] * scale - max) * inverse_sum;
      // A probability is at most 1 but for rounding; in this order NaN is a number as well.
      const float units = std::min(0x1p30f, probability / static_cast<float>(kScoreUnit));
      if (p.takes_largest) {
        RaiseTo(std::lrintf(units), &p.table.sum(e));
      } else {
        AddToSum(std::lrintf(units), &p.table.sum(e));
      }
    }
  }
}

}  // namespace

const EntryScoreKernels kEntryScoreScalar = {Add};

}  // namespace kvlathe
