// Codes of even steps: a value is code * scale + minimum (or, symmetric, without a minimum). What
// shares scale and minimum is a choice of each side (code_side.h): token, kcvt, kivi, int8, q8_0
// and q4_0 are choices of this codec.
//
//   block of a head   | codes of K | codes of V | K scales per token | V scales per token | repairs
//   run record        | K scales per channel | repairs
//   layer record      | V scales per token over all heads | repairs
//
//   scales per token     of a block: [groups of channels][parts][kBlockSize] F16
//                          | scale t0 | scale t1 | ... | scale t63 | min t0 | ... | min t63 | next
//                          group
//   scales per channel   of a run: [groups of tokens][2][rank_k] F16
//   scales of the layer  of a run: [n_blocks][2][kBlockSize] F16
// Codes lie as code_lines.h says; repairs as packed_layout.h does.
#pragma once

#include "format/codes/code_side.h"

namespace kvlathe {

struct UniformCodec {
  PackedSide k, v;
  friend bool operator==(const UniformCodec&, const UniformCodec&) = default;
};

constexpr PackedSide KeySideOf(const UniformCodec& codec) { return codec.k; }
constexpr PackedSide ValueSideOf(const UniformCodec& codec) { return codec.v; }

}  // namespace kvlathe
