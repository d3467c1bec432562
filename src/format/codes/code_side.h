// A side says how the codes of K or of V share scales. Each codec with codes says so of its two
// sides, and the offsets of packed_layout.h depend on nothing else of the codec.
#pragma once

#include <cstdint>

namespace kvlathe {

struct NamedTable;  // format/table_codes/code_table.h

// What shares a scale and a minimum.
enum class ScaleSharing : uint8_t {
  kChannel,     // `group` tokens of one channel; K only, in the run record
  kToken,       // `group` channels of one token of one head, in the block
  kTokenLayer,  // one token, all channels of all heads; V only, in the layer record
  kModel,       // one channel in all sequences; K with a codebook only, in the model
  kNone,        // no scales of this kind
};

// The codes of K or of V.
struct PackedSide {
  int bits = 4;  // 2, 3, 4, 5 or 8; 0: no codes of one width
  ScaleSharing sharing = ScaleSharing::kToken;
  // How many numbers share a scale. With kChannel they are tokens of a channel, a multiple of 16
  // that divides kBlockSize or is a multiple of it, and 0 means all tokens of the run. With kToken
  // they are channels of a token, a multiple of 16, and 0 means all channels of the head. The last
  // group may be short.
  int group = 0;
  // Whether there is no minimum, which only kToken allows. Codes of 8 bits are then int8 from -127
  // to 127. Codes of 4 bits are from 0 to 15 and stand for (code - 8) * scale, where the scale may
  // be negative.
  bool is_symmetric = false;
  // What codes of 4 bits stand for where scales are a byte each, or those of 2 to 4 bits where
  // scales are of norms; the side is then symmetric and kToken. Null where codes are numbers of
  // even steps or index a codebook.
  const NamedTable* table = nullptr;
  // Whether codes index a codebook of the model (codebook/codebook.h).
  bool has_codebook = false;
  // Whether the scales of a table are F16, one for a whole row (sphere_codes/sphere_codes.h), and
  // whether the highest bit of codes is the sign of a residual, which has a scale of its own.
  bool has_norms = false;
  bool has_signs = false;

  // Where a row of a head is clipped when its codes are made: ranges end at the magnitude that this
  // share of the numbers of the token lies below. Only kToken with a minimum allows less than 1,
  // which is all of them. What is stored is laid out alike.
  double clip = 1;
  // How many tokens of a head are balanced together before they become codes, a multiple of
  // kBlockSize (balanced/balanced_layout.h); 0: rows become codes as they are.
  int balanced_tokens = 0;

  friend bool operator==(const PackedSide&, const PackedSide&) = default;
};

// The side of a codec whose sealed rows are numbers.
inline constexpr PackedSide kNoCodes = {.bits = 0, .sharing = ScaleSharing::kNone};

// How many numbers a scale takes (2 with a minimum or signs), and how many bytes each of them has:
// one for powers of two of tables and where bits are split, else two.
constexpr int ScaleParts(const PackedSide& side) {
  return side.is_symmetric && !side.has_signs ? 1 : 2;
}
constexpr int ScaleBytes(const PackedSide& side) {
  return (side.table != nullptr && !side.has_norms) || side.bits == 0 ? 1 : 2;
}

}  // namespace kvlathe
