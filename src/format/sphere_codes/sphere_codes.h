// A sphere codec is that of a cache whose rows are codes of directions and norms: a row was turned
// by a fixed random rotation, so that its numbers are as those of a random direction, normal with
// one deviation, and each has the code of the nearest level of a standard normal number
// (normal_tables.h). What is stored of its length is one number for a row of a head. TurboQuant
// (arXiv 2504.19874; docs/methods/turboquant.md) is the method.
//
//   block of a head   | codes of K | codes of V | K scales | V scales |
//   scales of a side  [parts][kBlockSize] F16
//                     | scale t0 | scale t1 | ... | scale t63 |  and of K whose codes have signs
//                     | length of the residual t0 | ... | t63 |  behind it
//   code              | sign | level |     the sign, one bit, of K alone where codes have signs
//
// code_lines.h says where codes lie. A number is level * scale of its row. Where codes have signs,
// they are those of the residual of the row, what its levels have lost, under a second random
// rotation, and the row gets back what they say of it (residual_signs.h).
#pragma once

#include <cstdint>

#include "base/random.h"
#include "format/codes/codec_facts.h"
#include "format/rows/block_layout.h"
#include "format/sphere_codes/normal_tables.h"

namespace kvlathe {

struct SphereCodec {
  int key_bits = 4, value_bits = 4;  // 2 to 4; of a key with its sign
  bool keys_have_signs = false;
  // Whether the scale gives a row of K without signs, and of V, the length that it had. Else it is
  // that with which levels lose least on average over all directions.
  bool corrects_norms = true;
  friend bool operator==(const SphereCodec&, const SphereCodec&) = default;
};

constexpr CodecFacts FactsOf(const SphereCodec& codec) {
  const auto side = [](int bits, bool has_signs) {
    return PackedSide{.bits = bits,
                      .sharing = ScaleSharing::kToken,
                      .is_symmetric = true,
                      .table = &kNormalTables[bits - (has_signs ? 2 : 1)].table,
                      .has_norms = true,
                      .has_signs = has_signs};
  };
  return {.k = side(codec.key_bits, codec.keys_have_signs),
          .v = side(codec.value_bits, false),
          .most_channels = kMaxPackedRank,
          .keys_before_rope = false,
          .codes_open_rows = false,
          .has_classes = false,
          .brings_bases = false,
          .gathers_queries = false,
          .has_one_side = false};
}

// The signs of a rotation: channels change theirs before a Hadamard matrix mixes them. They are the
// same for all models, layers and heads.
enum class SphereRotation : uint8_t { kOfRows, kOfResiduals };
constexpr float SignOfChannel(SphereRotation rotation, int channel) {
  const uint64_t stream = MixBits(static_cast<uint64_t>(rotation));
  return (MixBits(stream + static_cast<uint64_t>(channel)) & 1) == 0 ? 1.0f : -1.0f;
}

}  // namespace kvlathe
