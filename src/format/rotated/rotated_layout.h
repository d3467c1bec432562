// The layout of a cache whose sealed rows are shorter, in bases that the first run of a head brings
// with it. `svd-online` and `zack(online=on)` store rows in it. There are no codes.
//
//   block of a head   | K [sealed_rank_k / 2][kBlockSize][2] | V [sealed_rank_v / 2][kBlockSize][2]
//   | run record        | R of K [rank_k][sealed_rank_k] | R of V [rank_v][sealed_rank_v] |
//
// V lies as K does, unlike in a plain block. Numbers have the type of the rows. The record belongs
// to the first run of a head; later runs use its rotations.
#pragma once

#include <cstdint>

#include "format/codes/code_side.h"
#include "format/rows/block_layout.h"

namespace kvlathe {

struct RotatedCodec {
  friend bool operator==(const RotatedCodec&, const RotatedCodec&) = default;
};

constexpr PackedSide KeySideOf(const RotatedCodec& /*codec*/) {
  return {.bits = 0, .sharing = ScaleSharing::kNone};
}
constexpr PackedSide ValueSideOf(const RotatedCodec& codec) { return KeySideOf(codec); }

constexpr int64_t RotatedSideBytes(int sealed_rank, DType row_type) {
  return int64_t{kBlockSize} * sealed_rank * SizeOf(row_type);
}
constexpr int64_t RotationBytes(int rank, int sealed_rank, DType row_type) {
  return int64_t{rank} * sealed_rank * SizeOf(row_type);
}

}  // namespace kvlathe
