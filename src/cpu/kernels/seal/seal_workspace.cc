#include "cpu/kernels/seal/seal_workspace.h"

#include <algorithm>

namespace kvlathe {
namespace {

// Hands out parts of a buffer, each on cache lines of its own; without one it only counts.
class Parts {
 public:
  explicit Parts(std::byte* base) : base_(base) {}

  template <typename T>
  void Take(int64_t n, T** part) {
    *part = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + n_bytes_);
    n_bytes_ += (n * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
  }
  int64_t n_bytes() const { return n_bytes_; }

 private:
  std::byte* base_;
  int64_t n_bytes_ = 0;
};

int64_t LayOut(const SealSizes& sizes, std::byte* base, SealWorkspace* ws) {
  constexpr int64_t kMaxColumns = std::max(kMaxPackedRank, kMostTileTokens);
  Parts parts(base);
  parts.Take(kBlockSize * sizes.max_rank, &ws->x);
  parts.Take(sizes.has_parts ? kBlockSize * sizes.max_rank : 0, &ws->part);
  parts.Take(kBlockSize * sizes.max_rank / kLineWords, &ws->masks);
  parts.Take(sizes.max_rank, &ws->found);
  parts.Take(sizes.has_exact ? kMaxColumns : 0, &ws->lane_counts);
  parts.Take(sizes.has_exact ? kMaxColumns * kMaxColumns : 0, &ws->lane_places);
  for (std::byte*& column : ws->columns) parts.Take(sizes.column_keys * 4, &column);
  for (float** tail : {&ws->tail_high, &ws->tail_low}) parts.Take(kMaxColumns, tail);
  for (int64_t** ties : {&ws->high_ties, &ws->low_ties}) parts.Take(kMaxColumns, ties);
  for (float** table : {&ws->low, &ws->high, &ws->scales, &ws->minima}) {
    parts.Take(kMaxBlockScales, table);
  }
  for (float** table : {&ws->word_scales, &ws->word_minima}) parts.Take(2 * kMaxBlockScales, table);
  parts.Take(sizes.residual_words, &ws->residual);
  parts.Take(sizes.quotients, &ws->quotients);
  parts.Take(sizes.factor_words, &ws->q);
  parts.Take(sizes.max_rank * sizes.lowrank, &ws->p);
  parts.Take(2 * std::max(sizes.factor_words, sizes.max_rank * sizes.lowrank), &ws->doubled);
  parts.Take(sizes.tile_words, &ws->tile);
  parts.Take(sizes.tile_words > 0 ? 2 * kMaxColumns : 0, &ws->balance);
  parts.Take(sizes.losses, &ws->losses);
  return parts.n_bytes();
}

}  // namespace

Status SealWorkspace::Reserve(const SealSizes& sizes) {
  KVL_RETURN_IF_ERROR(memory_.EnsureSize(LayOut(sizes, nullptr, this), "sealing the KV cache"));
  LayOut(sizes, memory_.data(), this);
  return OkStatus();
}

}  // namespace kvlathe
