// A block of rows by lines (cpu/kernels/seal/seal_kernels.h): a warp takes a line, and each of its
// lanes a word of it. A line of K is 16 tokens of a pair of channels, a line of V 16 channels of a
// pair of tokens.
#pragma once

#include "cuda/kernels/seal/sealed_head.h"
#include "cuda/simt/simt.h"
#include "format/codes/code_lines.h"
#include "format/split_bits/split_bits_layout.h"

namespace kvlathe::cuda {

// A block of K or of V, of which a lane reads its own words.
struct BlockLines {
  const std::byte* rows;
  const std::byte* coded_scales;
  int n_lines;  // of a pair
  bool is_key;
  RowKind kind;

  KVL_DEVICE BlockLines(const SealKernelParams& p, const SealedHeadRun& head, bool of_keys,
                        int block)
      : rows(head.blocks[block] + (of_keys ? head.k : head.v).row_offset),
        coded_scales(head.blocks[block] + (of_keys ? head.k : head.v).coded_scale_offset),
        n_lines(of_keys ? kBlockSize / 16 : head.v.rank / 16),
        is_key(of_keys),
        kind(p.row_kind) {}

  // The number of a line in its block.
  KVL_DEVICE int LineAt(int pair, int line) const { return pair * n_lines + line; }
  KVL_DEVICE int TokenOf(int pair, int line) const {
    return is_key ? 16 * line + simt::Lane() / 2 : 2 * pair + simt::Lane() % 2;
  }

  KVL_DEVICE float Number(int pair, int line) const { return Number(pair, line, simt::Lane()); }
  // `word` in place of the lane's own.
  KVL_DEVICE float Number(int pair, int line, int word) const {
    const int at = pair * n_lines + line;
    if (kind == RowKind::kBf16) {
      return simt::FloatOfBf16(reinterpret_cast<const uint16_t*>(rows)[at * 32 + word]);
    }
    if (kind == RowKind::kF32) return reinterpret_cast<const float*>(rows)[at * 32 + word];
    return CodedNumber(pair, line, word);
  }

 private:
  // As ExpandCodedKeys and ExpandCodedValues.
  KVL_DEVICE float CodedNumber(int pair, int line, int word) const {
    constexpr float kSignOfZero = 0x1p-20f;
    const int in_group = is_key ? line % 2 : pair % 2;
    const int group = is_key ? pair * (n_lines / 2) + line / 2 : pair / 2 * n_lines + line;
    const auto code =
        static_cast<uint8_t>(rows[group * 64 + word / 8 * 16 + in_group * 8 + word % 8]);
    const int token = is_key ? 16 * line + word / 2 : 2 * pair + word % 2;
    const float scale = ScaleOfByte(static_cast<uint8_t>(coded_scales[token]));
    const float step = static_cast<float>(code) - 128;
    const float zero = token % 2 == 0 ? kSignOfZero : -kSignOfZero;
    return scale * (step == 0 ? zero : step * kUnitStep);
  }
};

// The lane's number of a line as it is sealed: keys of a rotation turn back first (TurnKeysBack).
KVL_DEVICE float SealedNumber(const SealedHeadRun& head, const BlockLines& lines, int block,
                              int pair, int line) {
  const SealedModel& model = head.model;
  const float x = lines.Number(pair, line);
  if (!lines.is_key || pair >= model.half) return x;
  const bool is_first = 2 * pair < model.half;
  const int first = is_first ? pair : pair - model.half / 2;
  const float other = lines.Number(is_first ? pair + model.half / 2 : first, line);
  const int64_t at =
      (int64_t{block} * model.half / 2 + first) * 2 * kBlockSize + 32 * line + simt::Lane();
  const float c = model.way_back * model.cos[at];
  const float s = model.way_back * -1.0f * model.sin[at];
  return is_first ? x * c - other * s : x * c + other * s;
}

// Whether the lane's word of a line of a block is kept exactly. `at` is BlockLines::LineAt.
KVL_DEVICE bool IsExact(const SealedSide& side, int block, int at) {
  const uint32_t* const exact = side.repairs.exact;
  if (exact == nullptr) return false;
  return (exact[int64_t{block} * 2 * side.rank + at] >> simt::Lane() & 1u) != 0;
}

// Where the loss of the lane's word of a line goes; null where nobody asks.
KVL_DEVICE float* ResidualAt(const SealedSide& side, int block, int at) {
  if (side.repairs.residual == nullptr) return nullptr;
  return side.repairs.residual + (int64_t{block} * 2 * side.rank + at) * 32 + simt::Lane();
}

// Collects the codes of a group of lines, of which each lane brings its own, and stores them as
// format/codes/code_lines.h says. All lanes call together.
class GroupOfCodes {
 public:
  KVL_DEVICE GroupOfCodes(int bits, std::byte* to) : bits_(bits), to_(to) {}

  KVL_DEVICE void Add(int line, uint32_t code) {
    const int lane = simt::Lane();
    if (bits_ == 8) {
      to_[lane / 8 * 16 + line * 8 + lane % 8] = static_cast<std::byte>(code);
      return;
    }
    const int low = LowBits(bits_);
    if (HasHighBit(bits_)) AddHigh(line, (code >> low & 1) != 0);
    word_ |= (code & ((1u << low) - 1)) << (low * line);
  }
  KVL_DEVICE void Finish() const {
    if (bits_ != 8) Store(word_);
  }
  // The high bit of a line's code, and the low bits of all lines.
  KVL_DEVICE void AddHigh(int line, bool is_high) const {
    const uint32_t high = simt::Ballot(is_high);
    if (simt::Lane() == 0) *reinterpret_cast<uint32_t*>(to_ + 64 + 4 * line) = high;
  }
  KVL_DEVICE void Store(uint32_t word) const {
    reinterpret_cast<uint16_t*>(to_)[simt::Lane()] = static_cast<uint16_t>(word);
  }

 private:
  int bits_;
  std::byte* to_;
  uint32_t word_ = 0;
};

// A number as a code, which is rounded half to even: its low byte.
KVL_DEVICE uint32_t CodeOf(float number) {
  return std::bit_cast<uint32_t>(number + 0x1.8p23f) & 0xffu;
}

}  // namespace kvlathe::cuda
