#include "cuda/attention/expand_runs.h"

#include <algorithm>
#include <variant>

#include "format/split_bits/unit_codes.h"

namespace kvlathe {
namespace {

using cuda::CodeKind;
using cuda::ExpandSide;

// Null where all blocks of a run have left the window and its record is gone.
template <typename T>
const T* At(const std::byte* record, int64_t offset) {
  return record == nullptr ? nullptr : reinterpret_cast<const T*>(record + offset);
}

// Lists the channels of a side by their bits.
void ListSegments(const BitSplit& split, ExpandSide* to, uint32_t codes) {
  to->kind = CodeKind::kWindows;
  to->n_segments = 0;
  int first = 0;
  for (size_t i = 0; i < kSplitBits.size(); ++i) {
    const int n = split.channels[i];
    if (n == 0) continue;
    to->segments[to->n_segments++] = {kSplitBits[i], first, n, codes};
    first += n;
    codes += static_cast<uint32_t>(CodeBytes(kSplitBits[i], n));
  }
}

// What K and V have alike. `codes` is where codes of the side begin.
ExpandSide MakeSide(const PackedSide& side, int rank, const BitSplit* split, uint32_t codes) {
  ExpandSide to = {.rank = rank, .is_symmetric = side.is_symmetric, .group = side.group};
  if (split != nullptr) {
    ListSegments(*split, &to, codes);
    to.has_token_scales = side.sharing == ScaleSharing::kToken;
    return to;
  }
  to.segments[0] = {side.bits, 0, rank, codes};
  if (side.table != nullptr) {
    to.kind = CodeKind::kTable;
    to.numbers = side.table->numbers;
    to.unit = side.table->unit;
  }
  if (side.has_codebook) to.kind = CodeKind::kCentroids;
  return to;
}

const BitSplit* SplitOf(const PackedShape& shape, bool is_key) {
  const auto* const bits = std::get_if<EntryBits>(&shape.storage);
  if (bits == nullptr) return nullptr;
  return is_key ? &bits->k : &bits->v;
}

ExpandSide MakeKeys(const PackedShape& shape, const ExpandAddresses& at) {
  const bool is_per_channel = shape.k.sharing == ScaleSharing::kChannel;
  ExpandSide side = MakeSide(shape.k, shape.rank_k, SplitOf(shape, true), 0);
  side.is_per_channel = is_per_channel;
  if (side.group == 0) side.group = is_per_channel ? shape.n_tokens() : shape.rank_k;
  side.scales = static_cast<uint32_t>(KeyTokenScaleOffset(shape));
  side.factor = static_cast<uint32_t>(KeyFactorOffset(shape));
  if (is_per_channel) side.shared_scales = At<uint16_t>(at.record, 0);
  if (side.kind == CodeKind::kCentroids) {
    side.centroids = at.key_book->centroids;
    side.model_scales = at.key_scales;
  }
  if (shape.lowrank() > 0) side.basis = At<uint16_t>(at.record, KeyBasisOffset(shape));
  if (shape.n_key_entries() > 0) {
    side.exact = {.ends = At<uint32_t>(at.record, KeySparseEndsOffset(shape)),
                  .differences = At<uint16_t>(at.record, KeySparseOffset(shape)),
                  .places = At<uint8_t>(at.record, KeyPlacesOffset(shape)),
                  .counts = static_cast<uint32_t>(KeyCountOffset(shape)),
                  .has_wide_counts = HasWideKeyCounts(shape)};
  }
  return side;
}

ExpandSide MakeValues(const PackedShape& shape, int kv_head_idx, const ExpandAddresses& at) {
  const bool is_of_layer = shape.v.sharing == ScaleSharing::kTokenLayer;
  ExpandSide side = MakeSide(shape.v, shape.rank_v, SplitOf(shape, false),
                             static_cast<uint32_t>(PackedValueOffset(shape)));
  if (is_of_layer || side.group == 0) side.group = shape.rank_v;
  side.scales = static_cast<uint32_t>(ValueTokenScaleOffset(shape));
  side.factor = static_cast<uint32_t>(ValueFactorOffset(shape));
  if (is_of_layer) side.shared_scales = At<uint16_t>(at.layer_record, 0);
  if (side.kind == CodeKind::kCentroids) side.centroids = at.value_book->centroids;
  if (shape.lowrank() > 0) side.basis = At<uint16_t>(at.record, ValueBasisOffset(shape));
  if (shape.value_outliers() > 0) {
    side.exact = {.ends = At<uint32_t>(at.layer_record, ValueSparseEndsOffset(shape)),
                  .ends_step = shape.n_kv_heads,
                  .ends_first = kv_head_idx,
                  .differences = At<uint16_t>(at.layer_record, ValueSparseOffset(shape)),
                  .places = At<uint8_t>(at.layer_record, ValuePlacesOffset(shape)),
                  .counts = static_cast<uint32_t>(ValueCountOffset(shape))};
  }
  return side;
}

}  // namespace

bool CanExpand(const SealedHead& head) {
  const CodecFacts facts = FactsOf(head.format.codec);
  return !facts.brings_bases && facts.k.balanced_tokens == 0 &&
         !std::holds_alternative<SphereCodec>(head.format.codec);
}

cuda::ExpandRun MakeExpandRun(const BlockShape& shape, const SealedHead& head, const SealedRun& run,
                              const ExpandAddresses& at) {
  const PackedShape packed = MakePackedShape(head.format, shape, head.storage,
                                             {.n_kv_heads = head.n_kv_heads,
                                              .layer_rank_v = head.layer_rank_v,
                                              .n_blocks = run.n_blocks,
                                              .is_prompt = run.is_prompt,
                                              .is_repaired = run.is_repaired,
                                              .entry_class = run.entry_class});
  cuda::ExpandRun to = {
      .first_block = run.first_block,
      .n_blocks = run.n_blocks,
      .k = MakeKeys(packed, at),
      .v = packed.has_one_side ? MakeKeys(packed, at) : MakeValues(packed, head.kv_head_idx, at),
      .lowrank = packed.lowrank(),
      .has_one_side = packed.has_one_side};
  if (head.format.seals_keys_before_rope() && head.rotation.half > 0) {
    const int64_t step = int64_t{run.first_block} * kBlockSize * head.rotation.half;
    to.cos = at.cos + step;
    to.sin = at.sin + step;
    to.half = head.rotation.half;
  }
  return to;
}

cuda::ExpandRun MakeOpenRun(const BlockShape& shape, const OpenBlocks& open) {
  static_assert(kSplitBits[0] == 8);
  HeadBits all_of_8 = {.middle = {.k = {.channels = {shape.rank_k}}}};
  if (!shape.has_one_side) all_of_8.middle.v = {.channels = {shape.rank_v}};
  const SealedHead head = {.format = {.codec = SplitBitsCodec{.unit = StoredUnit::kToken,
                                                              .has_one_side = shape.has_one_side}},
                           .storage = all_of_8,
                           .layer_rank_v = shape.rank_v};
  return MakeExpandRun(shape, head, {.first_block = open.first_block, .n_blocks = open.n_blocks},
                       {});
}

cuda::WindowTables MakeWindowTables() {
  cuda::WindowTables tables;
  for (const StoredUnit unit : {StoredUnit::kChannel, StoredUnit::kToken}) {
    for (int bits = 1; bits <= 5; ++bits) {
      std::copy_n(UnitTable(bits, unit), 64, tables.values[static_cast<int>(unit)][bits - 1]);
    }
  }
  return tables;
}

}  // namespace kvlathe
