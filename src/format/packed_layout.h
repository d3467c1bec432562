// Where the codes, scales and repairs of a sealed run lie.
//
// A run is what is compressed together: n_blocks blocks of kBlockSize entries of every KV head of a
// layer. It is held in three kinds of objects:
//   block         of one head: codes of K and V, scales per token, factor A of the residual, counts
//                 of exact entries
//   run record    of one head: scales per channel, factor B, exact entries of K
//   layer record  of all heads: scales per token over all heads, exact entries of V
// Scales and minima are F16, factors F16. A value is code * scale + min, or centroid * scale + min
// where codes index a codebook of the model (codebook.h). The residual A B^T of a run is added to
// the values of all its elements. An exact entry adds what is then still missing, rounded to Bf16.
//
// Exact entries lie in lanes: those of a token of K, those of a channel of V. Places in a lane are
// channels of K and tokens of V, and the block counts the entries of each lane. Their order is that
// in which vectors of 16 lanes add two of each lane at a time, as a dot of pairs: by 16 lanes;
// then by rounds, round r having the entries 2 r and 2 r + 1 of the lanes that have so many; then
// by lane; then by place.
//
// Codes keep the lines of a plain block (block_layout.h): a line is 32 codes, 16 tokens x 2
// dimensions of K or 16 dimensions x 2 tokens of V. Lines are packed in groups of
// LinesPerGroup(bits), so that one load and a few shifts give whole lines:
//   bits 2, 4  64 bytes, 32 words of 16 bits; word w holds in its bits [bits * i, bits * (i + 1))
//              code w of line i of the group
//   bits 3, 5  the same with the low 2 or 4 bits of each code, then a word of 32 bits per line
//   whose
//              bit w is the high bit of its code w
//   bits 8     64 bytes: codes 0-7 of line 0, 0-7 of line 1, 8-15 of line 0, 8-15 of line 1, ...
//   bits 1     as 2 and 4
// K: line of token / 16 and dimension pair p is line 4 p + token / 16; a group is consecutive
// lines. V: a group is consecutive token pairs of the same 16 dimensions; groups of the dimensions
// follow each other, then those of the next token pairs.
// Where bits are split (PackedFormat::splits_bits), a side is the codes of its segments one behind
// the other, each laid out like a side that has its channels only.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "format/block_layout.h"

namespace kvlathe {

// What shares a scale and a minimum.
enum class ScaleSharing : uint8_t {
  kChannel,     // `group` tokens of one channel; K only, in the run record
  kToken,       // `group` channels of one token of one head, in the block
  kTokenLayer,  // one token, all channels of all heads; V only, in the layer record
  kModel,       // one channel in all sequences; K with a codebook only, in the model
};

// The codes of K or of V.
struct PackedSide {
  int bits = 4;  // 2, 3, 4 or 8; 1 and 5 in segments of split bits only
  ScaleSharing sharing = ScaleSharing::kToken;
  // kChannel: tokens, a multiple of 16 that divides kBlockSize or is a multiple of it; kToken:
  // channels, a multiple of 16. 0: all of the run, all of the head. The last group may be short.
  int group = 0;
  // bits 8 or 4, kToken only: there is no minimum. 8: codes are int8 from -127 to 127; 4: codes are
  // from 0 to 15 and stand for (code - 8) * scale, where the scale may be negative.
  bool is_symmetric = false;
  // Codes index a codebook; bits up to 4, kModel or kTokenLayer only.
  bool has_codebook = false;

  friend bool operator==(const PackedSide&, const PackedSide&) = default;
};

// What all runs of a cache have in common.
struct PackedFormat {
  PackedSide k, v;
  int prompt_rank = 0;  // of the low-rank residual, in runs of the prompt; 0: none
  int decode_rank = 0;  // in runs sealed while decoding
  // Entries kept exactly, half at either end; 0: none. With codebooks, of K those that lie farthest
  // out by the ranges of the model, at whichever end.
  double sparse_share = 0;
  bool keys_before_rope = false;  // K is sealed as it was before RoPE; with codebooks only
  // K and V stay rows, of fewer numbers (BlockShape::sealed_rank_k, sealed_rank_v), in bases that
  // the runs bring (svd-online, zack(online=on)). There are no codes then, and nothing else here
  // means anything.
  bool is_rotated = false;
  // Channels have bits of their own (BlockShape::k_bits, v_bits): rows come in units of each
  // channel's deviation, and codes are those of unit_codes.h. Scales have the first channels of K
  // only, k_bits.scaled of them: a byte for the offset and one for the scale of each channel in a
  // block (OffsetOfByte, ScaleOfByte). Of `k` and `v` nothing holds.
  bool splits_bits = false;

