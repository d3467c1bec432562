// A sealed run is laid out by its codec: which codecs there are, and where the codes, scales and
// repairs of a run lie.
//
// A run is what is compressed together: n_blocks blocks of kBlockSize entries of every KV head of a
// layer. It is held in three kinds of objects:
//   block         of one head: codes of K and V, balance of K, scales per token, factor A of the
//                 residual, counts of exact entries
//   run record    of one head: scales per channel, balance of V, factor B, exact entries of K
//   layer record  of all heads: scales per token over all heads, exact entries of V
// What a codec has of these is drawn in its folder: rows/, uniform/, balanced/, codebook/,
// split_bits/, rotated/, table_codes/, sphere_codes/. Behind it lie the repairs, which are the same
// for all codecs that have codes. Factors are F16, and so are scales and minima unless the codec
// says otherwise. The residual A B^T of a run is added to the values of all its elements. An exact
// entry adds what is then still missing, rounded to Bf16.
//
// Exact entries lie in lanes. A lane of K is a token, and its entries have places that are
// channels; a lane of V is a channel, and its entries have places that are tokens. The block counts
// the entries of each lane. Kernels add two entries of each of 16 lanes at a time, as a dot of
// pairs, and the order of the entries follows from that: lanes come in sixteens, and of sixteen
// lanes the first two entries of each come first, lane by lane, then the next two of each lane that
// has more, and so on. Within a lane entries ascend by place.
#pragma once

#include <algorithm>
#include <cstdint>
#include <variant>

#include "format/balanced/balanced_layout.h"
#include "format/codebook/codebook_layout.h"
#include "format/codes/code_lines.h"
#include "format/codes/code_side.h"
#include "format/rotated/rotated_layout.h"
#include "format/rows/block_layout.h"
#include "format/sphere_codes/sphere_codes.h"
#include "format/split_bits/coded_rows.h"
#include "format/split_bits/split_bits_layout.h"
#include "format/table_codes/code_table.h"
#include "format/uniform/uniform_layout.h"

namespace kvlathe {

// The codec of a cache whose rows nothing seals.
struct RowsCodec {
  friend bool operator==(const RowsCodec&, const RowsCodec&) = default;
};
constexpr CodecFacts FactsOf(const RowsCodec& /*codec*/) {
  return {.k = kNoCodes,
          .v = kNoCodes,
          .most_channels = kMaxRowRank,
          .keys_before_rope = false,
          .codes_open_rows = false,
          .has_classes = false,
          .brings_bases = false,
          .gathers_queries = false,
          .has_one_side = false};
}

// What sealed rows become. The struct of a codec has what is the same in all of a cache.
using Codec = std::variant<RowsCodec, UniformCodec, CodebookCodec, SplitBitsCodec, RotatedCodec,
                           TableCodec, SphereCodec, BalancedCodec>;
// What a codec keeps of each KV head, besides the shape of its rows: nothing, or how its channels
// or ranks are split. CacheLayout has one for each head, and the alternative is that of its codec.
using HeadStorage = std::variant<std::monostate, HeadBits, RotatedRanks>;

constexpr CodecFacts FactsOf(const Codec& codec) {
  return std::visit([](const auto& c) { return FactsOf(c); }, codec);
}

// The most channels of a row: places of exact entries are bytes, and scales have 16 groups at most.
constexpr int MostChannels(const Codec& codec) { return FactsOf(codec).most_channels; }

// Bytes of a token, and of a block, whose entries are not sealed yet.
constexpr int64_t OpenTokenBytes(const Codec& codec, const BlockShape& rows) {
  return FactsOf(codec).codes_open_rows ? CodedTokenBytes(rows) : TokenBytes(rows);
}
constexpr int64_t OpenBlockBytes(const Codec& codec, const BlockShape& rows) {
  return kBlockSize * OpenTokenBytes(codec, rows);
}

// What all runs of a cache have in common: the codec, and what repairs its losses.
struct PackedFormat {
  Codec codec;
  int prompt_rank = 0;  // of the low-rank residual, in runs of the prompt; 0: none
  int decode_rank = 0;  // in runs sealed while decoding
  // The share of entries that are kept exactly, half of them at either end; 0 for none. With
  // codebooks, those of K are the entries that lie farthest out by the ranges of the model, at
  // whichever end.
  double sparse_share = 0;

