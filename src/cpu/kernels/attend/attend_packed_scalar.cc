#include <algorithm>
#include <bit>
#include <cstring>
#include <variant>

#include "base/check.h"
#include "cpu/kernels/attend/attend_packed.h"
#include "cpu/kernels/attend/exact_entries.h"
#include "format/sphere_codes/residual_signs.h"
#include "format/split_bits/unit_codes.h"

namespace kvlathe {
namespace {

constexpr int kMaxRank = kMaxRowRank;
static_assert(int64_t{4} * kBlockSize * 2 * kMaxRank <= kAttendScratchBytes);

template <typename T>
const T* At(const std::byte* record, int64_t offset) {
  return reinterpret_cast<const T*>(record + offset);
}

// Codes of a side with split bits, from the start of its codes on.
void ListSegments(const BitSplit& split, const PackedSide& side, PackedSideView* view) {
  view->has_token_scales = side.sharing == ScaleSharing::kToken;
  const StoredUnit unit = view->has_token_scales ? StoredUnit::kToken : StoredUnit::kChannel;
  int first = 0;
  int64_t offset = view->codes;
  for (size_t i = 0; i < kSplitBits.size(); ++i) {
    const int n = split.channels[i];
    if (n == 0) continue;
    const int bits = kSplitBits[i];
    CodeSegment& segment = view->segments[view->n_segments++];
    segment = {bits, first, n, offset};
    if (bits < 8) {
      segment.values = UnitValues(bits, unit);
      segment.table = UnitTable(bits, unit);
      segment.numbers = UnitNumbers(bits, unit);
      segment.bytes = UnitBytes(bits, unit);
      segment.byte_step = ByteStep(ByteStepOf(bits), unit);
    }
    if (bits <= kSmallBits) {
      segment.small = SmallUnitBytes(bits, unit);
    } else {
      view->n_wide = first + n;
    }
    first += n;
    offset += CodeBytes(kSplitBits[i], n);
  }
  view->n_coded = first;
  view->small_step = SmallStep(unit);
  KVL_DCHECK(first <= view->rank);
}

// Lists the channels of K or of V by their bits, where what the codec keeps of a run says so.
struct SegmentLister {
  const PackedSide& side;
  bool is_key;
  PackedSideView* view;

