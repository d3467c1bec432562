#include "kernels/cpu/seal_split.h"

#include <algorithm>

#include "kernels/cpu/coded_rows.h"
#include "kernels/cpu/seal_codes.h"

namespace kvlathe {
namespace {

float* ResidualOf(const HeadRun& run, int rank, int block_idx, SealWorkspace* ws) {
  return run.shape.lowrank() == 0 ? nullptr : ws->residual + int64_t{block_idx} * kBlockSize * rank;
}

// f(bits, first channel, channels, bytes from the start of the side's codes).
template <typename F>
void ForEachSegment(const BitSplit& split, const F& f) {
  int first = 0;
  int64_t offset = 0;
  for (size_t i = 0; i < kSplitBits.size(); ++i) {
    const int n = split.channels[i];
    if (n > 0) f(kSplitBits[i], first, n, offset);
    first += n;
    offset += CodeBytes(kSplitBits[i], n);
  }
}

}  // namespace

bool SealSplitKeys(const HeadRun& run, SealWorkspace* ws) {
  const PackedShape& s = run.shape;
  for (int b = 0; b < s.n_blocks; ++b) {
    if (run.head().has_coded_rows) {
      ExpandCodedKeys(run.keys(b), s.rank_k, ws->x);
    } else if (!run.kernels->expand(run.row_type, run.keys(b), int64_t{kBlockSize} * s.rank_k,
                                    ws->x)) {
      return false;
    }
    float* const residual = ResidualOf(run, s.rank_k, b, ws);
    ForEachSegment(s.k_bits, [&](int bits, int first, int n, int64_t offset) {
      const int64_t at = int64_t{kBlockSize} * first;
      run.kernels->encode_units(bits, int64_t{kBlockSize} * n, ws->x + at,
                                residual == nullptr ? nullptr : residual + at);
      PackNumbers(run, KeyGrid(n), /*is_key=*/true, bits, ws->x + at, run.head().packed[b] + offset,
                  ws);
    });
  }
  return true;
}

bool SealSplitValues(const HeadRun& run, SealWorkspace* ws) {
  const PackedShape& s = run.shape;
  const int64_t pair_words = int64_t{2} * s.rank_v;
  for (int b = 0; b < s.n_blocks; ++b) {
    if (run.head().has_coded_rows) {
      ExpandCodedValues(run.values(b), s.rank_v, ws->x);
    } else if (!run.kernels->expand(run.row_type, run.values(b), int64_t{kBlockSize} * s.rank_v,
                                    ws->x)) {
      return false;
    }
    float* const residual = ResidualOf(run, s.rank_v, b, ws);
    std::byte* const codes = run.head().packed[b] + PackedValueOffset(s);
    ForEachSegment(s.v_bits, [&](int bits, int first, int n, int64_t offset) {
      for (int pair = 0; pair < kBlockSize / 2; ++pair) {
        const int64_t at = pair * pair_words + 2 * first;
        run.kernels->encode_units(bits, 2 * n, ws->x + at,
                                  residual == nullptr ? nullptr : residual + at);
        std::copy_n(ws->x + at, 2 * n, ws->part + int64_t{2} * pair * n);
      }
      PackNumbers(run, ValueGrid(n), /*is_key=*/false, bits, ws->part, codes + offset, ws);
    });
  }
  return true;
}

}  // namespace kvlathe
