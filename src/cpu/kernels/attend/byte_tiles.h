// Products of bytes (byte_dots_lanes.h) in matrix tiles, for machines that have them.
#pragma once

#include <cstdint>

namespace kvlathe {

inline constexpr int kMostByteTileRows = 16;
// With fewer rows bytes are multiplied in vectors, whose sums stay in registers; those of tiles
// pass through memory. No machine has timed where the one overtakes the other.
inline constexpr int kMinByteTileRows = 8;
// Bytes of a row of weights that a product takes. Queries are followed by zeros up to a multiple.
inline constexpr int kByteTileStep = 64;

// The products of the sealed blocks of a panel of query rows. Sums are exact, so that rows get the
// bits that vectors give them.
struct ByteTiles {
  // Gets the tiles of this thread ready for `n_rows` rows of weights, at most kMostByteTileRows.
  void (*configure)(int n_rows);
  void (*release)();
  // sums[r, t], kBlockSize apart from row to row, are the sums over n_channels channels of
  // queries[r, c], kMaxRowRank apart, times the bytes of token t, which have no sign, in quads of
  // K.
  void (*dot_keys)(const int8_t* queries, const uint8_t* quads, int n_channels, int32_t* sums);
  // sums[r, c], kMaxRowRank apart, are the sums over all tokens of a block of probs[r, t],
  // kBlockSize apart and without sign, times the bytes of channel c, with a sign, in columns of V.
  // n_channels is a multiple of 16.
  void (*dot_values)(const uint8_t* probs, const uint8_t* columns, int n_channels, int32_t* sums);
};

}  // namespace kvlathe
