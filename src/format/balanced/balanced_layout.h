// The codes of this layout are even steps of rows that were balanced first: tokens and channels of
// a tile are divided by numbers under which all of them have about the same variance. `kvarn`
// stores rows in it.
//
// A tile is `tile` tokens of a run of one head; the last one of a run may be shorter. Of K, what
// the codes stand for is multiplied with a number of the token, of V with a number of the channel:
//   key[t][c]   = (code * scale[c] + minimum[c]) * balance[t]
//   value[t][c] = (code * scale[t] + minimum[t]) * balance[c]
// What balances the other axis is part of the scales and the minima, which follow it.
//
//   block of a head   | codes of K | codes of V | balance of K | scales of V |
//   run record        | scales of K | balance of V |
//
//   balance of K   [kBlockSize] F16               scales of V   [2][kBlockSize] F16
//   scales of K    [tiles][2][rank_k] F16         balance of V  [tiles][rank_v] F16
#pragma once

#include "format/codes/codec_facts.h"
#include "format/rows/block_layout.h"

namespace kvlathe {

struct BalancedCodec {
  int key_bits = 4;
  int value_bits = 2;
  int tile = 2 * kBlockSize;  // a multiple of kBlockSize, at most kMostTileTokens

  friend bool operator==(const BalancedCodec&, const BalancedCodec&) = default;
};

inline constexpr int kMostTileTokens = 2 * kBlockSize;

constexpr CodecFacts FactsOf(const BalancedCodec& codec) {
  return {.k = {.bits = codec.key_bits,
                .sharing = ScaleSharing::kChannel,
                .group = codec.tile,
                .balanced_tokens = codec.tile},
          .v = {.bits = codec.value_bits,
                .sharing = ScaleSharing::kToken,
                .balanced_tokens = codec.tile},
          .most_channels = kMaxPackedRank,
          .keys_before_rope = false,
          .codes_open_rows = false,
          .has_classes = false,
          .brings_bases = false,
          .gathers_queries = false,
          .has_one_side = false};
}

}  // namespace kvlathe
