// This is the layout of a cache whose codes index a codebook of the model (codebook.h): a value is
// centroid * range + offset. `kvquant` stores rows in it.
//
//   block of a head   | codes of K | codes of V | repairs
//   layer record      | V: ranges, offsets per token over all heads | repairs
//   in the model      centroids of K and V of a layer; ranges, offsets of each channel of K
//
//   layer record, of each block: [2][kBlockSize] F16
//                     | range t0 | ... | range t63 | offset t0 | ... | offset t63 |
#pragma once

#include "format/codes/codec_facts.h"
#include "format/rows/block_layout.h"

namespace kvlathe {

struct CodebookCodec {
  int bits = 4;                   // 2, 3 or 4, of K and of V
  bool keys_before_rope = false;  // K is sealed as it was before RoPE, and turned when it is read
  friend bool operator==(const CodebookCodec&, const CodebookCodec&) = default;
};

constexpr CodecFacts FactsOf(const CodebookCodec& codec) {
  return {.k = {.bits = codec.bits, .sharing = ScaleSharing::kModel, .has_codebook = true},
          .v = {.bits = codec.bits, .sharing = ScaleSharing::kTokenLayer, .has_codebook = true},
          .most_channels = kMaxPackedRank,
          .keys_before_rope = codec.keys_before_rope,
          .codes_open_rows = false,
          .has_classes = false,
          .brings_bases = false,
          .gathers_queries = false,
          .has_one_side = false};
}

}  // namespace kvlathe