  // Whether K is sealed as it was before RoPE.
  constexpr bool seals_keys_before_rope() const { return FactsOf(codec).keys_before_rope; }
  // Whether rows hold keys and values together.
  constexpr bool has_one_side() const { return FactsOf(codec).has_one_side; }
  friend bool operator==(const PackedFormat&, const PackedFormat&) = default;
};

constexpr PackedSide KeySide(const Codec& codec) { return FactsOf(codec).k; }
constexpr PackedSide ValueSide(const Codec& codec) { return FactsOf(codec).v; }

// What a run of a layer is, as far as all its heads have it in common.
struct RunOfLayer {
  int n_kv_heads = 1;    // that share the layer record
  int layer_rank_v = 0;  // sum of rank_v over them
  int n_blocks = 0;
  bool is_prompt = true;
  bool is_repaired = true;  // false: it has no low-rank residual, whatever the format says
  EntryClass entry_class = EntryClass::kMiddle;
  // Whether its record holds the rotations of a rotated format. Other runs use those of the first.
  bool has_rotations = true;
};

// What a codec keeps of one run of a head: HeadStorage, with the bits of the run's class alone.
using RunStorage = std::variant<std::monostate, EntryBits, RotatedRanks>;

constexpr RunStorage StorageOfRun(const std::monostate& /*head*/, EntryClass /*entry_class*/) {
  return {};
}
constexpr RunStorage StorageOfRun(const HeadBits& head, EntryClass entry_class) {
  return head.of(entry_class);
}
constexpr RunStorage StorageOfRun(const RotatedRanks& head, EntryClass /*entry_class*/) {
  return head;
}

// All that the offsets below depend on, for one run of one head. MakePackedShape puts it together.
struct PackedShape {
  PackedFormat format;
  PackedSide k, v;  // of the format's codec
  int rank_k = 0;   // multiples of 16, at most MostChannels()
  int rank_v = 0;
  RunStorage storage;
  DType row_type = DType::kBf16;
  bool has_one_side = false;  // of the format's codec
  int n_kv_heads = 1;
  int layer_rank_v = 0;
  int n_blocks = 0;
  bool is_prompt = true;
  bool is_repaired = true;
  bool has_rotations = true;

