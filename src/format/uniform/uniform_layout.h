// This is the layout of a cache whose codes are even steps: a value is code * scale + minimum, or
// code * scale where a side is symmetric. K and V each choose which of their numbers share a scale
// and a minimum (code_side.h); `token`, `kcvt`, `kivi`, `int8`, `q8_0` and `q4_0` are such choices.
//
//   block of a head   | codes of K | codes of V | K scales per token | V scales per token | repairs
//   run record        | K scales per channel | repairs
//   layer record      | V scales per token over all heads | repairs
//
//   scales per token     of a block: [groups of channels][parts][kBlockSize] F16
//                          | scale t0 | scale t1 | ... | scale t63 | min t0 | ... | min t63 | ...
//   scales per channel   of a run: [groups of tokens][2][rank_k] F16
//   scales of the layer  of a run: [n_blocks][2][kBlockSize] F16
// code_lines.h says where codes lie, and packed_layout.h where repairs do.
#pragma once

#include "format/codes/codec_facts.h"
#include "format/rows/block_layout.h"

namespace kvlathe {

struct UniformCodec {
  PackedSide k, v;
  friend bool operator==(const UniformCodec&, const UniformCodec&) = default;
};

constexpr CodecFacts FactsOf(const UniformCodec& codec) {
  return {.k = codec.k,
          .v = codec.v,
          .most_channels = kMaxPackedRank,
          .keys_before_rope = false,
          .codes_open_rows = false,
          .has_classes = false,
          .brings_bases = false,
          .gathers_queries = false,
          .has_one_side = false};
}

}  // namespace kvlathe
