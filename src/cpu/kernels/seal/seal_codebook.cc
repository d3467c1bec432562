#include "cpu/kernels/seal/seal_codebook.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/kernels/seal/seal_codes.h"
#include "cpu/kernels/seal/seal_exact.h"

namespace kvlathe {
namespace {

CodebookBlock KeyBlock(const HeadRun& run) {
  const int rank = run.shape.rank_k;
  const float* scales = run.job->codebooks->key_scales[run.head_idx].data();
  return {
      .n_pairs = rank / 2, .n_lines = kBlockSize / 16, .scales = scales, .offsets = scales + rank};
}

// A block of K as it is sealed, in ws->x.
bool ReadKeys(const HeadRun& run, int block_idx, SealWorkspace* ws) {
  if (!run.kernels->expand(run.row_type, run.keys(block_idx),
                           int64_t{kBlockSize} * run.shape.rank_k, ws->x)) {
    return false;
  }
  const KeyRotation& rotation = run.job->rotation;
  if (run.shape.format.seals_keys_before_rope() && rotation.half > 0) {
    TurnKeysBack(rotation.From(block_idx), ws->x);
  }
  return true;
}

// The magnitudes of all quotients of the run. False when a row holds NaN or infinity.
bool MeasureKeys(const HeadRun& run, SealWorkspace* ws) {
  const CodebookBlock block = KeyBlock(run);
  float* to = ws->quotients;
  for (int b = 0; b < run.shape.n_blocks; ++b) {
    if (!ReadKeys(run, b, ws)) return false;
    const float* x = ws->x;
    for (int pair = 0; pair < block.n_pairs; ++pair) {
      const float* scale = block.scales + 2 * pair;
      const float* offset = block.offsets + 2 * pair;
      for (int t = 0; t < kBlockSize; ++t, x += 2, to += 2) {
        to[0] = std::abs((x[0] - offset[0]) / scale[0]);
        to[1] = std::abs((x[1] - offset[1]) / scale[1]);
      }
    }
  }
  return true;
}

// Lists the entries of a block. `tails` is that of all magnitudes; its ties are used up by the
// blocks in order.
void ListEntries(const HeadRun& run, int block_idx, Tails* tails, SealWorkspace* ws) {
  const int rank = run.shape.rank_k;
  const float* magnitudes = ws->quotients + int64_t{block_idx} * kBlockSize * rank;
  ClearLanes(kBlockSize, ws);
  for (int channel = 0; channel < rank; ++channel) {
    for (int token = 0; token < kBlockSize; ++token) {
      const int64_t at = KeyOffset(token, channel);
      if (magnitudes[at] < tails->high) continue;
      if (magnitudes[at] == tails->high && --tails->high_ties < 0) continue;
      AddKeyEntry(token, channel, ws);
    }
  }
  StoreKeyLists(run, block_idx, ws);
}

}  // namespace

bool SealCodebookKeys(const HeadRun& run, SealWorkspace* ws) {
  const PackedShape& s = run.shape;
  const int64_t n_entries = s.n_key_entries(), block_words = int64_t{kBlockSize} * s.rank_k;
  Tails tails{};
  if (n_entries > 0) {
    if (!MeasureKeys(run, ws)) return false;
    // Floats of one sign are in the order of their bits.
    tails =
        run.kernels->find_tails(DType::kF32, ws->quotients, s.n_blocks * block_words, n_entries);
  }
  for (int b = 0; b < s.n_blocks; ++b) {
    if (!ReadKeys(run, b, ws)) return false;
    if (n_entries > 0) ListEntries(run, b, &tails, ws);
    float* const residual = ResidualOf(run, /*is_key=*/true, b, ws);
    EncodeByCodebook(KeyBlock(run), run.job->codebooks->k, ws->x, residual);
    TakeKeyLosses(run, b, residual, ws);
    PackNumbers(run, KeyGrid(s.rank_k), /*is_key=*/true, s.k.bits, ws->x, run.head().packed[b], ws);
  }
  return true;
}

void RoundCodebookScales(const HeadRun& run, int n, std::byte* to, SealWorkspace* ws) {
  std::byte* const offsets_to = to + int64_t{2} * n;
  for (int i = 0; i < n; ++i) {
    const bool is_empty = ws->low[i] > ws->high[i];
    const float low = is_empty ? 0 : ws->low[i], high = is_empty ? 0 : ws->high[i];
    ws->scales[i] = 0.5f * high - 0.5f * low;
    ws->minima[i] = 0.5f * high + 0.5f * low + 0.0f;  // never -0
  }
  run.kernels->to_f16(ws->scales, n, to);
  run.kernels->to_f16(ws->minima, n, offsets_to);
  constexpr uint16_t kZero = 0, kSmallest = 1;
  for (int i = 0; i < n; ++i) {
    if (std::memcmp(to + 2 * i, &kZero, 2) == 0) std::memcpy(to + 2 * i, &kSmallest, 2);
  }
  run.kernels->from_f16(to, n, ws->scales);
  run.kernels->from_f16(offsets_to, n, ws->minima);
}

void WriteCodebookValues(const HeadRun& run, int block_idx, float* residual, SealWorkspace* ws) {
  const PackedShape& s = run.shape;
  EncodeByCodebook({.n_pairs = kBlockSize / 2,
                    .n_lines = s.rank_v / 16,
                    .scales = ws->scales,
                    .offsets = ws->minima},
                   run.job->codebooks->v, ws->x, residual);
  TakeValueLosses(run, block_idx, residual, ws);
  PackNumbers(run, ValueGrid(s.rank_v), /*is_key=*/false, s.v.bits, ws->x,
              run.head().packed[block_idx] + PackedValueOffset(s), ws);
}

}  // namespace kvlathe