  constexpr int n_tokens() const { return n_blocks * kBlockSize; }
  constexpr int lowrank() const {
    if (!is_repaired) return 0;
    return is_prompt ? format.prompt_rank : format.decode_rank;
  }
  // How many exact entries there are at either end: of a channel of K over the tokens of the run,
  // and of a token of V over the channels of the layer.
  constexpr int key_outliers() const {
    return k.has_codebook ? 0 : static_cast<int>(n_tokens() * format.sparse_share / 2);
  }
  constexpr int value_outliers() const {
    if (!v.has_codebook) return static_cast<int>(layer_rank_v * format.sparse_share / 2);
    // These are the values at or beyond an interpolated quantile, so there is at least one.
    return format.sparse_share == 0
               ? 0
               : 1 + static_cast<int>((layer_rank_v - 1) * format.sparse_share / 2);
  }
  // All exact entries of K of the run.
  constexpr int64_t n_key_entries() const {
    if (!k.has_codebook) return int64_t{2} * key_outliers() * rank_k;
    const int64_t n = int64_t{n_tokens()} * rank_k;
    return std::min(n / 2, static_cast<int64_t>(static_cast<double>(n) * format.sparse_share));
  }
  // All exact entries of V of the layer in the run.
  constexpr int64_t n_value_entries() const { return int64_t{2} * value_outliers() * n_tokens(); }
};

// `rows` is the shape of the head's plain blocks, `head` what the codec keeps of it.
constexpr PackedShape MakePackedShape(const PackedFormat& format, const BlockShape& rows,
                                      const HeadStorage& head, const RunOfLayer& run) {
  const CodecFacts facts = FactsOf(format.codec);
  return {.format = format,
          .k = facts.k,
          .v = facts.v,
          .rank_k = rows.rank_k,
          .rank_v = rows.rank_v,
          .storage = std::visit(
              [&](const auto& storage) { return StorageOfRun(storage, run.entry_class); }, head),
          .row_type = rows.row_type,
          .has_one_side = facts.has_one_side,
          .n_kv_heads = run.n_kv_heads,
          .layer_rank_v = run.layer_rank_v,
          .n_blocks = run.n_blocks,
          .is_prompt = run.is_prompt,
          .is_repaired = run.is_repaired,
          .has_rotations = run.has_rotations};
}

// An exact entry is a difference in Bf16 and a place in its lane, which is a byte.
inline constexpr int64_t kExactEntryBytes = 3;
inline constexpr int kExactLanes = 16;

// Bytes of the codes of K and of V in a block.
struct SideBytes {
  int64_t k, v;
};
constexpr SideBytes CodeBytesOf(const std::monostate& /*storage*/, const PackedShape& s) {
  return {CodeBytes(s.k.bits, s.rank_k), CodeBytes(s.v.bits, s.rank_v)};
}
constexpr SideBytes CodeBytesOf(const EntryBits& bits, const PackedShape& /*s*/) {
  return {SplitCodeBytes(bits.k), SplitCodeBytes(bits.v)};
}
constexpr SideBytes CodeBytesOf(const RotatedRanks& /*ranks*/, const PackedShape& /*s*/) {
  return {0, 0};
}
constexpr SideBytes CodeBytesOf(const PackedShape& s) {
  return std::visit([&](const auto& storage) { return CodeBytesOf(storage, s); }, s.storage);
}
constexpr int64_t KeyCodeBytes(const PackedShape& s) { return CodeBytesOf(s).k; }
constexpr int64_t ValueCodeBytes(const PackedShape& s) { return CodeBytesOf(s).v; }

// How many groups share scales: of the tokens of a run (kChannel) or of the channels of a token
// (kToken).
constexpr int KeyScaleGroups(const PackedShape& s) {
  const int n = s.k.sharing == ScaleSharing::kChannel ? s.n_tokens() : s.rank_k;
  const int group = s.k.group == 0 ? n : s.k.group;
  return (n + group - 1) / group;
}
constexpr int ValueScaleGroups(const PackedShape& s) {
  const int group = s.v.group == 0 ? s.rank_v : s.v.group;
  return (s.rank_v + group - 1) / group;
}

// How many tiles of a run are balanced, each for itself.
constexpr int BalancedTiles(const PackedShape& s) {
  const int tile = s.v.balanced_tokens;
  return tile == 0 ? 0 : (s.n_tokens() + tile - 1) / tile;
}

// --- A block holds, in this order: codes of K, codes of V, scales of K, balance of K, scales of V,
// A of K, A of V, counts of exact entries of K, counts of those of V. ---
// Factors are [lowrank][kBlockSize]. Counts of K are [kBlockSize], those of V [rank_v]; each is a
// byte, or two bytes where a token may have more entries than a byte can count.

constexpr int64_t KeyTokenScaleBytes(const PackedShape& s) {
  if (s.k.sharing != ScaleSharing::kToken) return 0;
  return int64_t{ScaleBytes(s.k)} * kBlockSize * KeyScaleGroups(s) * ScaleParts(s.k);
}
constexpr int64_t ValueTokenScaleBytes(const PackedShape& s) {
  if (s.v.sharing != ScaleSharing::kToken || s.has_one_side) return 0;
  return int64_t{ScaleBytes(s.v)} * kBlockSize * ValueScaleGroups(s) * ScaleParts(s.v);
}
constexpr int64_t KeyBalanceBytes(const PackedShape& s) {
  return s.k.balanced_tokens == 0 ? 0 : int64_t{2} * kBlockSize;
}
constexpr int64_t FactorBytes(const PackedShape& s) {
  return int64_t{2} * kBlockSize * s.lowrank();
}

constexpr int64_t PackedValueOffset(const PackedShape& s) { return KeyCodeBytes(s); }
constexpr int64_t KeyTokenScaleOffset(const PackedShape& s) {
  return PackedValueOffset(s) + ValueCodeBytes(s);
}
constexpr int64_t KeyBalanceOffset(const PackedShape& s) {
  return KeyTokenScaleOffset(s) + KeyTokenScaleBytes(s);
}
constexpr int64_t ValueTokenScaleOffset(const PackedShape& s) {
  return KeyBalanceOffset(s) + KeyBalanceBytes(s);
}
constexpr int64_t KeyFactorOffset(const PackedShape& s) {
  return ValueTokenScaleOffset(s) + ValueTokenScaleBytes(s);
}
constexpr int64_t ValueFactorOffset(const PackedShape& s) {
  return KeyFactorOffset(s) + FactorBytes(s);
}

constexpr bool HasWideKeyCounts(const PackedShape& s) { return s.rank_k > 255; }
constexpr int64_t KeyCountOffset(const PackedShape& s) {
  return ValueFactorOffset(s) + FactorBytes(s);
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

// A rotated format has these offsets in place of those above.
constexpr int64_t RotatedValueOffset(const RotatedRanks& ranks, const PackedShape& s) {
  return RotatedSideBytes(ranks.k, s.row_type);
}
constexpr int64_t ValueRotationOffset(const RotatedRanks& ranks, const PackedShape& s) {
  return RotationBytes(s.rank_k, ranks.k, s.row_type);
}

constexpr int64_t CodedBlockBytes(const PackedShape& s) {
  return ValueCountOffset(s) + ValueCountBytes(s);
}
constexpr int64_t BlockBytesOf(const std::monostate& /*storage*/, const PackedShape& s) {
  return CodedBlockBytes(s);
}
constexpr int64_t BlockBytesOf(const EntryBits& /*bits*/, const PackedShape& s) {
  return CodedBlockBytes(s);
}
constexpr int64_t BlockBytesOf(const RotatedRanks& ranks, const PackedShape& s) {
  return RotatedValueOffset(ranks, s) + RotatedSideBytes(ranks.v, s.row_type);
}
constexpr int64_t PackedBlockBytes(const PackedShape& s) {
  return std::visit([&](const auto& storage) { return BlockBytesOf(storage, s); }, s.storage);
}

// --- A run record holds, in this order: scales of K per channel [groups][2][rank_k]; balance of V
// [tiles][rank_v]; B of K [lowrank][rank_k]; B of V [lowrank][rank_v]; where the exact entries of K
// of each block end, uint32 [n_blocks]; the differences of all these entries, Bf16; their places, a
// byte each. ---

constexpr int64_t KeyChannelScaleBytes(const PackedShape& s) {
  if (s.k.sharing != ScaleSharing::kChannel) return 0;
  return int64_t{2} * 2 * s.rank_k * KeyScaleGroups(s);
}
constexpr int64_t ValueBalanceOffset(const PackedShape& s) { return KeyChannelScaleBytes(s); }
constexpr int64_t ValueBalanceBytes(const PackedShape& s) {
  return int64_t{2} * s.rank_v * BalancedTiles(s);
}
constexpr int64_t KeyBasisOffset(const PackedShape& s) {
  return ValueBalanceOffset(s) + ValueBalanceBytes(s);
}
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
constexpr int64_t CodedRecordBytes(const PackedShape& s) {
  return KeySparseOffset(s) + s.n_key_entries() * kExactEntryBytes;
}
constexpr int64_t RecordBytesOf(const std::monostate& /*storage*/, const PackedShape& s) {
  return CodedRecordBytes(s);
}
constexpr int64_t RecordBytesOf(const EntryBits& /*bits*/, const PackedShape& s) {
  return CodedRecordBytes(s);
}
constexpr int64_t RecordBytesOf(const RotatedRanks& ranks, const PackedShape& s) {
  if (!s.has_rotations) return 0;
  return ValueRotationOffset(ranks, s) + RotationBytes(s.rank_v, ranks.v, s.row_type);
}
constexpr int64_t RunRecordBytes(const PackedShape& s) {
  return std::visit([&](const auto& storage) { return RecordBytesOf(storage, s); }, s.storage);
}

// --- A layer record holds, in this order: scales of V per token, [n_blocks][parts][kBlockSize];
// where the exact entries of V of each block and head end, uint32 [n_blocks][n_kv_heads]; the
// differences of all these entries; their places. ---

constexpr int64_t ValueLayerScaleBytes(const PackedShape& s) {
  if (s.v.sharing != ScaleSharing::kTokenLayer) return 0;
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

// Whether a reader may follow the exact entries of a record that comes from outside: the lists end
// in ascending order, together they hold all entries, and every place exists.
bool IsSoundRunRecord(const PackedShape& shape, const std::byte* record);
bool IsSoundLayerRecord(const PackedShape& shape, const std::byte* layer_record);
// Whether a block of head `head_idx` of the layer counts as many exact entries as the records,
// which are sound, hold for it.
struct PackedRecords {
  const std::byte* record = nullptr;
  const std::byte* layer_record = nullptr;
};
bool HasSoundCounts(const PackedShape& shape, int head_idx, const PackedRecords& records,
                    int block_idx, const std::byte* block);

}  // namespace kvlathe
