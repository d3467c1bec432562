#include "cuda/kernels/attend/attend_layout.h"

#include <variant>

#include "format/split_bits/coded_rows.h"
#include "tensor/dtype.h"

namespace kvlathe::cuda {
namespace {

constexpr int kTile = 16;

void AddSegments(const BitSplit& split, int64_t codes, SideLayout* side) {
  for (size_t i = 0; i < kSplitBits.size(); ++i) {
    const int n = split.channels[i];
    if (n == 0) continue;
    side->segments[side->n_segments++] = {
        .bits = kSplitBits[i], .n_tiles = n / kTile, .codes = static_cast<int32_t>(codes)};
    codes += CodeBytes(kSplitBits[i], n);
  }
}

SideLayout SplitSide(const BitSplit& split, int rank, StoredUnit unit, int64_t codes,
                     int64_t scales) {
  SideLayout side = {
      .reading = Reading::kUnits,
      .scales = unit == StoredUnit::kToken ? Scales::kByte : Scales::kNone,
      .scales_at = static_cast<int32_t>(scales),
      .unit = static_cast<int32_t>(unit),
      .n_tiles = rank / kTile,
  };
  AddSegments(split, codes, &side);
  return side;
}

bool HasReader(const PackedSide& side) {
  return side.table == nullptr && !side.has_codebook &&
         (side.bits == 2 || side.bits == 3 || side.bits == 4 || side.bits == 8) &&
         (!side.is_symmetric || side.bits == 4 || side.bits == 8);
}

SideLayout NumberSide(const PackedSide& side, int rank, int64_t codes, int64_t scales) {
  SideLayout layout = {.reading = Reading::kNumbers,
                       .scales = Scales::kToken,
                       .scales_at = static_cast<int32_t>(scales),
                       .group_tiles = rank / kTile,
                       .is_symmetric = side.is_symmetric ? 1 : 0,
                       .n_tiles = rank / kTile,
                       .n_segments = 1};
  layout.segments[0] = {
      .bits = side.bits, .n_tiles = rank / kTile, .codes = static_cast<int32_t>(codes)};
  if (side.sharing == ScaleSharing::kChannel) {
    layout.scales = Scales::kChannel;
    layout.group_tokens = side.group == 0 ? 1 << 30 : side.group;
  } else if (side.sharing == ScaleSharing::kTokenLayer) {
    layout.in_layer = 1;
    layout.scales_at = 0;
  } else if (side.group > 0) {
    layout.group_tiles = side.group / kTile;
  }
  return layout;
}

}  // namespace

AttendLayout PlainLayout(const BlockShape& shape) {
  AttendLayout layout;
  layout.n_bytes = static_cast<int32_t>(BlockBytes(shape));
  layout.k.n_tiles = shape.rank_k / kTile;
  layout.v.n_tiles = shape.rank_v / kTile;
  layout.k.n_segments = layout.v.n_segments = 1;
  layout.k.segments[0] = {.bits = 16, .n_tiles = layout.k.n_tiles, .codes = 0};
  layout.v.segments[0] = {
      .bits = 16, .n_tiles = layout.v.n_tiles, .codes = static_cast<int32_t>(KeyBytes(shape))};
  return layout;
}

std::optional<AttendLayout> LayoutOfRun(const PackedShape& shape) {
  if (shape.has_one_side || shape.lowrank() > 0 || shape.format.sparse_share > 0 ||
      shape.row_type != DType::kBf16) {
    return std::nullopt;
  }
  const int64_t k_scales = KeyTokenScaleOffset(shape), v_scales = ValueTokenScaleOffset(shape);
  const auto n_bytes = static_cast<int32_t>(PackedBlockBytes(shape));
  if (const auto* codec = std::get_if<SplitBitsCodec>(&shape.format.codec)) {
    const auto& bits = std::get<EntryBits>(shape.storage);
    return AttendLayout{
        .k = SplitSide(bits.k, shape.rank_k, codec->unit, 0, k_scales),
        .v = SplitSide(bits.v, shape.rank_v, codec->unit, PackedValueOffset(shape), v_scales),
        .n_bytes = n_bytes};
  }
  if (!std::holds_alternative<UniformCodec>(shape.format.codec) || !HasReader(shape.k) ||
      !HasReader(shape.v)) {
    return std::nullopt;
  }
  return AttendLayout{.k = NumberSide(shape.k, shape.rank_k, 0, k_scales),
                      .v = NumberSide(shape.v, shape.rank_v, PackedValueOffset(shape), v_scales),
                      .n_bytes = n_bytes};
}

AttendLayout CodedLayout(const BlockShape& shape) {
  BitSplit k, v;
  k.channels[0] = shape.rank_k;
  v.channels[0] = shape.rank_v;
  return {.k = SplitSide(k, shape.rank_k, StoredUnit::kToken, 0, CodedKeyScaleOffset(shape, 0)),
          .v = SplitSide(v, shape.rank_v, StoredUnit::kToken, CodedKeyBytes(shape),
                         CodedValueScaleOffset(shape, 0)),
          .n_bytes = static_cast<int32_t>(kBlockSize * CodedTokenBytes(shape))};
}

AttendTables MakeAttendTables() {
  AttendTables tables;
  for (const StoredUnit unit : {StoredUnit::kChannel, StoredUnit::kToken}) {
    for (int bits = 1; bits <= 5; ++bits) {
      const float* const values = UnitValues(bits, unit);
      for (int i = 0; i < kCodeWindows; ++i) {
        // Multiples of kUnitNumberStep with 8 bits are exact in F16.
        tables.values[static_cast<int>(unit)][bits - 1][i] = ToF16(values[i]).bits;
      }
    }
  }
  return tables;
}

}  // namespace kvlathe::cuda
