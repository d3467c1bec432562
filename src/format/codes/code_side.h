// How the codes of K or of V share their scales: what each codec with codes says of its sides, and
// all that the offsets of packed_layout.h need to know of it.
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
  int bits = 4;  // 2, 3, 4 or 8; 0: no codes of one width
  ScaleSharing sharing = ScaleSharing::kToken;
  // kChannel: tokens, a multiple of 16 that divides kBlockSize or is a multiple of it; kToken:
  // channels, a multiple of 16. 0: all of the run, all of the head. The last group may be short.
  int group = 0;
  // There is no minimum; kToken only. 8 bits: codes are int8 from -127 to 127; 4 bits: codes are
  // from 0 to 15 and stand for (code - 8) * scale, where the scale may be negative.
  bool is_symmetric = false;
  // What the codes of 4 bits stand for, under scales of a byte; symmetric and kToken only. Null:
  // codes are numbers of even steps, or index a codebook.
  const NamedTable* table = nullptr;

  friend bool operator==(const PackedSide&, const PackedSide&) = default;
};

// Numbers that a scale and its minimum take, and bytes of each.
constexpr int ScaleParts(const PackedSide& side) { return side.is_symmetric ? 1 : 2; }
constexpr int ScaleBytes(const PackedSide& side) { return side.table != nullptr ? 1 : 2; }

}  // namespace kvlathe