  friend bool operator==(const PackedFormat&, const PackedFormat&) = default;
};

// One run of one head: all that the offsets below depend on.
struct PackedShape {
  PackedFormat format;
  int rank_k = 0;  // multiples of 16, at most 256
  int rank_v = 0;
  BitSplit k_bits = {}, v_bits = {};  // where the format splits bits
  int n_kv_heads = 1;                 // of the layer
  int layer_rank_v = 0;               // sum of rank_v over the heads of the layer
  int n_blocks = 0;
  bool is_prompt = true;
  bool is_repaired = true;  // false: without a low-rank residual, whatever the format says
  // Where the format is rotated.
  int sealed_rank_k = 0, sealed_rank_v = 0;
  DType row_type = DType::kBf16;
  bool has_rotations = true;  // in its record; runs without use those of the first run

  constexpr int n_tokens() const { return n_blocks * kBlockSize; }
  constexpr int lowrank() const {
    if (!is_repaired) return 0;
    return is_prompt ? format.prompt_rank : format.decode_rank;
  }
  // Exact entries at either end: of a channel of K over the run, of a token of V over the layer.
  constexpr int key_outliers() const {
    return format.k.has_codebook ? 0 : static_cast<int>(n_tokens() * format.sparse_share / 2);
  }
  constexpr int value_outliers() const {
    if (!format.v.has_codebook) return static_cast<int>(layer_rank_v * format.sparse_share / 2);
    // What lies at or beyond an interpolated quantile: never nothing.
    return format.sparse_share == 0
               ? 0
               : 1 + static_cast<int>((layer_rank_v - 1) * format.sparse_share / 2);
  }
  // All exact entries of K of the run.
  constexpr int64_t n_key_entries() const {
    if (!format.k.has_codebook) return int64_t{2} * key_outliers() * rank_k;
    const int64_t n = int64_t{n_tokens()} * rank_k;
    return std::min(n / 2, static_cast<int64_t>(static_cast<double>(n) * format.sparse_share));
  }
  // All exact entries of V of the layer in the run.
  constexpr int64_t n_value_entries() const { return int64_t{2} * value_outliers() * n_tokens(); }
};

// A difference in Bf16 and a place in its lane.
inline constexpr int64_t kExactEntryBytes = 3;
inline constexpr int kExactLanes = 16;

// Numbers a scale and its minimum take.
constexpr int ScaleParts(const PackedSide& side) { return side.is_symmetric ? 1 : 2; }

// Bits of a code in the words of 16 bits; the highest bit of 3 and of 5 lies apart.
constexpr bool HasHighBit(int bits) { return bits == 3 || bits == 5; }
constexpr int LowBits(int bits) { return HasHighBit(bits) ? bits - 1 : bits; }
constexpr int LinesPerGroup(int bits) { return 16 / LowBits(bits); }
constexpr int GroupBytes(int bits) { return 64 + (HasHighBit(bits) ? 4 * LinesPerGroup(bits) : 0); }
constexpr int64_t CodeBytes(int bits, int rank) { return int64_t{kBlockSize} * rank * bits / 8; }
constexpr int64_t KeyCodeBytes(const PackedShape& s) {
  return s.format.splits_bits ? int64_t{kBlockSize} * s.k_bits.bits_per_token() / 8
                              : CodeBytes(s.format.k.bits, s.rank_k);
}
constexpr int64_t ValueCodeBytes(const PackedShape& s) {
  return s.format.splits_bits ? int64_t{kBlockSize} * s.v_bits.bits_per_token() / 8
                              : CodeBytes(s.format.v.bits, s.rank_v);
}

// Scale groups of the tokens of a run (kChannel) or of the channels of a token (kToken).
constexpr int KeyScaleGroups(const PackedShape& s) {
  const int n = s.format.k.sharing == ScaleSharing::kChannel ? s.n_tokens() : s.rank_k;
  const int group = s.format.k.group == 0 ? n : s.format.k.group;
  return (n + group - 1) / group;
}
constexpr int ValueScaleGroups(const PackedShape& s) {
  const int group = s.format.v.group == 0 ? s.rank_v : s.format.v.group;
  return (s.rank_v + group - 1) / group;
}

// --- Block: K codes, V codes, K scales, V scales, A of K, A of V, scales of the block, counts of
// exact entries of K, of V. ---
// Scales per token: [groups][parts][kBlockSize]; factors [lowrank][kBlockSize]; scales of the
// block: offsets, a byte each, then scales, a byte each [k_bits.scaled]; counts of K [kBlockSize],
// of V [rank_v], a byte each, two where a token may have more entries than a byte holds.

constexpr int64_t KeyTokenScaleBytes(const PackedShape& s) {
  if (s.format.splits_bits || s.format.k.sharing != ScaleSharing::kToken) return 0;
  return int64_t{2} * kBlockSize * KeyScaleGroups(s) * ScaleParts(s.format.k);
}
constexpr int64_t ValueTokenScaleBytes(const PackedShape& s) {
  if (s.format.splits_bits || s.format.v.sharing != ScaleSharing::kToken) return 0;
  return int64_t{2} * kBlockSize * ValueScaleGroups(s) * ScaleParts(s.format.v);
}
constexpr int64_t FactorBytes(const PackedShape& s) {
  return int64_t{2} * kBlockSize * s.lowrank();
}

constexpr int64_t PackedValueOffset(const PackedShape& s) { return KeyCodeBytes(s); }
constexpr int64_t KeyTokenScaleOffset(const PackedShape& s) {
  return PackedValueOffset(s) + ValueCodeBytes(s);
}
constexpr int64_t ValueTokenScaleOffset(const PackedShape& s) {
  return KeyTokenScaleOffset(s) + KeyTokenScaleBytes(s);
}
constexpr int64_t KeyFactorOffset(const PackedShape& s) {
  return ValueTokenScaleOffset(s) + ValueTokenScaleBytes(s);
}
constexpr int64_t ValueFactorOffset(const PackedShape& s) {
  return KeyFactorOffset(s) + FactorBytes(s);
}

constexpr int64_t BlockScaleOffset(const PackedShape& s) {
  return ValueFactorOffset(s) + FactorBytes(s);
}
constexpr int64_t BlockScaleBytes(const PackedShape& s) {
  return s.format.splits_bits ? int64_t{2} * s.k_bits.scaled : 0;
}

constexpr bool HasWideKeyCounts(const PackedShape& s) { return s.rank_k > 255; }
constexpr int64_t KeyCountOffset(const PackedShape& s) {
  return BlockScaleOffset(s) + BlockScaleBytes(s);
}
constexpr int64_t KeyCountBytes(const PackedShape& s) {
  if (s.n_key_entries() == 0) return 0;
  return int64_t{HasWideKeyCounts(s) ? 2 : 1} * kBlockSize;
}
constexpr int64_t ValueCountOffset(const PackedShape& s) {
  return KeyCountOffset(s) + KeyCountBytes(s);
}
constexpr int64_t ValueCountBytes(const PackedShape& s) {
  return s.value_outliers() > 0 ? s.rank_v : 0;
}

// Where the format is rotated: K in rows of sealed_rank_k numbers, as K of a plain block; V as K.
// The record: R of K [rank_k][sealed_rank_k], R of V [rank_v][sealed_rank_v].
constexpr int64_t RotatedValueOffset(const PackedShape& s) {
  return kBlockSize * s.sealed_rank_k * SizeOf(s.row_type);
}
constexpr int64_t ValueRotationOffset(const PackedShape& s) {
  return int64_t{s.rank_k} * s.sealed_rank_k * SizeOf(s.row_type);
}

constexpr int64_t PackedBlockBytes(const PackedShape& s) {
  if (s.format.is_rotated) {
    return RotatedValueOffset(s) + kBlockSize * s.sealed_rank_v * SizeOf(s.row_type);
  }
  return ValueCountOffset(s) + ValueCountBytes(s);
}

// The offset and the scale of a channel in a block, in units of its deviation: a number of the
// codes is value * scale + offset. Whatever the byte, both are finite and the scale is positive.
inline constexpr float kOffsetStep = 1.0f / 32;  // byte 128 is 0: from -4 up to just below 4
constexpr float OffsetOfByte(uint8_t byte) {
  return static_cast<float>(int{byte} - 128) * kOffsetStep;
}
// The upper bits of a float: 4 of its exponent, from 2^-11 to 2^4, and 4 of its mantissa.
inline constexpr int kScaleShift = 19;
inline constexpr uint32_t kScaleBase = uint32_t{127 - 11} << 23;
constexpr float ScaleOfByte(uint8_t byte) {
  return std::bit_cast<float>((uint32_t{byte} << kScaleShift) + kScaleBase);
}

// --- Run record: scales of K per channel [groups][2][rank_k]; B of K [lowrank][rank_k]; B of V
// [lowrank][rank_v]; where the exact entries of each block end, uint32 [n_blocks]; of all of them
// the differences, Bf16, and then the places, a byte each. ---

constexpr int64_t KeyChannelScaleBytes(const PackedShape& s) {
  if (s.format.k.sharing != ScaleSharing::kChannel) return 0;
  return int64_t{2} * 2 * s.rank_k * KeyScaleGroups(s);
}
constexpr int64_t KeyBasisOffset(const PackedShape& s) { return KeyChannelScaleBytes(s); }
constexpr int64_t ValueBasisOffset(const PackedShape& s) {
  return KeyBasisOffset(s) + int64_t{2} * s.lowrank() * s.rank_k;
}
constexpr int64_t KeySparseEndsOffset(const PackedShape& s) {
  return ValueBasisOffset(s) + int64_t{2} * s.lowrank() * s.rank_v;
}
constexpr int64_t KeySparseOffset(const PackedShape& s) {
  return KeySparseEndsOffset(s) + (s.n_key_entries() > 0 ? 4 * s.n_blocks : 0);
}
constexpr int64_t KeyPlacesOffset(const PackedShape& s) {
  return KeySparseOffset(s) + 2 * s.n_key_entries();
}
constexpr int64_t RunRecordBytes(const PackedShape& s) {
  if (s.format.is_rotated) {
    const int64_t of_v = int64_t{s.rank_v} * s.sealed_rank_v * SizeOf(s.row_type);
    return s.has_rotations ? ValueRotationOffset(s) + of_v : 0;
  }
  return KeySparseOffset(s) + s.n_key_entries() * kExactEntryBytes;
}

// --- Layer record: scales of V per token, per block [parts][kBlockSize]; where the exact entries
// of each block and head end, uint32 [n_blocks][n_kv_heads]; of all of them the differences, then
// the places. ---

constexpr int64_t ValueLayerScaleBytes(const PackedShape& s) {
  if (s.format.v.sharing != ScaleSharing::kTokenLayer) return 0;
  return int64_t{2} * 2 * s.n_tokens();
}
constexpr int64_t ValueSparseEndsOffset(const PackedShape& s) { return ValueLayerScaleBytes(s); }
constexpr int64_t ValueSparseOffset(const PackedShape& s) {
  return ValueSparseEndsOffset(s) +
         (s.value_outliers() > 0 ? int64_t{4} * s.n_blocks * s.n_kv_heads : 0);
}
constexpr int64_t ValuePlacesOffset(const PackedShape& s) {
  return ValueSparseOffset(s) + 2 * s.n_value_entries();
}
constexpr int64_t LayerRecordBytes(const PackedShape& s) {
  return ValueSparseOffset(s) + s.n_value_entries() * kExactEntryBytes;
}

// Whether the exact entries of records from outside lie where a reader may follow them: lists that
// end in order and together hold all entries, places that there are.
bool IsSoundRunRecord(const PackedShape& shape, const std::byte* record);
bool IsSoundLayerRecord(const PackedShape& shape, const std::byte* layer_record);
// Whether a block of head `head_idx` of the layer counts as many exact entries as sound records
// have of it.
struct PackedRecords {
  const std::byte* record = nullptr;
  const std::byte* layer_record = nullptr;
};
bool HasSoundCounts(const PackedShape& shape, int head_idx, const PackedRecords& records,
                    int block_idx, const std::byte* block);

// --- Where a code lies. ---

// The line of (token, channel) in a plain block, and the number of its code in that line.
struct CodePlace {
  int64_t group_offset;  // bytes from the start of the side's codes
  int line;              // in the group
  int word;              // 0-31
};
constexpr CodePlace PlaceInGroup(int bits, int64_t group_idx, int line, int word) {
  return {group_idx * GroupBytes(bits), line, word};
}
constexpr CodePlace KeyCodePlace(int bits, int token, int channel) {
  const int n = LinesPerGroup(bits), line = channel / 2 * 4 + token / 16;
  return PlaceInGroup(bits, line / n, line % n, token % 16 * 2 + channel % 2);
}
constexpr CodePlace ValueCodePlace(int bits, int rank_v, int token, int channel) {
  const int n = LinesPerGroup(bits), pair = token / 2;
  return PlaceInGroup(bits, int64_t{pair / n} * (rank_v / 16) + channel / 16, pair % n,
                      channel % 16 * 2 + token % 2);
}

// Reads and writes one code; `codes` is the start of the side's codes.
uint8_t ReadCode(const std::byte* codes, int bits, const CodePlace& place);
void WriteCode(std::byte* codes, int bits, const CodePlace& place, uint8_t code);

}  // namespace kvlathe
