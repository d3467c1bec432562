#include "cuda/kernels/seal/block_lines.cuh"
#include "cuda/kernels/seal/f16.cuh"
#include "cuda/kernels/seal/uniform.h"
#include "cuda/simt/launch.h"

namespace kvlathe::cuda {
namespace {

using namespace simt;

constexpr int kThreads = 256;

// --- Rows that are not finite ---

KVL_KERNEL(kThreads) CheckKernel(KVL_PARAMS(SealKernelParams) p) {
  const SealedPlace place = p.places[BlockIdx()];
  const SealedHeadRun& head = p.heads[place.head];
  const SealedSide& side = BlockIdxY() == 0 ? head.k : head.v;
  const bool is_half = p.row_kind == RowKind::kBf16;
  constexpr uint32_t kExponent = 0x7f800000;
  const int n_words = kBlockSize * side.rank / (is_half ? 8 : 4);  // of 16 bytes
  const std::byte* const rows = head.blocks[place.block] + side.row_offset;
  bool is_bad = false;
  for (int i = ThreadIdx(); i < n_words; i += kThreads) {
    const Words4 words = LoadWords4(rows + int64_t{16} * i);
    for (const uint32_t word : words.x) {
      is_bad =
          is_bad || (word & kExponent) == kExponent || (is_half && (word & 0x7f80u) == 0x7f80u);
    }
  }
  if (Ballot(is_bad) != 0 && Lane() == 0) {
    AtomicMax(p.not_finite + 2 * place.head + BlockIdxY(), 1);
  }
}

// --- Scales ---

struct Range {
  float low = __builtin_inff(), high = -__builtin_inff();