  void operator()(const std::monostate& /*storage*/) const {}
  void operator()(const RotatedRanks& /*ranks*/) const {}
  void operator()(const EntryBits& bits) const {
    ListSegments(is_key ? bits.k : bits.v, side, view);
  }
};

void ViewTable(const PackedSide& side, PackedSideView* view) {
  if (side.table == nullptr) return;
  view->table = side.table->words.data();
  view->numbers = side.table->numbers.data();
  view->table_unit = side.table->unit;
  view->has_norms = side.has_norms;
  if (side.has_signs) view->signs = NumbersOfSigns(side.bits);
}

PackedSideView ViewKeys(const PackedShape& shape, const PackedRun& run, const PackedHead& head) {
  const PackedSide& side = shape.k;
  const bool is_per_channel = side.sharing == ScaleSharing::kChannel;
  PackedSideView view = {.rank = shape.rank_k,
                         .bits = side.bits,
                         .is_symmetric = side.is_symmetric,
                         .is_per_channel = is_per_channel,
                         .group = side.group,
                         .n_groups = KeyScaleGroups(shape),
                         .codes = 0,
                         .scales = KeyTokenScaleOffset(shape),
                         .balanced_tokens = side.balanced_tokens,
                         .balance = KeyBalanceOffset(shape),
                         .factor = KeyFactorOffset(shape)};
  if (view.group == 0) view.group = is_per_channel ? shape.n_tokens() : shape.rank_k;
  std::visit(SegmentLister{side, /*is_key=*/true, &view}, shape.storage);
  ViewTable(side, &view);
  if (is_per_channel) view.shared_scales = At<F16>(run.record, 0);
  if (side.has_codebook) {
    view.centroids = head.codebooks->k.centroids.data();
    view.model_scales = head.codebooks->key_scales[head.kv_head_idx].data();
  }
  if (shape.lowrank() > 0) view.basis = At<F16>(run.record, KeyBasisOffset(shape));
  if (shape.n_key_entries() > 0) {
    view.exact.ends = At<uint32_t>(run.record, KeySparseEndsOffset(shape));
    view.exact.differences = At<uint16_t>(run.record, KeySparseOffset(shape));
    view.exact.places = At<uint8_t>(run.record, KeyPlacesOffset(shape));
    view.exact.counts = KeyCountOffset(shape);
    view.exact.has_wide_counts = HasWideKeyCounts(shape);
  }
  return view;
}

PackedSideView ViewValues(const PackedShape& shape, const PackedRun& run, const PackedHead& head) {
  const PackedSide& side = shape.v;
  const bool is_of_layer = side.sharing == ScaleSharing::kTokenLayer;
  PackedSideView view = {.rank = shape.rank_v,
                         .bits = side.bits,
                         .is_symmetric = side.is_symmetric,
                         .group = is_of_layer || side.group == 0 ? shape.rank_v : side.group,
                         .n_groups = is_of_layer ? 1 : ValueScaleGroups(shape),
                         .codes = PackedValueOffset(shape),
                         .scales = ValueTokenScaleOffset(shape),
                         .balanced_tokens = side.balanced_tokens,
                         .factor = ValueFactorOffset(shape)};
  if (view.balanced_tokens > 0) {
    view.channel_balance = At<F16>(run.record, ValueBalanceOffset(shape));
  }
  if (is_of_layer) view.shared_scales = At<F16>(run.layer_record, 0);
  std::visit(SegmentLister{side, /*is_key=*/false, &view}, shape.storage);
  ViewTable(side, &view);
  if (side.has_codebook) view.centroids = head.codebooks->v.centroids.data();
  if (shape.lowrank() > 0) view.basis = At<F16>(run.record, ValueBasisOffset(shape));
  if (shape.value_outliers() > 0) {
    view.exact.ends = At<uint32_t>(run.layer_record, ValueSparseEndsOffset(shape));
    view.exact.ends_step = shape.n_kv_heads;
    view.exact.ends_first = head.kv_head_idx;
    view.exact.differences = At<uint16_t>(run.layer_record, ValueSparseOffset(shape));
    view.exact.places = At<uint8_t>(run.layer_record, ValuePlacesOffset(shape));
    view.exact.counts = ValueCountOffset(shape);
  }
  return view;
}

// How codes are read: as numbers, of 8 bits perhaps signed ones, or as windows (unit_codes.h).
enum class CodeReading { kNumber, kSignedNumber, kWindow };

// The codes of one group of lines; lines of 32 of them go `line_step` apart.
template <int kBits>
void ReadLines(const std::byte* from, CodeReading reading, int64_t line_step, float* out) {
  if constexpr (kBits == 8) {
    for (int i = 0; i < 64; ++i) {
      const auto code = static_cast<uint8_t>(from[i]);
      float* line = out + i / 8 % 2 * line_step;
      line[i / 16 * 8 + i % 8] =
          reading == CodeReading::kSignedNumber ? static_cast<int8_t>(code) : code;
    }
  } else {
    constexpr int kLowBits = LowBits(kBits);
    const int n_bits = reading == CodeReading::kWindow ? LowWindowBits(kBits) : kLowBits;
    uint16_t words[32];
    std::memcpy(words, from, sizeof(words));
    for (int i = 0; i < LinesPerGroup(kBits); ++i) {
      uint32_t high = 0;
      if constexpr (HasHighBit(kBits))
        std::memcpy(&high, from + sizeof(words) + 4 * i, sizeof(high));
      for (int w = 0; w < 32; ++w) {
        const unsigned low = std::rotr(words[w], kLowBits * i) & ((1u << n_bits) - 1);
        out[i * line_step + w] = static_cast<float>(low | (high >> w & 1) << n_bits);
      }
    }
  }
}

// The codes of some channels of a side of `rank` into the order of a plain block of it.
template <int kBits, bool kIsKey>
void ReadCodes(const CodeSegment& segment, int rank, CodeReading reading, const std::byte* codes,
               float* out) {
  constexpr int kLines = LinesPerGroup(kBits);
  const int lines_per_pair = segment.n_channels / 16;  // of tokens, V
  const int n_groups = 2 * segment.n_channels / kLines;
  out += kIsKey ? int64_t{kBlockSize} * segment.first : int64_t{2} * segment.first;
  for (int group = 0; group < n_groups; ++group) {
    const int64_t at = kIsKey ? int64_t{32} * group * kLines
                              : int64_t{2} * rank * (group / lines_per_pair * kLines) +
                                    32 * (group % lines_per_pair);
    ReadLines<kBits>(codes + int64_t{group} * GroupBytes(kBits), reading, kIsKey ? 32 : 2 * rank,
                     out + at);
  }
}

template <bool kIsKey>
void ReadCodesOfAnyWidth(const CodeSegment& segment, int rank, CodeReading reading,
                         const std::byte* codes, float* out) {
  switch (segment.bits) {
    case 1:
      return ReadCodes<1, kIsKey>(segment, rank, reading, codes, out);
    case 2:
      return ReadCodes<2, kIsKey>(segment, rank, reading, codes, out);
    case 3:
      return ReadCodes<3, kIsKey>(segment, rank, reading, codes, out);
    case 4:
      return ReadCodes<4, kIsKey>(segment, rank, reading, codes, out);
    case 5:
      return ReadCodes<5, kIsKey>(segment, rank, reading, codes, out);
    default:
      KVL_DCHECK(segment.bits == 8);
      return ReadCodes<8, kIsKey>(segment, rank, reading, codes, out);
  }
}

struct Range {
  int begin, end;
};

// f(token, channel, place in a plain block), along the longer stretches of memory.
template <bool kIsKey, typename F>
void ForEach(Range tokens, Range channels, int rank, const F& f) {
  if constexpr (kIsKey) {
    for (int r = channels.begin; r < channels.end; ++r) {
      for (int t = tokens.begin; t < tokens.end; ++t) f(t, r, KeyOffset(t, r));
    }
  } else {
    const BlockShape shape = {.rank_v = rank};
    for (int t = tokens.begin; t < tokens.end; ++t) {
      for (int r = channels.begin; r < channels.end; ++r) f(t, r, ValueOffset(shape, t, r));
    }
  }
}

void ApplyChannelScales(const PackedSideView& side, int block_idx, float* values) {
  const int step = std::min(side.group, kBlockSize);
  for (int t = 0; t < kBlockSize; t += step) {
    const int group = (block_idx * kBlockSize + t) / side.group;
    const F16* scales = side.shared_scales + int64_t{2} * group * side.rank;
    for (int r = 0; r < side.rank; ++r) {
      const float scale = ToFloat(scales[r]), minimum = ToFloat(scales[side.rank + r]);
      ForEach<true>({t, t + step}, {r, r + 1}, side.rank,
                    [&](int, int, int64_t at) { values[at] = values[at] * scale + minimum; });
    }
  }
}

// Codes of a table: the numbers that they stand for and their scales, a byte each or of norms.
template <bool kIsKey>
void ApplyTableScales(const PackedSideView& side, const std::byte* block, float* values) {
  for (int group = 0; group < side.n_groups; ++group) {
    float scales[kBlockSize];
    if (side.has_norms) {
      ConvertToFloat(DType::kF16, At<F16>(block, side.scales) + group * kBlockSize, kBlockSize,
                     scales);
    } else {
      const auto* const bytes = At<uint8_t>(block, side.scales) + group * kBlockSize;
      std::transform(bytes, bytes + kBlockSize, scales, TableScale);
    }
    const Range channels = {group * side.group, std::min(side.rank, (group + 1) * side.group)};
    ForEach<kIsKey>({0, kBlockSize}, channels, side.rank, [&](int t, int, int64_t at) {
      values[at] = static_cast<float>(side.numbers[static_cast<int>(values[at])]) *
                   (scales[t] * side.table_unit);
    });
  }
}

template <bool kIsKey>
void ApplyTokenScales(const PackedSideView& side, const std::byte* block, int block_idx,
                      float* values) {
  if (side.table != nullptr) return ApplyTableScales<kIsKey>(side, block, values);
  const int parts = side.is_symmetric ? 1 : 2;
  const F16* all = side.shared_scales != nullptr
                       ? side.shared_scales + int64_t{parts} * kBlockSize * block_idx
                       : At<F16>(block, side.scales);
  for (int group = 0; group < side.n_groups; ++group) {
    float scales[kBlockSize], minima[kBlockSize] = {};
    const F16* from = all + group * parts * kBlockSize;
    ConvertToFloat(DType::kF16, from, kBlockSize, scales);
    if (parts == 2) ConvertToFloat(DType::kF16, from + kBlockSize, kBlockSize, minima);
    for (int t = 0; side.is_symmetric && side.bits == 4 && t < kBlockSize; ++t) {
      minima[t] = -8 * scales[t];
    }
    const Range channels = {group * side.group, std::min(side.rank, (group + 1) * side.group)};
    ForEach<kIsKey>({0, kBlockSize}, channels, side.rank, [&](int t, int, int64_t at) {
      values[at] = values[at] * scales[t] + minima[t];
    });
  }
}

template <bool kIsKey>
void DecodeSideByCodebook(const PackedSideView& side, int block_idx, float* values) {
  if constexpr (kIsKey) {
    return DecodeByCodebook({.n_pairs = side.rank / 2,
                             .n_lines = kBlockSize / 16,
                             .scales = side.model_scales,
                             .offsets = side.model_scales + side.rank},
                            side.centroids, values);
  }
  float scales[2 * kBlockSize];
  ConvertToFloat(DType::kF16, side.shared_scales + int64_t{2} * kBlockSize * block_idx,
                 2 * kBlockSize, scales);
  DecodeByCodebook({.n_pairs = kBlockSize / 2,
                    .n_lines = side.rank / 16,
                    .scales = scales,
                    .offsets = scales + kBlockSize},
                   side.centroids, values);
}

template <bool kIsKey>
void ScaleTokens(const PackedSideView& side, const std::byte* block, float* values) {
  const auto* scales = At<uint8_t>(block, side.scales);
  ForEach<kIsKey>({0, kBlockSize}, {0, side.rank}, side.rank,
                  [&](int t, int, int64_t at) { values[at] *= ScaleOfByte(scales[t]); });
}

template <bool kIsKey>
void DecodeSegments(const PackedSideView& side, const std::byte* block, float* values) {
  for (int i = 0; i < side.n_segments; ++i) {
    const CodeSegment& segment = side.segments[i];
    ReadCodesOfAnyWidth<kIsKey>(segment, side.rank, CodeReading::kWindow, block + segment.codes,
                                values);
    const float* of_windows = segment.values;
    ForEach<kIsKey>({0, kBlockSize}, {segment.first, segment.first + segment.n_channels}, side.rank,
                    [&](int, int, int64_t at) {
                      values[at] = of_windows == nullptr ? (values[at] - 128) * kUnitStep
                                                         : of_windows[static_cast<int>(values[at])];
                    });
  }
  ForEachUncoded<kIsKey>(side,
                         [&](int64_t offset, int64_t n) { std::fill_n(values + offset, n, 0.0f); });
  if (side.has_token_scales) ScaleTokens<kIsKey>(side, block, values);
}

// Multiplies what codes stand for with the balance of their tile.
template <bool kIsKey>
void MultiplyByBalance(const PackedSideView& side, const std::byte* block, int block_idx,
                       float* values) {
  if (side.balanced_tokens == 0) return;
  const F16* balance = kIsKey ? At<F16>(block, side.balance) : side.ChannelBalance(block_idx);
  ForEach<kIsKey>({0, kBlockSize}, {0, side.rank}, side.rank, [&](int t, int r, int64_t at) {
    values[at] *= ToFloat(balance[kIsKey ? t : r]);
  });
}

template <bool kIsKey>
void DecodeSide(const PackedSideView& side, const std::byte* block, int block_idx, float* values) {
  if (side.n_segments > 0) return DecodeSegments<kIsKey>(side, block, values);
  ReadCodesOfAnyWidth<kIsKey>({side.bits, 0, side.rank, side.codes}, side.rank,
                              side.is_symmetric ? CodeReading::kSignedNumber : CodeReading::kNumber,
                              block + side.codes, values);
  if (side.centroids != nullptr) {
    DecodeSideByCodebook<kIsKey>(side, block_idx, values);
  } else if (side.is_per_channel) {
    ApplyChannelScales(side, block_idx, values);
  } else {
    ApplyTokenScales<kIsKey>(side, block, block_idx, values);
  }
  MultiplyByBalance<kIsKey>(side, block, block_idx, values);
}

// Adds what the signs of codes of K say of its residuals.
void AddSigns(const PackedSideView& side, const std::byte* block, int block_idx, float* keys) {
  alignas(64) float signs[kBlockSize * kMaxPackedRank];
  DecodeSide<true>(SignsOf(side), block, block_idx, signs);
  AddResiduals(side.rank, signs, keys);
}

template <bool kIsKey>
void AddExactEntriesOf(const PackedSideView& side, const std::byte* block, int block_idx,
                       float* values) {
  ForEachExactEntry<kIsKey>(side, block, block_idx, [&](int t, int r, float difference) {
    values[kIsKey ? KeyOffset(t, r) : ValueOffset({.rank_v = side.rank}, t, r)] += difference;
  });
}

// Adds the low-rank residual A B^T.
template <bool kIsKey>
void AddFactors(const PackedSideView& side, int lowrank, const std::byte* block, float* values) {
  for (int i = 0; i < lowrank; ++i) {
    float a[kBlockSize], b[kMaxRank];
    ConvertToFloat(DType::kF16, At<F16>(block, side.factor) + i * kBlockSize, kBlockSize, a);
    ConvertToFloat(DType::kF16, side.basis + i * side.rank, side.rank, b);
    ForEach<kIsKey>({0, kBlockSize}, {0, side.rank}, side.rank,
                    [&](int t, int r, int64_t at) { values[at] += a[t] * b[r]; });
  }
}

// All channels have 8 bits, tokens have scales, and nothing is repaired yet.
PackedRunView ViewOpenRun(const BlockShape& block, const PackedRun& run, const PackedHead& head) {
  static_assert(kSplitBits[0] == 8);
  HeadBits all_of_8 = {.middle = {.k = {.channels = {block.rank_k}}}};
  if (!block.has_one_side) all_of_8.middle.v = {.channels = {block.rank_v}};
  const SplitBitsCodec codec = {.unit = StoredUnit::kToken, .has_one_side = block.has_one_side};
  const PackedShape shape =
      MakePackedShape({.codec = codec}, block, all_of_8, {.n_blocks = run.n_blocks});
  return {.k = ViewKeys(shape, run, head),
          .v = block.has_one_side ? ViewKeys(shape, run, head) : ViewValues(shape, run, head),
          .first_block = run.first_block,
          .has_one_side = block.has_one_side,
          .block_bytes = PackedBlockBytes(shape)};
}

}  // namespace

PackedRunView ViewRun(const AttendParams& params, const PackedRun& run) {
  const PackedHead& head = *params.packed;
  if (run.is_open) return ViewOpenRun(params.shape, run, head);
  const PackedShape shape = MakePackedShape(head.format, params.shape, head.storage,
                                            {.n_kv_heads = head.n_kv_heads,
                                             .layer_rank_v = head.layer_rank_v,
                                             .n_blocks = run.n_blocks,
                                             .is_prompt = run.is_prompt,
                                             .is_repaired = run.is_repaired,
                                             .entry_class = run.entry_class});
  PackedRunView view = {
      .k = ViewKeys(shape, run, head),
      .v = shape.has_one_side ? ViewKeys(shape, run, head) : ViewValues(shape, run, head),
      .first_block = run.first_block,
      .lowrank = shape.lowrank(),
      .has_one_side = shape.has_one_side,
      .block_bytes = PackedBlockBytes(shape)};
  if (head.format.seals_keys_before_rope() && head.rotation.half > 0) {
    view.rotation = head.rotation.From(run.first_block);
  }
  return view;
}

bool HasSplitBits(const PackedHead& head) {
  return std::holds_alternative<SplitBitsCodec>(head.format.codec);
}

const PackedRun* FindRun(const PackedHead& head, int block, int* run_idx) {
  while (*run_idx < head.n_runs) {
    const PackedRun& run = head.runs[*run_idx];
    if (block < run.first_block + run.n_blocks) return &run;
    ++*run_idx;
  }
  return head.open.n_blocks > 0 ? &head.open : nullptr;
}

void AddExactEntries(const PackedRunView& run, const std::byte* block, int block_idx,
                     float* values) {
  AddExactEntriesOf<true>(run.k, block, block_idx, values);
  AddExactEntriesOf<false>(run.v, block, block_idx, values + kBlockSize * run.k.rank);
}

void ExpandPackedBlock(const PackedRunView& run, const std::byte* block, int block_idx,
                       float* out) {
  float* const of_v = out + kBlockSize * run.k.rank;
  DecodeSide<true>(run.k, block, block_idx, out);
  if (run.k.signs != nullptr) AddSigns(run.k, block, block_idx, out);
  if (run.has_one_side) {
    return ForEach<false>({0, kBlockSize}, {0, run.v.rank}, run.v.rank,
                          [&](int t, int r, int64_t at) { of_v[at] = out[KeyOffset(t, r)]; });
  }
  DecodeSide<false>(run.v, block, block_idx, of_v);
  AddExactEntries(run, block, block_idx, out);
  AddFactors<true>(run.k, run.lowrank, block, out);
  AddFactors<false>(run.v, run.lowrank, block, of_v);
  if (run.rotation.half > 0) TurnKeys(run.rotation.From(block_idx), out);
}

}  // namespace kvlathe
