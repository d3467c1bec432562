// A rotated codec makes sealed rows shorter, in bases that the first run of a head brings
// with it. `svd-online` and `zack(online=on)` store rows in it. There are no codes.
//
//   block of a head   | K [sealed k / 2][kBlockSize][2] | V [sealed v / 2][kBlockSize][2] |
//   run record        | R of K [rank_k][sealed k] | R of V [rank_v][sealed v] |
//
// `sealed` are the RotatedRanks of the head; until they are sealed rows are whole. V lies as K
// does, unlike in a plain block. Numbers have the type of the rows. The record belongs to the first
// run of a head; later runs use its rotations.
#pragma once

#include <cstdint>

#include "format/codes/codec_facts.h"
#include "format/rows/block_layout.h"

namespace kvlathe {

struct RotatedCodec {
  double kept_share = 0;  // the share of the dimensions that every head keeps; 0: by RotatedRanks
  bool gathers_queries = false;  // heads keep Q^T Q until they have found their basis
  friend bool operator==(const RotatedCodec&, const RotatedCodec&) = default;
};

// How many numbers the sealed rows of a head have, multiples of 16.
struct RotatedRanks {
  int k = 0, v = 0;
  friend bool operator==(const RotatedRanks&, const RotatedRanks&) = default;
};

constexpr CodecFacts FactsOf(const RotatedCodec& codec) {
  return {.k = kNoCodes,
          .v = kNoCodes,
          .most_channels = kMaxPackedRank,
          .keys_before_rope = false,
          .codes_open_rows = false,
          .has_classes = false,
          .brings_bases = true,
          .gathers_queries = codec.gathers_queries,
          .has_one_side = false};
}

constexpr int64_t RotatedSideBytes(int sealed_rank, DType row_type) {
  return int64_t{kBlockSize} * sealed_rank * SizeOf(row_type);
}
constexpr int64_t RotationBytes(int rank, int sealed_rank, DType row_type) {
  return int64_t{rank} * sealed_rank * SizeOf(row_type);
}

}  // namespace kvlathe
