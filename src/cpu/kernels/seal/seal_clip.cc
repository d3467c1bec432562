#include "cpu/kernels/seal/seal_clip.h"

#include <algorithm>
#include <cmath>

namespace kvlathe {
namespace {

// Where number `channel` of token `token` lies in a block by lines.
int64_t PlaceOf(bool is_key, int rank, int token, int channel) {
  const PairGrid grid = is_key ? KeyGrid(rank) : ValueGrid(rank);
  const int member = is_key ? channel : token, element = is_key ? token : channel;
  const int64_t line = int64_t{member / 2} * grid.n_lines + element / 16;
  return line * kLineWords + 2 * (element % 16) + member % 2;
}

// The magnitude of a token's row behind which codes end: that of rank floor(clip * n) of its n
// numbers in ascending order, counted from 0. Below 0 where it has none.
float ClippedMagnitude(const float* x, bool is_key, int rank, int token, double clip) {
  float magnitudes[kMaxPackedRank];
  int n = 0;
  for (int channel = 0; channel < rank; ++channel) {
    const float magnitude = std::abs(x[PlaceOf(is_key, rank, token, channel)]);
    if (!std::isnan(magnitude)) magnitudes[n++] = magnitude;
  }
  if (n == 0) return -1;
  const int nth = std::min(static_cast<int>(clip * n), n - 1);
  std::nth_element(magnitudes, magnitudes + nth, magnitudes + n);
  return magnitudes[nth];
}

}  // namespace

void ClipTokenRanges(const PackedSide& side, bool is_key, int rank, int n_groups,
                     SealWorkspace* ws) {
  if (side.clip == 1) return;
  for (int token = 0; token < kBlockSize; ++token) {
    const float most = ClippedMagnitude(ws->x, is_key, rank, token, side.clip);
    if (most < 0) continue;
    for (int g = 0; g < n_groups; ++g) {
      float& low = ws->low[g * kBlockSize + token];
      float& high = ws->high[g * kBlockSize + token];
      if (low > high) continue;  // the group has exact entries alone
      low = std::clamp(low, -most, most);
      high = std::clamp(high, -most, most);
    }
  }
}

}  // namespace kvlathe