  KVL_DEVICE void Add(float x) {
    if (x < low) low = x;
    if (x > high) high = x;
  }
  // Of the lanes that differ in the bits of `mask`.
  KVL_DEVICE void Fold(int mask) {
    for (int step = 16; step > 0; step /= 2) {
      if ((mask & step) == 0) continue;
      const float other_low = ShuffleXor(low, step), other_high = ShuffleXor(high, step);
      if (other_low < low) low = other_low;
      if (other_high > high) high = other_high;
    }
  }
};

struct ScaleBits {
  uint32_t scale, minimum;
};

KVL_DEVICE ScaleBits Rounded(const Range& range, const CodedSide& side) {
  const bool is_empty = range.high < range.low;
  const float below = 0.0f - range.low;
  float width = range.high - range.low, levels = static_cast<float>((1 << side.bits) - 1);
  if (side.is_symmetric && side.bits == 4) {
    // Code 0 is the element that lies farthest out, on its side.
    width = range.high < below ? range.low : range.high;
    levels = -8.0f;
  } else if (side.is_symmetric) {
    width = range.high > below ? range.high : below;
    levels = 127.0f;
  }
  float scale = width / levels;
  if (!side.is_symmetric && range.low == range.high) scale = 1;
  if (is_empty) scale = 1;
  uint32_t bits = BoundedF16(scale);
  if ((bits & 0x7fffu) == 0) bits = 1;
  // The sum leaves no -0, which would depend on the order of equal values.
  return {bits, BoundedF16((is_empty ? 0.0f : range.low) + 0.0f)};
}

// A range and an offset.
KVL_DEVICE ScaleBits RoundedForCodebook(const Range& range) {
  const bool is_empty = range.low > range.high;
  const float low = is_empty ? 0 : range.low, high = is_empty ? 0 : range.high;
  const uint32_t bits = BoundedF16(0.5f * high - 0.5f * low);
  return {bits == 0 ? 1 : bits, BoundedF16(0.5f * high + 0.5f * low + 0.0f)};  // never -0
}

KVL_DEVICE uint16_t* Shorts(std::byte* bytes) { return reinterpret_cast<uint16_t*>(bytes); }

// Scales of a token's group of channels, in a packed block.
KVL_DEVICE std::byte* TokenScalesOf(const UniformParams& p, const SealedSide& side,
                                    const CodedSide& codes, std::byte* packed, int group) {
  const int n_bytes = p.has_table ? 1 : codes.is_symmetric ? 2 : 4;
  return packed + side.scale_offset + int64_t{group} * n_bytes * kBlockSize;
}

KVL_DEVICE void StoreTokenScale(const UniformParams& p, const CodedSide& codes, const Range& range,
                                std::byte* scales, int token) {
  if (p.has_table) {
    const float above = range.high > 0.0f ? range.high : 0.0f;
    const float below = -range.low;
    const float largest = range.low > range.high ? 0.0f : above > below ? above : below;
    scales[token] = static_cast<std::byte>(TableScaleByte(largest, p.steps.max_exponent));
    return;
  }
  const ScaleBits bits = p.has_codebook ? RoundedForCodebook(range) : Rounded(range, codes);
  Shorts(scales)[token] = static_cast<uint16_t>(bits.scale);
  if (!codes.is_symmetric) {
    Shorts(scales)[kBlockSize + token] = static_cast<uint16_t>(bits.minimum);
  }
}

KVL_DEVICE void AddLine(const SealedSide& side, const BlockLines& lines, int block, int pair,
                        int line, Range* range) {
  if (!IsExact(side, block, lines.LineAt(pair, line))) range->Add(lines.Number(pair, line));
}

// Scales of a pair of channels; lanes differ in tokens but for the lowest bit.
KVL_DEVICE void StoreChannelScale(const CodedSide& codes, const SealedHeadRun& head, int group,
                                  int pair, Range range) {
  constexpr int kOfTokens = 0b11110;
  range.Fold(kOfTokens);
  if (Lane() >= 2) return;
  const ScaleBits bits = Rounded(range, codes);
  uint16_t* const scales = Shorts(head.record) + int64_t{group} * 2 * head.k.rank;
  scales[2 * pair + Lane()] = static_cast<uint16_t>(bits.scale);
  scales[head.k.rank + 2 * pair + Lane()] = static_cast<uint16_t>(bits.minimum);
}

// A warp takes pairs of channels of a span.
KVL_KERNEL(kThreads) ChannelScaleKernel(KVL_PARAMS(UniformParams) p) {
  const SealedPlace place = p.spans[BlockIdx()];
  const SealedHeadRun& head = p.all.heads[place.head];
  const int group = head.k.group, n_groups = kBlockSize / group;
  const int last = place.block + head.k.span_blocks;
  const int end = last < head.n_blocks ? last : head.n_blocks;
  for (int pair = BlockIdxY() * WarpCount() + WarpIdx(); pair < head.k.rank / 2;
       pair += p.n_span_parts * WarpCount()) {
    for (int g = 0; g < n_groups; ++g) {
      Range range;
      for (int block = place.block; block < end; ++block) {
        const BlockLines lines(p.all, head, /*of_keys=*/true, block);
        for (int line = g * group / 16; line < (g + 1) * group / 16; ++line) {
          AddLine(head.k, lines, block, pair, line, &range);
        }
      }
      StoreChannelScale(p.k, head, place.block / head.k.span_blocks * n_groups + g, pair, range);
    }
  }
}

// Ranges of the tokens of a block, [groups][kBlockSize], which warps find before scales are made:
// what divides would take registers from who reads.
KVL_DEVICE Range* Ranges() { return reinterpret_cast<Range*>(Shared()); }

// A warp takes sixteen tokens of a group of channels of K. Returns how many groups there are.
KVL_DEVICE int FindKeyRanges(const UniformParams& p, const SealedHeadRun& head, int block) {
  const int pairs = head.k.group / 2, n_pairs = head.k.rank / 2;
  const int n_groups = (n_pairs + pairs - 1) / pairs;
  const BlockLines lines(p.all, head, /*of_keys=*/true, block);
  for (int i = WarpIdx(); i < 4 * n_groups; i += WarpCount()) {
    const int g = i / 4, line = i % 4;
    const int end = (g + 1) * pairs < n_pairs ? (g + 1) * pairs : n_pairs;
    Range range;
    for (int pair = g * pairs; pair < end; ++pair) {
      AddLine(head.k, lines, block, pair, line, &range);
    }
    range.Fold(1);
    if (Lane() % 2 == 0) Ranges()[g * kBlockSize + lines.TokenOf(0, line)] = range;
  }
  return n_groups;
}

constexpr int kOfChannels = 0b11110;  // bits of lanes that differ in channels of V

// The range of a pair of tokens of V over lines [begin, end), in the lanes by the lowest bit.
KVL_DEVICE void AddValueLines(const UniformParams& p, const SealedHeadRun& head, int block,
                              int pair, int begin, int end, Range* range) {
  const BlockLines lines(p.all, head, /*of_keys=*/false, block);
  for (int line = begin; line < end; ++line) AddLine(head.v, lines, block, pair, line, range);
}

// A warp takes a pair of tokens of a group of channels of V.
KVL_DEVICE int FindValueRanges(const UniformParams& p, const SealedHeadRun& head, int block) {
  const int group_lines = head.v.group / 16, n_lines = head.v.rank / 16;
  const int n_groups = (n_lines + group_lines - 1) / group_lines;
  for (int i = WarpIdx(); i < kBlockSize / 2 * n_groups; i += WarpCount()) {
    const int g = i / (kBlockSize / 2), pair = i % (kBlockSize / 2);
    const int end = (g + 1) * group_lines < n_lines ? (g + 1) * group_lines : n_lines;
    Range range;
    AddValueLines(p, head, block, pair, g * group_lines, end, &range);
    range.Fold(kOfChannels);
    if (Lane() < 2) Ranges()[g * kBlockSize + 2 * pair + Lane()] = range;
  }
  return n_groups;
}

KVL_KERNEL_AT(kThreads, 4) TokenScaleKernel(KVL_PARAMS(UniformParams) p) {
  const SealedPlace place = p.all.places[BlockIdx()];
  const SealedHeadRun& head = p.all.heads[place.head];
  const bool is_key = BlockIdxY() == 0;
  const CodedSide& codes = is_key ? p.k : p.v;
  if (codes.sharing != ScaleSharing::kToken) return;
  const int n_groups =
      is_key ? FindKeyRanges(p, head, place.block) : FindValueRanges(p, head, place.block);
  SyncBlock();
  for (int i = ThreadIdx(); i < n_groups * kBlockSize; i += kThreads) {
    std::byte* const scales =
        TokenScalesOf(p, is_key ? head.k : head.v, codes, head.packed[place.block], i / kBlockSize);
    StoreTokenScale(p, codes, Ranges()[i], scales, i % kBlockSize);
  }
}

// A warp takes pairs of tokens of V, over all heads that share a layer record.
KVL_KERNEL_AT(kThreads, 4) LayerScaleKernel(KVL_PARAMS(UniformParams) p) {
  const SealedPlace place = p.layer_places[BlockIdx()];
  const SealedHeadRun* const heads = p.all.heads + place.head;
  for (int pair = WarpIdx(); pair < kBlockSize / 2; pair += WarpCount()) {
    Range range;
    for (int h = 0; h < heads[0].n_of_layer; ++h) {
      AddValueLines(p, heads[h], place.block, pair, 0, heads[h].v.rank / 16, &range);
    }
    range.Fold(kOfChannels);
    if (Lane() < 2) Ranges()[2 * pair + Lane()] = range;
  }
  SyncBlock();
  if (ThreadIdx() >= kBlockSize) return;
  std::byte* const scales = heads[0].layer_record + int64_t{place.block} * 4 * kBlockSize;
  StoreTokenScale(p, p.v, Ranges()[ThreadIdx()], scales, ThreadIdx());
}

// --- Codes ---

struct Scale {
  float scale, minimum;
};

// Of the lane's word of a line.
KVL_DEVICE Scale ScaleOf(const UniformParams& p, const SealedHeadRun& head, const BlockLines& lines,
                         int block, int pair, int line) {
  const SealedSide& side = lines.is_key ? head.k : head.v;
  const CodedSide& codes = lines.is_key ? p.k : p.v;
  if (codes.sharing == ScaleSharing::kChannel) {
    const int group = side.span_blocks > 1
                          ? block / side.span_blocks
                          : block * (kBlockSize / side.group) + 16 * line / side.group;
    const uint16_t* const scales = Shorts(head.record) + int64_t{group} * 2 * side.rank;
    const int channel = 2 * pair + Lane() % 2;
    return {NumberOfF16(scales[channel]), NumberOfF16(scales[side.rank + channel])};
  }
  if (codes.sharing == ScaleSharing::kModel) {
    const float* const scales = head.model.key_scales + 2 * pair + Lane() % 2;
    return {scales[0], scales[side.rank]};
  }
  const int token = lines.TokenOf(pair, line);
  const int group = (lines.is_key ? 2 * pair : 16 * line) / side.group;
  std::byte* const scales = codes.sharing == ScaleSharing::kTokenLayer
                                ? head.layer_record + int64_t{block} * 4 * kBlockSize
                                : TokenScalesOf(p, side, codes, head.packed[block], group);
  if (p.has_table) return {TableScale(static_cast<uint8_t>(scales[token])) * p.table_unit, 0};
  const float scale = NumberOfF16(Shorts(scales)[token]);
  if (codes.is_symmetric) return {scale, codes.bits == 4 ? scale * -8.0f : 0.0f};
  return {scale, NumberOfF16(Shorts(scales)[kBlockSize + token])};
}

// A code, as a number, and what it stands for.
struct Coded {
  float code, value;
};

KVL_DEVICE Coded StepOf(const CodedSide& side, float x, const Scale& scale) {
  constexpr float kBias = 0x1.8p23f;
  const bool is_signed = side.bits == 8 && side.is_symmetric;
  const float lowest = is_signed ? -127.0f : 0.0f;
  const float highest = is_signed ? 127.0f : static_cast<float>((1 << side.bits) - 1);
  float code = (x - scale.minimum) / scale.scale;
  code = code > lowest ? code : lowest;
  code = code < highest ? code : highest;
  code = code + kBias - kBias;
  return {code, code * scale.scale + scale.minimum};
}

// The number of boundaries below the quotient chooses the code.
KVL_DEVICE Coded NumberOfTable(const TableSteps& steps, float x, const Scale& scale) {
  const float quotient = x / scale.scale;
  float code = steps.codes[0], number = steps.numbers[0];
  for (int i = 1; i < steps.n; ++i) {
    const bool is_above = steps.boundaries[i] < quotient;
    code = is_above ? steps.codes[i] : code;
    number = is_above ? steps.numbers[i] : number;
  }
  return {code, number * scale.scale};
}

KVL_DEVICE Coded CentroidOf(const Codebook& book, float x, const Scale& scale) {
  const float quotient = (x - scale.minimum) / scale.scale;
  int code = 0;
  for (int i = 0; i < book.n_codes - 1; ++i) code += quotient > book.boundaries[i] ? 1 : 0;
  return {static_cast<float>(code), book.centroids[code] * scale.scale + scale.minimum};
}

KVL_DEVICE Coded EncodedBy(const UniformParams& p, const SealedHeadRun& head, bool is_key, float x,
                           const Scale& scale) {
  if (p.has_codebook) return CentroidOf(head.model.books[is_key ? 0 : 1], x, scale);
  if (p.has_table) return NumberOfTable(p.steps, x, scale);
  return StepOf(is_key ? p.k : p.v, x, scale);
}

KVL_DEVICE uint32_t EncodeWord(const UniformParams& p, const SealedHeadRun& head,
                               const BlockLines& lines, int block, int pair, int line) {
  const SealedSide& side = lines.is_key ? head.k : head.v;
  const float x = SealedNumber(head, lines, block, pair, line);
  const Scale scale = ScaleOf(p, head, lines, block, pair, line);
  const Coded coded = EncodedBy(p, head, lines.is_key, x, scale);
  float* const residual = ResidualAt(side, block, lines.LineAt(pair, line));
  if (residual != nullptr) *residual = x - coded.value;
  return CodeOf(coded.code);
}

// A warp takes groups of lines.
KVL_KERNEL(kThreads) QuantiseKernel(KVL_PARAMS(UniformParams) p) {
  const SealedPlace place = p.all.places[BlockIdx()];
  const SealedHeadRun& head = p.all.heads[place.head];
  const bool is_key = BlockIdxY() == 0;
  const SealedSide& side = is_key ? head.k : head.v;
  const int bits = is_key ? p.k.bits : p.v.bits;
  const BlockLines lines(p.all, head, is_key, place.block);
  const int n_lines = LinesPerGroup(bits), n_groups = 2 * side.rank / n_lines;
  std::byte* const codes = head.packed[place.block] + side.code_offset;
  for (int g = WarpIdx(); g < n_groups; g += WarpCount()) {
    GroupOfCodes group(bits, codes + int64_t{g} * GroupBytes(bits));
    for (int i = 0; i < n_lines; ++i) {
      const int at = g * n_lines + i;
      const int pair = is_key ? at / 4 : g / lines.n_lines * n_lines + i;
      const int line = is_key ? at % 4 : g % lines.n_lines;
      group.Add(i, EncodeWord(p, head, lines, place.block, pair, line));
    }
    group.Finish();
  }
}

}  // namespace

void CheckRows(cudaStream_t stream, const SealKernelParams& params) {
  if (params.row_kind == RowKind::kCoded) return;
  Launch(stream, CheckKernel,
         {.n_blocks = params.n_places,
          .n_threads = kThreads,
          .n_blocks_y = params.has_one_side ? 1 : 2},
         params);
}

void SealUniform(cudaStream_t stream, const UniformParams& params) {
  Launch(stream, ChannelScaleKernel,
         {.n_blocks = params.n_spans, .n_threads = kThreads, .n_blocks_y = params.n_span_parts},
         params);
  const LaunchShape all_places = {
      .n_blocks = params.all.n_places, .n_threads = kThreads, .n_blocks_y = 2};
  constexpr int kMostGroups = kMaxPackedRank / 16;
  LaunchShape with_ranges = all_places;
  with_ranges.shared_bytes = kMostGroups * kBlockSize * sizeof(Range);
  if (params.k.sharing == ScaleSharing::kToken || params.v.sharing == ScaleSharing::kToken) {
    Launch(stream, TokenScaleKernel, with_ranges, params);
  }
  Launch(stream, LayerScaleKernel,
         {.n_blocks = params.n_layer_places,
          .n_threads = kThreads,
          .shared_bytes = kBlockSize * sizeof(Range)},
         params);
  Launch(stream, QuantiseKernel, all_places, params);
}

}  // namespace kvlathe::cuda
